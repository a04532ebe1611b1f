"""What heartbeats and black boxes tell about calls: which have been started, and that an executor has moved on.

Hints only: user code could have written them. The worst that a lie does is that a call runs alone, or is sent to an
executor that gives it back.
"""

from __future__ import annotations

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.launch import move_on
from blockx_worker.dispatch.records import Call

__all__ = ["note_black_box", "note_heartbeat"]


def note_heartbeat(books: DispatchBooks, executor: Executor) -> None:
    """A heartbeat has been taken over: it names the call that owns the main thread, if one does."""
    call = executor.aboard.get(executor.running_call_id)
    if call is not None and call.attempt_seq == executor.running_attempt_seq:
        call.started_seq = call.attempt_seq
    if executor.stuck and not executor.running_call_id:
        move_on(books, executor)


def note_black_box(books: DispatchBooks, executor: Executor) -> None:
    """The black box has been read. Only a switch between two reads after calls were given back counts as moving on."""
    box = executor.box
    owner = executor.bound(box.call_no)
    if isinstance(owner, Call):
        owner.started_seq = owner.attempt_seq
    if not executor.stuck:
        return
    shown = (box.call_no, box.since)
    if not box.call_no or executor.stuck_at not in (None, shown):
        move_on(books, executor)
    executor.stuck_at = shown
