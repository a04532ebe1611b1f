"""WorkerCore: admission, phases and ends of tasks, decided in one place.

The machine holds a fixed table of slots, the tasks that hold one, and the results of ended tasks. It changes only
through `WorkerCore.handle`; everything else is a read. It knows no clock: ``now_ms`` is core time in ms, which never
goes back.

The rules that are easily forgotten:

* The first command for a request (slot, submit, cancel) is its one answer.
* A task ends in exactly one call of `handle`: slot freed, result kept and `ConvergeTask` ordered together.
* An event that is too late, too early or for something else changes nothing and yields a counted `Dropped`.
* While a writer commits nothing else ends its task; see `blockx_worker.core.ends`.
* A deadline counts from acceptance. Leases, deadlines and graces are *due* from their very millisecond on; events that
  report them earlier are dropped, and the reads for the sweep (`expired_slots` and its like) name what is due.
"""

from __future__ import annotations

from typing import assert_never

from blockx_worker.core import ends, invariants, progress, requests, views, watch
from blockx_worker.core.books import Books
from blockx_worker.core.commands import WorkerCommand
from blockx_worker.core.events import (
    CancelTaskRequested,
    DrainExpired,
    DrainStarted,
    ResultRetentionElapsed,
    SlotLeaseExpired,
    SlotRequested,
    SubmitRequested,
    TaskActivationFailed,
    TaskActivationPrepared,
    TaskMeasured,
    TaskPhaseFinished,
    TaskTimedOut,
    WatchAttached,
    WatchDetached,
    WatchGraceExpired,
    WorkerEvent,
    WriterCommitEnded,
    WriterCommitStarted,
)
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.views import WorkerCounts
from blockx_worker.model.tasks import TaskPhase, TaskSnapshot

__all__ = ["WorkerCore"]


class WorkerCore:
    """The pure machine of slots and tasks: events in, commands out."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._books = Books(limits)

    def handle(self, event: WorkerEvent, now_ms: int) -> list[WorkerCommand]:  # noqa: C901, PLR0911, PLR0912 - one arm per event
        """Take in one event; the commands that follow, in order."""
        books = self._books
        match event:
            case SlotRequested():
                return requests.slot_requested(books, event, now_ms)
            case SubmitRequested():
                return requests.submit_requested(books, event, now_ms)
            case CancelTaskRequested():
                return requests.cancel_task_requested(books, event, now_ms)
            case TaskActivationPrepared():
                return progress.activation_prepared(books, event, now_ms)
            case TaskActivationFailed():
                return progress.activation_failed(books, event, now_ms)
            case TaskPhaseFinished():
                return progress.phase_finished(books, event, now_ms)
            case TaskMeasured():
                return progress.measured(books, event, now_ms)
            case WriterCommitStarted():
                return progress.commit_started(books, event, now_ms)
            case WriterCommitEnded():
                return progress.commit_ended(books, event, now_ms)
            case WatchAttached():
                return watch.watch_attached(books, event, now_ms)
            case WatchDetached():
                return watch.watch_detached(books, event, now_ms)
            case WatchGraceExpired():
                return watch.watch_grace_expired(books, event, now_ms)
            case TaskTimedOut():
                return ends.task_timed_out(books, event, now_ms)
            case SlotLeaseExpired():
                return ends.lease_expired(books, event, now_ms)
            case ResultRetentionElapsed():
                return ends.retention_elapsed(books, event, now_ms)
            case DrainStarted():
                return ends.drain_started(books, event, now_ms)
            case DrainExpired():
                return ends.drain_expired(books, event, now_ms)
            case _:
                assert_never(event)

    # --- one task ------------------------------------------------------------------------------------------------

    def snapshot(self, task_id: str, now_ms: int) -> TaskSnapshot | None:
        """A leased, unfinished or retained task as clients see it; None when the id is unknown."""
        return self._books.snapshot(task_id, now_ms)

    def is_active(self, task_id: str) -> bool:
        """True from acceptance to the end; False for an id that only holds a lease."""
        entry = self._books.entries.get(task_id)
        return entry is not None and entry.submitted

    def phase_of(self, task_id: str) -> TaskPhase | None:
        """The phase; DONE for a retained task, None for an id that is unknown or only leased."""
        if (entry := self._books.entries.get(task_id)) is not None:
            return entry.phase
        return None if self._books.results.get(task_id) is None else TaskPhase.DONE

    def epoch_of(self, task_id: str) -> int | None:
        """The function code epoch of a running task."""
        entry = self._books.entries.get(task_id)
        return None if entry is None else entry.epoch

    def version_of(self, task_id: str) -> int:
        """Rises with every change that clients can see, also when an id is used again; 0 for an unknown id."""
        known = self._books.entries.get(task_id) or self._books.results.get(task_id)
        return 0 if known is None else known.version

    # --- all of them ---------------------------------------------------------------------------------------------

    def active_tasks(self) -> tuple[str, ...]:
        """Ids of the accepted, unfinished tasks in slot order."""
        return tuple(entry.task_id for entry in self._books.in_slot_order() if entry.submitted)

    def counts(self, now_ms: int) -> WorkerCounts:
        """The worker in numbers."""
        return views.counts(self._books, now_ms)

    @property
    def drained(self) -> bool:
        """True once a draining worker has no unfinished task; slots that are only leased do not hold it up."""
        return self._books.draining and not self.active_tasks()

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Dropped events, counted by (event, reason)."""
        return dict(self._books.dropped)

    # --- time ----------------------------------------------------------------------------------------------------

    def expired_slots(self, now_ms: int) -> tuple[str, ...]:
        """Slots whose lease is past its end, in slot order: post `SlotLeaseExpired` for each."""
        return views.expired_slots(self._books, now_ms)

    def timed_out_tasks(self, now_ms: int) -> tuple[str, ...]:
        """Tasks past their deadline, in slot order: post `TaskTimedOut` for each. Not those with an end put off."""
        return views.timed_out_tasks(self._books, now_ms)

    def grace_expired_tasks(self, now_ms: int) -> tuple[str, ...]:
        """Tasks past their watch grace, in slot order: post `WatchGraceExpired` for each. Not those with an end put off."""
        return views.grace_expired_tasks(self._books, now_ms)

    def next_deadline(self) -> tuple[int, str] | None:
        """The next time (core ms) at which one of the sweeps finds something, and what; None when nothing is due ever."""
        return views.next_deadline(self._books)

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts itself; for tests and simulations."""
        invariants.check(self._books)
