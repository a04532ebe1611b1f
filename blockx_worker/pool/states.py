"""States and transitions of an executor slot, as data: the machine looks up every move here, and the docs draw it.

There is no state for "starting": a slot is RUNNING from the moment its process was ordered. Whether the process is
there yet shows in its pid, and whether it can take calls is for the connection to say.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["INITIAL_STATE", "TRANSITIONS", "PoolDropReason", "PoolMove", "PoolSlotState"]


class PoolSlotState(StrEnum):
    """One place for an executor process."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"
    BACKOFF = "BACKOFF"
    STOPPED = "STOPPED"


class PoolMove(StrEnum):
    """What happens to a slot."""

    POOL_STARTED = "pool started"
    EXITED = "process exited or could not start"
    EXITED_TOO_OFTEN = "too many exits within the window"
    EXITED_DELIBERATELY = "process ended deliberately"
    DELAY_OVER = "delay over"
    POOL_STOPPED = "pool stopped"


INITIAL_STATE = PoolSlotState.STOPPED

TRANSITIONS: dict[tuple[PoolSlotState, str], PoolSlotState] = {
    (PoolSlotState.STOPPED, PoolMove.POOL_STARTED): PoolSlotState.RUNNING,
    (PoolSlotState.RUNNING, PoolMove.EXITED): PoolSlotState.WAITING,
    (PoolSlotState.RUNNING, PoolMove.EXITED_TOO_OFTEN): PoolSlotState.BACKOFF,
    (PoolSlotState.RUNNING, PoolMove.EXITED_DELIBERATELY): PoolSlotState.RUNNING,
    (PoolSlotState.WAITING, PoolMove.DELAY_OVER): PoolSlotState.RUNNING,
    (PoolSlotState.BACKOFF, PoolMove.DELAY_OVER): PoolSlotState.RUNNING,
    (PoolSlotState.RUNNING, PoolMove.POOL_STOPPED): PoolSlotState.STOPPED,
    (PoolSlotState.WAITING, PoolMove.POOL_STOPPED): PoolSlotState.STOPPED,
    (PoolSlotState.BACKOFF, PoolMove.POOL_STOPPED): PoolSlotState.STOPPED,
}


class PoolDropReason(StrEnum):
    """Why an event changed nothing."""

    STARTED_BEFORE = "the pool was started before"
    NOT_RUNNING = "the pool does not run"
    NO_SUCH_SLOT = "no such slot"
    OLD_GENERATION = "another generation"
    PROCESS_GONE = "the process is gone already"
    SPAWNED_BEFORE = "the process was spawned before"
