"""The table of slots: fixed places in a fixed order, each FREE, ALLOCATED (leased) or RUNNING.

A slot id names one *lease* of a place, not the place (``slot-3-17``: the worker's 17th lease, in place 3), so that a
late event or client of an earlier lease never matches a later one.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from blockx_worker.core.states import INITIAL_SLOT_STATE, SLOT_TRANSITIONS, SlotMove, SlotState

__all__ = ["Slot", "SlotTable"]


@attrs.define(kw_only=True)
class Slot:
    """One place. Ids are empty while FREE; ``lease_end_ms`` (core time) counts only while ALLOCATED."""

    position: int
    state: SlotState = INITIAL_SLOT_STATE
    slot_id: str = ""
    task_id: str = ""
    lease_end_ms: int = 0

    def lease_over(self, now_ms: int) -> bool:
        """True when the lease is past its end, swept or not; a RUNNING slot has no lease any more."""
        return self.state is SlotState.ALLOCATED and now_ms >= self.lease_end_ms


class SlotTable:
    """All slots of the worker, with a running count by state."""

    def __init__(self, size: int) -> None:
        self._slots = tuple(Slot(position=position) for position in range(size))
        self._leases = 0
        self.count = {state: size if state is INITIAL_SLOT_STATE else 0 for state in SlotState}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def free_capacity(self) -> int:
        """Slots that are neither ALLOCATED nor RUNNING."""
        return self.count[SlotState.FREE]

    def find(self, slot_id: str) -> Slot | None:
        """The slot that is held under this id now."""
        return next((slot for slot in self._slots if slot_id and slot.slot_id == slot_id), None)

    def lease(self, task_id: str, end_ms: int) -> Slot:
        """Lease the first free slot in order; the caller has checked that there is one."""
        slot = next(slot for slot in self._slots if slot.state is SlotState.FREE)
        self._move(slot, SlotMove.LEASED)
        self._leases += 1
        slot.slot_id = f"slot-{slot.position}-{self._leases}"
        slot.task_id = task_id
        slot.lease_end_ms = end_ms
        return slot

    def renew(self, slot: Slot, end_ms: int) -> None:
        """Give a lease a new end; it keeps its id."""
        self._move(slot, SlotMove.LEASE_RENEWED)
        slot.lease_end_ms = end_ms

    def activate(self, slot: Slot) -> None:
        """The task in the slot runs; its lease no longer counts."""
        self._move(slot, SlotMove.ACTIVATED)

    def free(self, slot: Slot) -> None:
        """The slot can be leased again."""
        self._move(slot, SlotMove.FREED)
        slot.slot_id = slot.task_id = ""
        slot.lease_end_ms = 0

    def _move(self, slot: Slot, move: SlotMove) -> None:
        after = SLOT_TRANSITIONS[slot.state, move]
        self.count[slot.state] -= 1
        self.count[after] += 1
        slot.state = after
