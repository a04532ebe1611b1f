"""Whose turn it is: the main thread passes from the engine to a call and back.

A turn is a stretch in which one call owns the main thread. It begins with `Turns.own`, which gives the link's lock away,
and ends with `Turns.disown`, which takes it. The black box hears of both.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from blockx_executor.calls import NEVER, Call
from blockx_executor.link import Link
from blockx_executor.mainthread import MainThread
from blockx_executor.wire.blackbox import BlackBoxWriter

__all__ = ["Turns", "account", "stop_tracing"]

_MS: Final = 1_000_000

_now: Final = time.monotonic_ns


class Turns:
    """``switched_ns`` is when the last turn ended, ``last`` whose it was."""

    __slots__ = ("_box", "_link", "_main", "last", "switched_ns")

    def __init__(self, *, link: Link, main: MainThread, box: BlackBoxWriter) -> None:
        self._link = link
        self._main = main
        self._box = box
        self.switched_ns = 0
        self.last: Call | None = None

    def own(self, call: Call) -> None:
        """The call owns the main thread from now on; gives the lock away."""
        now, left_ns = _now(), call.left_ns()
        call.slice_started_ns = now
        call.deadline_ns = now + left_ns
        self._box.running(call.payload.call_no, now, 0 if left_ns == NEVER else left_ns // _MS + 1)
        self._main.running = call
        self._link.lock.release()

    def disown(self, now: int) -> None:
        """The engine owns the main thread again; takes the lock."""
        self._link.lock.acquire()
        main = self._main
        self.last, main.running = main.running, None
        self._box.idle(now)
        self.switched_ns = now

    def step_aside(self, call: Call) -> int:
        """Account for the turn of ``call`` and end it; returns the time."""
        stop_tracing()
        now = _now()
        account(call, now)
        self.disown(now)
        return now

    def blame_last(self) -> None:
        """Name the call whose turn was the last in the black box: the process ends by what it left behind."""
        if self.last is not None:
            self._box.running(self.last.payload.call_no, _now(), 0)


def account(call: Call, now: int) -> None:
    """The turn of ``call`` ends at ``now``."""
    owned = now - call.slice_started_ns
    call.used_ns += owned
    call.ran_ns += owned


def stop_tracing() -> None:
    """End the trace functions of user code: they would be called in the engine, and in the calls after it.

    One that raises has ended itself by that.
    """
    sys.settrace(None)
    sys.setprofile(None)
