"""Calls and what they wait for: open requests, and the tree of subcalls below a call.

A parent's ``waits`` and a subcall's ``parent`` point at each other as long as both live. When a call ends in whatever
way, all below it ends with it, at once: what an executor still runs of that is told to stop and keeps its context as a
zombie. Keys that it led go to those that wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockx_worker.dispatch.books import DispatchBooks, advance, post_cancel
from blockx_worker.dispatch.executors import Zombie
from blockx_worker.dispatch.flights import hand_over
from blockx_worker.dispatch.records import NOT_CANCELLED, Call

__all__ = ["abandon", "bury", "cancel_bound", "close_wait", "open_wait"]


def open_wait(call: Call, request_id: int, subcall: Call | None) -> None:
    """A bound call waits for a back end, or for this subcall."""
    if not call.waits:
        call.waits = {}
        advance(call, "waits")
        if call.executor is not None:
            call.executor.waiting += 1
    call.waits[request_id] = subcall


def close_wait(call: Call, request_id: int) -> None:
    """One request of a call is answered; after the last one it runs on."""
    waits = call.waits
    if waits is None:
        return
    del waits[request_id]
    if not waits:
        advance(call, "resumed")
        if call.executor is not None:
            call.executor.waiting -= 1


def abandon(books: DispatchBooks, calls: Sequence[Call], reason: str, now_ms: int) -> int:
    """These calls wait for nothing any more: end all below them; how many that were.

    The state of the calls themselves is the caller's to change.
    """
    below: list[Call] = []
    to_look = list(calls)
    while to_look:
        found = _forget_waits(to_look.pop())
        below += found
        to_look += found
    for call in below:
        bury(books, call, reason, now_ms)
    for call in below:
        if call.task.flights.get(call.key) is call:
            hand_over(books, call)
    return len(below)


def bury(books: DispatchBooks, call: Call, reason: str, now_ms: int) -> None:
    """End a call that nobody waits for any more; what an executor runs of it goes on as a zombie until it stops."""
    task, executor = call.task, call.executor
    if executor is not None and not executor.gone:
        if call.cancelled_ms == NOT_CANCELLED:
            call.cancelled_ms = now_ms
            post_cancel(books, call, executor, reason)
        del executor.aboard[call.call_id]
        executor.zombies[call.call_id, call.attempt_seq] = Zombie(
            call.call_id, task.task_id, call.attempt_seq, call.call_no, call.budget_ms, call.cancelled_ms
        )
    advance(call, "cancelled")
    if call.sub is not None:
        del task.subcalls[call.call_id]
        call.batch.remaining -= 1


def cancel_bound(books: DispatchBooks, call: Call, reason: str, now_ms: int) -> int:
    """Order the cancel of a root call that an executor holds, unless it was ordered before; calls ended below it."""
    executor = call.executor
    if executor is None or call.cancelled_ms != NOT_CANCELLED:
        return 0
    ended = 0
    if call.waits:
        ended = abandon(books, (call,), reason, now_ms)
        advance(call, "interrupted")
    call.cancelled_ms = now_ms
    post_cancel(books, call, executor, reason)
    return ended


def _forget_waits(call: Call) -> list[Call]:
    waits, call.waits = call.waits, None
    if not waits:
        return []
    if call.executor is not None:
        call.executor.waiting -= 1
    return [subcall for subcall in waits.values() if subcall is not None]
