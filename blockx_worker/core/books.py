"""The state of WorkerCore and the few ways to change it.

Slot table and task index change together here or not at all: `lease`, `release` and `finish` are the only ways into
and out of the index. The event methods (`requests`, `progress`, `watch`, `ends`) decide first and then call these.
"""

from __future__ import annotations

from blockx_worker.core.commands import ConvergeTask, Dropped, ForgetResult, PublishTask, WorkerCommand
from blockx_worker.core.entries import Entry
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.retention import ResultShelf, RetainedResult, record_bytes
from blockx_worker.core.slots import SlotTable
from blockx_worker.core.states import ENDED_STAGES, TASK_TRANSITIONS, VISIBLE, DropReason, Move, Stage
from blockx_worker.model.tasks import (
    TaskFailure,
    TaskPhase,
    TaskRequest,
    TaskResult,
    TaskSnapshot,
    TaskState,
    TaskStatistic,
)

__all__ = ["Books"]


class Books:
    """Slots, the index of task ids that hold one, retained results, and the count of drops."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.slots = SlotTable(limits.task_slots)
        self.entries: dict[str, Entry] = {}
        self.results = ResultShelf(limits)
        self.draining = False
        self.dropped: dict[tuple[str, str], int] = {}
        self._version = 0

    # --- reads ---------------------------------------------------------------------------------------------------

    def in_slot_order(self) -> tuple[Entry, ...]:
        """All entries in the order of their slots."""
        return tuple(self.entries[slot.task_id] for slot in self.slots if slot.task_id)

    def snapshot(self, task_id: str, now_ms: int) -> TaskSnapshot | None:
        """The id as clients see it; None when it is unknown."""
        if (entry := self.entries.get(task_id)) is not None:
            return self.entry_snapshot(entry, now_ms)
        if (kept := self.results.get(task_id)) is not None:
            return _ended_snapshot(kept.result, kept.slot_id)
        return None

    def entry_snapshot(self, entry: Entry, now_ms: int) -> TaskSnapshot:
        """A leased or unfinished task as clients see it."""
        allocated = entry.state is TaskState.ALLOCATED
        return TaskSnapshot(
            task_id=entry.task_id,
            slot_id=entry.slot.slot_id,
            state=entry.state,
            phase=entry.phase,
            lease_remaining_ms=max(0, entry.slot.lease_end_ms - now_ms) if allocated else 0,
        )

    # --- changes -------------------------------------------------------------------------------------------------

    def drop(self, event: str, reason: DropReason, task_id: str = "") -> Dropped:
        """Count an event that changes nothing."""
        key = (event, str(reason))
        self.dropped[key] = self.dropped.get(key, 0) + 1
        return Dropped(event=event, reason=reason, task_id=task_id)

    def drop_absent(self, event: str, task_id: str) -> Dropped:
        """Count an event for an id that holds no slot."""
        ended = self.results.get(task_id) is not None
        return self.drop(event, DropReason.TASK_ENDED if ended else DropReason.UNKNOWN_TASK, task_id)

    def lease(self, task_id: str, end_ms: int) -> Entry:
        """Lease the first free slot to ``task_id``."""
        slot = self.slots.lease(task_id, end_ms)
        entry = Entry(task_id=task_id, slot=slot, version=self._next_version())
        self.entries[task_id] = entry
        return entry

    def renew(self, entry: Entry, end_ms: int) -> None:
        """Give a lease a new end."""
        self.slots.renew(entry.slot, end_ms)
        entry.version = self._next_version()

    def submit(self, entry: Entry, request: TaskRequest, now_ms: int) -> None:
        """A leased id becomes a task; its deadline counts from now."""
        self.advance(entry, Move.SUBMITTED)
        entry.request = request
        entry.deadline_ms = now_ms + request.timeout_ms

    def activate(self, entry: Entry, epoch: int) -> None:
        """The task runs from now on, in the given epoch."""
        self.advance(entry, Move.ACTIVATION_PREPARED)
        self.slots.activate(entry.slot)
        entry.epoch = epoch

    def advance(self, entry: Entry, move: Move) -> None:
        """Go on to the next stage of an unfinished task; what clients see decides whether its version rises."""
        seen = (entry.state, entry.phase)
        entry.stage = TASK_TRANSITIONS[entry.stage, move]
        if (entry.state, entry.phase) != seen:
            entry.version = self._next_version()

    def release(self, entry: Entry, move: Move) -> PublishTask:
        """Give back a slot that was only leased; the id is unknown afterwards."""
        assert TASK_TRANSITIONS[entry.stage, move] is Stage.RELEASED
        self.slots.free(entry.slot)
        del self.entries[entry.task_id]
        return PublishTask(task_id=entry.task_id)

    def finish(
        self, entry: Entry, move: Move, failure: TaskFailure | None, now_ms: int
    ) -> list[WorkerCommand]:
        """End a task: free its slot, keep its result, purge what has no room any more."""
        stage = TASK_TRANSITIONS[entry.stage, move]
        assert stage in ENDED_STAGES
        assert entry.request is not None
        result = _result(entry, VISIBLE[stage][0], failure)
        retained = RetainedResult(
            result=result,
            slot_id=entry.slot.slot_id,
            fingerprint=entry.request.fingerprint,
            version=self._next_version(),
            ended_ms=now_ms,
            size=record_bytes(result) + entry.outcome.retained_bytes,
        )
        self.slots.free(entry.slot)
        del self.entries[entry.task_id]
        purged = self.results.store(retained)
        return [
            ConvergeTask(task_id=entry.task_id, result=result),
            *(ForgetResult(task_id=old) for old in purged),
        ]

    def _next_version(self) -> int:
        # One counter for all ids: an id that is used again never shows a version that it had before.
        self._version += 1
        return self._version


def _result(entry: Entry, state: TaskState, failure: TaskFailure | None) -> TaskResult:
    outcome = entry.outcome
    return TaskResult(
        task_id=entry.task_id,
        state=state,
        failure=failure,
        failed_calls=outcome.failed_calls,
        failed_calls_omitted=outcome.failed_calls_omitted,
        plugin_results=outcome.plugin_results,
        statistic=outcome.statistic or TaskStatistic(),
        output_count=outcome.output_count,
        output_bytes=outcome.output_bytes,
    )


def _ended_snapshot(result: TaskResult, slot_id: str) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=result.task_id, slot_id=slot_id, state=result.state, phase=TaskPhase.DONE, result=result
    )
