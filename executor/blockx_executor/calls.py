"""A call as the executor keeps it, and the two exceptions that stop one.

One `Call` record lives from the arrival of its ExecuteCall to its terminal frame and is never used again for another
call. So whoever still holds it afterwards, the monitor for one, can only mark a record that nobody looks at.
"""

from __future__ import annotations

import enum
from typing import Final

import greenlet
import msgspec

from blockx_executor.waits import Wait
from blockx_executor.wire.messages import ExecuteCall, ExecuteCallPayload

__all__ = ["NEVER", "BudgetExceeded", "Call", "CallCancelled", "CallState", "CallStopped", "new_call"]

NEVER: Final = 2**62
"""A deadline in monotonic ns that no clock reaches."""

_SECOND_SIGNAL_NS: Final = 250_000_000
_NEXT_SIGNAL_NS: Final = 50_000_000


class CallStopped(BaseException):
    """Raised inside user code to stop it; not an `Exception`, so that ``except Exception`` lets it pass."""


class BudgetExceeded(CallStopped):
    """The call has used up its budget."""


class CallCancelled(CallStopped):
    """The worker no longer wants the call."""


class CallState(enum.Enum):
    """Where a call stands in the executor."""

    READY = "ready"  # in the ready queue, not started
    AWAITS_CODE = "awaits_code"  # not started, its digest was asked for
    RUNNING = "running"  # owns the main thread
    SLEEPING = "sleeping"  # in sdk.sleep
    WAITING = "waiting"  # for answers of the worker
    RESUMABLE = "resumable"  # ready to go on
    DONE = "done"  # its terminal frame is on its way


class Call(msgspec.Struct, eq=False):
    """One attempt of a call.

    Times are monotonic ns. ``used_ns`` is the budget used in finished slices; a slice is a stretch of owning the main
    thread. ``stop`` is set once by whoever wants the call to end; ``deferred`` says that its signal fell into code of
    the SDK and is to be raised where that ends. ``wait`` is the present wait, or the last one.
    """

    call_id: str
    payload: ExecuteCallPayload
    budget_ns: int
    state: CallState = CallState.READY
    greenlet: greenlet.greenlet | None = None
    used_ns: int = 0
    ran_ns: int = 0
    slice_started_ns: int = 0
    deadline_ns: int = NEVER
    wake_ns: int = 0
    wait: Wait | None = None
    stop: type[CallStopped] | None = None
    stop_reason: str = ""
    deferred: bool = False
    signals: int = 0
    next_signal_ns: int = 0
    reporting: bool = False
    error: BaseException | None = None
    partial_lines: dict[str, str | None] | None = None

    @property
    def name(self) -> str:
        """How messages for people name the call."""
        return f"Call {self.call_id} of {self.payload.function_id}"

    def left_ns(self) -> int:
        """What is left of the budget, not counting the slice that runs now; `NEVER` without a budget."""
        return max(0, self.budget_ns - self.used_ns) if self.budget_ns else NEVER

    def note_signal(self, now_ns: int) -> None:
        """The stop is brought to user code now: when to bring it again, as it may be swallowed."""
        self.next_signal_ns = now_ns + (_NEXT_SIGNAL_NS if self.signals else _SECOND_SIGNAL_NS)
        self.signals += 1


def new_call(message: ExecuteCall) -> Call:
    """The record of the call that ``message`` wants to be run."""
    payload = message.payload
    return Call(message.call_id, payload, payload.call_budget_ms * 1_000_000)
