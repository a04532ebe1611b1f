"""Keeps what calls change of the interpreter from hurting the calls after them.

Signal handlers, recursion limit, switch interval and garbage collection belong to the process; user code may change
them, by itself or through a library. What was changed is put back between calls, in each round of the hub. A call that
runs for long keeps its changes, but not the handler that would stop it: when the monitor finds that its signals come to
nothing, it has the guard run in the main thread from wherever that is, as a pending call of the interpreter.

Threads, environment, working directory and what libraries keep are not put back.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal goes through an enum and takes ten times as long
import ctypes
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from blockx_executor.mainthread import INTERRUPT_SIGNAL, MainThread

__all__ = ["Guard"]

_Handler = Callable[[int, Any], object] | int

_PENDING_CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Guard:
    """Made on the main thread, with everything as it is to be."""

    def __init__(self, main: MainThread) -> None:
        self._main = main
        self._handlers: list[tuple[int, Any]] = [
            (number, _signal.getsignal(number))
            for number in (INTERRUPT_SIGNAL, signal.SIGTERM, signal.SIGINT)
        ]
        self._recursion_limit = sys.getrecursionlimit()
        self._switch_interval = sys.getswitchinterval()
        self._pending = _PENDING_CALL(
            self._restore_at_once
        )  # kept, as the interpreter holds its address only

    def restore(self) -> None:
        """Put back what was changed. On the main thread, in no call."""
        for number, handler in self._handlers:
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)
        if sys.getrecursionlimit() != self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        if sys.getswitchinterval() != self._switch_interval:
            sys.setswitchinterval(self._switch_interval)
        if not gc.isenabled():
            gc.enable()

    def signals_arrive(self) -> bool:
        """Whether the handlers are in place; a signal may be blocked all the same. From any thread."""
        return all(_signal.getsignal(number) is handler for number, handler in self._handlers)

    def restore_soon(self) -> None:
        """Put the handlers back while user code runs. From any thread; needs the main thread to run Python code."""
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _restore_at_once(self, _argument: object) -> int:
        main = self._main
        masked, main.masked = main.masked, True
        try:
            for number, handler in self._handlers:
                _signal.signal(number, handler)
            _signal.pthread_sigmask(signal.SIG_UNBLOCK, [number for number, _ in self._handlers])
        finally:
            main.masked = masked
        return 0
