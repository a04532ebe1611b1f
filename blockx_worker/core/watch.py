"""Owning watchers: a task whose last owner went away ends after a grace, unless an owner comes back in time.

A task that never had an owner is never ended for the lack of one. A watcher of a slot that is only leased is counted,
but its going away arms nothing: the lease ends by itself. A grace that passed during a commit stays decided, even when
an owner comes back before the commit returns.
"""

from __future__ import annotations

from blockx_worker.core.books import Books
from blockx_worker.core.commands import ArmWatchGrace, DisarmWatchGrace, WorkerCommand
from blockx_worker.core.ends import finish_or_put_off
from blockx_worker.core.entries import End
from blockx_worker.core.events import WatchAttached, WatchDetached, WatchGraceExpired
from blockx_worker.core.states import DropReason, Move
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure

__all__ = ["watch_attached", "watch_detached", "watch_grace_expired"]


def watch_attached(books: Books, event: WatchAttached, _now_ms: int) -> list[WorkerCommand]:
    """One owner more; a running grace is off."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("WatchAttached", event.task_id)]
    entry.watchers += 1
    if entry.grace_deadline_ms is None:
        return []
    entry.grace_deadline_ms = None
    return [DisarmWatchGrace(task_id=entry.task_id)]


def watch_detached(books: Books, event: WatchDetached, now_ms: int) -> list[WorkerCommand]:
    """One owner less; the last one starts the grace of a submitted task."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("WatchDetached", event.task_id)]
    if entry.watchers == 0:
        return [books.drop("WatchDetached", DropReason.NO_WATCHER, event.task_id)]
    entry.watchers -= 1
    grace_ms = books.limits.watch_disconnect_grace_ms
    if entry.watchers or not entry.submitted or not grace_ms:
        return []
    entry.grace_deadline_ms = now_ms + grace_ms
    return [ArmWatchGrace(task_id=entry.task_id, deadline_ms=entry.grace_deadline_ms)]


def watch_grace_expired(books: Books, event: WatchGraceExpired, now_ms: int) -> list[WorkerCommand]:
    """No owner came back: the task ends."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("WatchGraceExpired", event.task_id)]
    if entry.grace_deadline_ms is None:
        return [books.drop("WatchGraceExpired", DropReason.GRACE_NOT_ARMED, event.task_id)]
    if now_ms < entry.grace_deadline_ms:
        return [books.drop("WatchGraceExpired", DropReason.TOO_EARLY, event.task_id)]
    message = (
        f"no owning watcher came back within {books.limits.watch_disconnect_grace_ms} ms after the last one went away;"
        f" the task was in phase {entry.phase}"
    )
    failure = TaskFailure(code=TaskFailureCode.WATCH_DISCONNECTED, message=message)
    end = End(event="WatchGraceExpired", move=Move.WATCH_GRACE_EXPIRED, failure=failure)
    return finish_or_put_off(books, entry, end, now_ms)
