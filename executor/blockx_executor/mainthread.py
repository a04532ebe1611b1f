"""Who owns the main thread, and whether it may be interrupted right now.

User code runs unmasked: the signal handler raises the call's stop exception in it, wherever it is. All other code of
the executor runs masked, that of the SDK and of the output streams included: there the handler only notes that a
signal came, and it is raised where the mask ends. So an interrupt never lands in the engine, and never in another
call: the handler asks the call that owns the thread *now* whether it is to be stopped, and nothing else.

CPython runs signal handlers between bytecodes of the main thread, in whichever greenlet is current.

A child process that user code forked is a copy of all this, the socket included. It may do what it likes, but where it
comes back to the executor it ends (`end_forked`): what it sent and read would be sent and read in our name.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Final, NoReturn

from blockx_executor.calls import BudgetExceeded, Call, CallStopped

__all__ = ["INTERRUPT_SIGNAL", "MainThread"]

INTERRUPT_SIGNAL: Final = signal.SIGRTMIN + 6
"""A real-time signal that neither libc nor the usual profilers use."""


class MainThread:
    """Shared by engine, monitor, SDK and output streams; plain attributes, each stored whole under the GIL."""

    __slots__ = ("forked", "ident", "loading", "masked", "running")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.running: Call | None = None
        self.loading = False
        self.masked = True
        self.forked = False

    def install(self) -> None:
        """Install the handlers; to be called on the main thread."""
        signal.signal(INTERRUPT_SIGNAL, self._on_signal)
        os.register_at_fork(after_in_child=self._after_fork)

    def interrupt(self) -> None:
        """Make the main thread run the handler, also when it waits in a system call. From any thread."""
        signal.pthread_kill(self.ident, INTERRUPT_SIGNAL)

    def unmask(self) -> None:
        """End a masked stretch in user code; raises what was deferred in it."""
        self.masked = False
        call = self.running
        if call is not None and call.deferred:
            call.deferred = False
            if call.stop is not None:
                raise stop_exception(call)

    def end_forked(self, error: BaseException | None = None) -> NoReturn:
        """End a forked child as Python ends a program: ``error`` is what it raised, if anything."""
        code = 0 if error is None else 1
        try:
            if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
                code = error.code or 0
            elif error is not None:
                traceback.print_exception(error, file=sys.stderr)
        finally:
            os._exit(code & 0xFF)

    def _after_fork(self) -> None:
        self.forked = True

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        call = self.running
        if call is None or call.stop is None:
            return
        if self.masked:
            call.deferred = True
            return
        raise stop_exception(call)


def stop_exception(call: Call) -> CallStopped:
    """The exception that tells the user code of ``call`` to stop."""
    kind = call.stop or BudgetExceeded
    if kind is BudgetExceeded:
        return kind(f"{call.name} is over its budget of {call.payload.call_budget_ms} ms")
    return kind(f"{call.name} was cancelled: {call.stop_reason}")
