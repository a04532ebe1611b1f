"""What is true of the books after every event; tests check it each time."""

from __future__ import annotations

from blockx_worker.core.books import Books
from blockx_worker.core.entries import Entry
from blockx_worker.core.states import COMMITTING_STAGES, ENDED_STAGES, SlotState, Stage

__all__ = ["check"]

_SLOT_STATE = {
    Stage.LEASED: SlotState.ALLOCATED,
    Stage.PREPARING: SlotState.ALLOCATED,
    Stage.BUILDER: SlotState.RUNNING,
    Stage.CALLS: SlotState.RUNNING,
    Stage.CALLS_COMMITTING: SlotState.RUNNING,
    Stage.PLUGIN: SlotState.RUNNING,
    Stage.COMMITTING: SlotState.RUNNING,
    Stage.COMMITTING_FINAL: SlotState.RUNNING,
}


def check(books: Books) -> None:
    """Raise AssertionError when the books contradict themselves."""
    _check_slots(books)
    for task_id, entry in books.entries.items():
        assert entry.task_id == task_id
        _check_entry(books, entry)
    _check_results(books)


def _check_slots(books: Books) -> None:
    slots = tuple(books.slots)
    assert len(slots) == books.limits.task_slots
    for state, kept in books.slots.count.items():
        assert kept == sum(slot.state is state for slot in slots), f"count of {state}"
    taken = [slot for slot in slots if slot.state is not SlotState.FREE]
    assert len({slot.slot_id for slot in taken}) == len(taken), "two slots under one id"
    assert sorted(slot.task_id for slot in taken) == sorted(books.entries), "slot table and task index differ"
    for slot in slots:
        assert (slot.state is SlotState.FREE) == (slot.task_id == "") == (slot.slot_id == "")


def _check_entry(books: Books, entry: Entry) -> None:
    assert entry.stage not in (*ENDED_STAGES, Stage.RELEASED), "an ended task holds a slot"
    assert books.results.get(entry.task_id) is None, "a task is active and ended at once"
    assert entry.slot.task_id == entry.task_id
    assert entry.slot.state is _SLOT_STATE[entry.stage]
    assert entry.submitted == (entry.request is not None)
    assert (entry.epoch is not None) == (entry.slot.state is SlotState.RUNNING)
    assert entry.watchers >= 0
    if entry.grace_deadline_ms is not None:
        assert entry.submitted
        assert entry.watchers == 0, "the grace runs although an owner is attached"
    if entry.put_off is not None:
        assert entry.stage in COMMITTING_STAGES, "an end is put off without a commit"


def _check_results(books: Books) -> None:
    kept = books.results.values()
    assert books.results.total_bytes == sum(result.size for result in kept)
    assert len(kept) <= books.limits.result_retention_count
    assert books.results.total_bytes <= books.limits.result_retention_bytes or len(kept) == 1
    for result in kept:
        assert result.result.state in {str(stage) for stage in ENDED_STAGES}
