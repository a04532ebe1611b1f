"""The states of a call, and what moves it from one to the next.

Inside an executor a call may be runnable, running or parked in a greenlet; none of that shows here. A call that waits
for an equal one in flight, or for the end of a back-off, is READY: it holds no executor.

DONE is final. WAITING is the state of a call that gave up its main thread for IO or a subcall; nothing moves a call
there yet, since fetching function code leaves a call RUNNING.
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
    (CallState.RUNNING, "completed"): CallState.DONE,
    (CallState.RUNNING, "failed"): CallState.DONE,
    (CallState.RUNNING, "cancelled"): CallState.DONE,
    (CallState.RUNNING, "retried"): CallState.READY,  # charged, after a back-off
    (CallState.RUNNING, "refused"): CallState.READY,  # never ran, after a short back-off
    (CallState.RUNNING, "returned"): CallState.READY,  # innocent of the loss of its executor
}
