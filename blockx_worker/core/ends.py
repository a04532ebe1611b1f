"""Ends that come from outside a task's phases, and what a commit does to them.

While a writer commits, an end is *put off*: the first one is kept, later ones are dropped. When the commit was not the
final one, the kept end happens as soon as it returns; otherwise the writer's outcome is the task's outcome and the
kept end is dropped.
"""

from __future__ import annotations

from blockx_worker.core.books import Books
from blockx_worker.core.commands import ForgetResult, WorkerCommand
from blockx_worker.core.entries import End, Entry
from blockx_worker.core.events import (
    DrainExpired,
    DrainStarted,
    ResultRetentionElapsed,
    SlotLeaseExpired,
    TaskTimedOut,
)
from blockx_worker.core.states import DropReason, Move, SlotState
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure

__all__ = [
    "drain_expired",
    "drain_started",
    "finish_or_put_off",
    "lease_expired",
    "retention_elapsed",
    "task_timed_out",
]


def task_timed_out(books: Books, event: TaskTimedOut, now_ms: int) -> list[WorkerCommand]:
    """The deadline ends a submitted task in any phase."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("TaskTimedOut", event.task_id)]
    if entry.request is None:
        return [books.drop("TaskTimedOut", DropReason.NOT_SUBMITTED, event.task_id)]
    if now_ms < entry.deadline_ms:
        return [books.drop("TaskTimedOut", DropReason.TOO_EARLY, event.task_id)]
    message = f"the task ran longer than its timeout of {entry.request.timeout_ms} ms; it was in phase {entry.phase}"
    failure = TaskFailure(code=TaskFailureCode.TASK_TIMED_OUT, message=message)
    return finish_or_put_off(
        books, entry, End(event="TaskTimedOut", move=Move.TIMED_OUT, failure=failure), now_ms
    )


def lease_expired(books: Books, event: SlotLeaseExpired, now_ms: int) -> list[WorkerCommand]:
    """A leased slot is free again; a task that was submitted but not activated in time ends as SLOT_LOST."""
    slot = books.slots.find(event.slot_id)
    if slot is None:
        return [books.drop("SlotLeaseExpired", DropReason.NO_SUCH_LEASE)]
    if slot.state is SlotState.RUNNING:
        return [books.drop("SlotLeaseExpired", DropReason.SLOT_RUNNING, slot.task_id)]
    if not slot.lease_over(now_ms):
        return [books.drop("SlotLeaseExpired", DropReason.TOO_EARLY, slot.task_id)]
    entry = books.entries[slot.task_id]
    if not entry.submitted:
        return [books.release(entry, Move.LEASE_EXPIRED)]
    message = (
        f"the lease of slot {slot.slot_id} ended before the task was activated; it was in phase {entry.phase};"
        " submit it again under a new task_id"
    )
    failure = TaskFailure(code=TaskFailureCode.SLOT_LOST, message=message)
    return books.finish(entry, Move.LEASE_EXPIRED, failure, now_ms)


def drain_started(books: Books, _event: DrainStarted, _now_ms: int) -> list[WorkerCommand]:
    """No new work from now on."""
    if books.draining:
        return [books.drop("DrainStarted", DropReason.ALREADY_DRAINING)]
    books.draining = True
    return []


def drain_expired(books: Books, _event: DrainExpired, now_ms: int) -> list[WorkerCommand]:
    """What still holds a slot ends, in the order of the slots."""
    if not books.draining:
        return [books.drop("DrainExpired", DropReason.NOT_DRAINING)]
    commands: list[WorkerCommand] = []
    for entry in books.in_slot_order():
        commands += _shut_down(books, entry, now_ms)
    return commands


def retention_elapsed(books: Books, _event: ResultRetentionElapsed, now_ms: int) -> list[WorkerCommand]:
    """Results past their time go, oldest first."""
    return [ForgetResult(task_id=task_id) for task_id in books.results.purge_elapsed(now_ms)]


def finish_or_put_off(books: Books, entry: Entry, end: End, now_ms: int) -> list[WorkerCommand]:
    """End a submitted task now, or once the commit under way has returned."""
    if entry.after(end.move) is not entry.stage:
        return books.finish(entry, end.move, entry.telling_what_stays(end.failure), now_ms)
    if entry.put_off is not None:
        return [books.drop(end.event, DropReason.ALREADY_PUT_OFF, entry.task_id)]
    entry.put_off = end
    return []


def _shut_down(books: Books, entry: Entry, now_ms: int) -> list[WorkerCommand]:
    if not entry.submitted:
        return [books.release(entry, Move.DRAIN_EXPIRED)]
    message = f"the worker shut down before the task was done; it was in phase {entry.phase}; submit it to another worker"
    failure = TaskFailure(code=TaskFailureCode.WORKER_SHUTDOWN, message=message)
    return finish_or_put_off(
        books, entry, End(event="DrainExpired", move=Move.DRAIN_EXPIRED, failure=failure), now_ms
    )
