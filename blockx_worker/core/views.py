"""Reads of WorkerCore: frozen views and the next deadline. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from blockx_worker.core.books import Books
from blockx_worker.core.states import SlotState

__all__ = [
    "WorkerCounts",
    "counts",
    "expired_slots",
    "grace_expired_tasks",
    "next_deadline",
    "timed_out_tasks",
]


@attrs.frozen(kw_only=True)
class WorkerCounts:
    """The worker in numbers. ``expired`` of the ``allocated`` slots are past their lease and wait for the sweep."""

    slots: int
    allocated: int
    running: int
    expired: int
    retained_results: int
    retained_bytes: int
    draining: bool


def counts(books: Books, now_ms: int) -> WorkerCounts:
    """The numbers at ``now_ms``."""
    return WorkerCounts(
        slots=len(books.slots),
        allocated=books.slots.count[SlotState.ALLOCATED],
        running=books.slots.count[SlotState.RUNNING],
        expired=len(expired_slots(books, now_ms)),
        retained_results=len(books.results),
        retained_bytes=books.results.total_bytes,
        draining=books.draining,
    )


def expired_slots(books: Books, now_ms: int) -> tuple[str, ...]:
    """Ids of the slots whose lease is past its end, in slot order."""
    return tuple(slot.slot_id for slot in books.slots if slot.lease_over(now_ms))


def timed_out_tasks(books: Books, now_ms: int) -> tuple[str, ...]:
    """Tasks past their deadline, in slot order; not those for which an end is put off."""
    entries = books.in_slot_order()
    return tuple(entry.task_id for entry in entries if entry.interruptible() and entry.deadline_ms <= now_ms)


def grace_expired_tasks(books: Books, now_ms: int) -> tuple[str, ...]:
    """Tasks past their watch grace, in slot order; not those for which an end is put off."""
    return tuple(
        entry.task_id
        for entry in books.in_slot_order()
        if entry.interruptible() and entry.grace_deadline_ms is not None and entry.grace_deadline_ms <= now_ms
    )


def next_deadline(books: Books) -> tuple[int, str] | None:
    """The next time (core ms) at which an event is due, and why; ties in the order leases, tasks, results."""
    return min(_deadlines(books), key=lambda deadline: deadline[0], default=None)


def _deadlines(books: Books) -> Iterator[tuple[int, str]]:
    for slot in books.slots:
        if slot.state is SlotState.ALLOCATED:
            yield slot.lease_end_ms, f"lease of slot {slot.slot_id}"
    for entry in books.in_slot_order():
        if not entry.interruptible():
            continue
        yield entry.deadline_ms, f"deadline of task {entry.task_id}"
        if entry.grace_deadline_ms is not None:
            yield entry.grace_deadline_ms, f"watch grace of task {entry.task_id}"
    if (due := books.results.next_due_ms()) is not None:
        yield due, "retention of the oldest result"
