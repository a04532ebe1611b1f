"""States and transitions of a worker's registration, as data: the machine looks up every move here."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["INITIAL_STATE", "TRANSITIONS", "LeaseMove", "LeaseState"]


class LeaseState(StrEnum):
    """Whether the worker stands in etcd, as far as it knows."""

    UNREGISTERED = "UNREGISTERED"
    REGISTERING = "REGISTERING"
    REGISTERED = "REGISTERED"
    LOST = "LOST"


class LeaseMove(StrEnum):
    """What happens to a registration."""

    ATTEMPT_STARTED = "attempt started"
    REGISTERED = "value put under a new lease"
    ATTEMPT_FAILED = "attempt failed"
    REFRESHED = "lease refreshed"
    VALUE_PUT = "new value put"
    LEASE_GONE = "lease is gone"
    CALL_FAILED = "etcd did not answer"


INITIAL_STATE = LeaseState.UNREGISTERED

TRANSITIONS: dict[tuple[LeaseState, str], LeaseState] = {
    (LeaseState.UNREGISTERED, LeaseMove.ATTEMPT_STARTED): LeaseState.REGISTERING,
    (LeaseState.REGISTERING, LeaseMove.REGISTERED): LeaseState.REGISTERED,
    (LeaseState.REGISTERING, LeaseMove.ATTEMPT_FAILED): LeaseState.UNREGISTERED,
    (LeaseState.REGISTERED, LeaseMove.REFRESHED): LeaseState.REGISTERED,
    (LeaseState.REGISTERED, LeaseMove.VALUE_PUT): LeaseState.REGISTERED,
    (LeaseState.REGISTERED, LeaseMove.LEASE_GONE): LeaseState.LOST,
    (LeaseState.REGISTERED, LeaseMove.CALL_FAILED): LeaseState.LOST,
    (LeaseState.LOST, LeaseMove.ATTEMPT_STARTED): LeaseState.REGISTERING,
}
