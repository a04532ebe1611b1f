"""The states of a call, and what moves it from one to the next.

Inside an executor a call may be runnable, running or parked in a greenlet; none of that shows here. A call that waits
for an equal one in flight, or for the end of a back-off, is READY: it holds no executor.

DONE is final. A call is WAITING while at least one of its requests (a back end, a subcall) is open; fetching function
code leaves it RUNNING. Every end that is open to a running call is open to a waiting one: its budget may pass, its
code may raise on an earlier answer.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TRANSITIONS", "CallState"]


class CallState(StrEnum):
    """Where a call stands."""

    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    DONE = "DONE"


TRANSITIONS: dict[tuple[CallState, str], CallState] = {
    (CallState.READY, "dispatched"): CallState.RUNNING,
    (CallState.READY, "answered"): CallState.DONE,  # by an equal call
    (CallState.READY, "failed"): CallState.DONE,  # with an equal call
    (CallState.READY, "cancelled"): CallState.DONE,
    (CallState.RUNNING, "waits"): CallState.WAITING,
    (CallState.RUNNING, "completed"): CallState.DONE,
    (CallState.RUNNING, "failed"): CallState.DONE,
    (CallState.RUNNING, "cancelled"): CallState.DONE,
    (CallState.RUNNING, "retried"): CallState.READY,  # charged, after a back-off
    (CallState.RUNNING, "refused"): CallState.READY,  # never ran, after a short back-off
    (
        CallState.RUNNING,
        "returned",
    ): CallState.READY,  # innocent of the loss of its executor, or never started there
    (CallState.WAITING, "resumed"): CallState.RUNNING,  # nothing is open any more
    (
        CallState.WAITING,
        "interrupted",
    ): CallState.RUNNING,  # its cancel was ordered: it waits for nothing any more
    (CallState.WAITING, "completed"): CallState.DONE,
    (CallState.WAITING, "failed"): CallState.DONE,
    (CallState.WAITING, "cancelled"): CallState.DONE,
    (CallState.WAITING, "retried"): CallState.READY,
    (CallState.WAITING, "refused"): CallState.READY,
    (CallState.WAITING, "returned"): CallState.READY,
}
