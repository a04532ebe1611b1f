"""The SDK's side of the engine: what the call that runs now may ask for.

A call that rests or waits ends its turn and switches to the hub, in its own greenlet; when it is switched back to, its
next turn begins. All that is masked. A stop that came in between, or that was there before, is raised at the end of the
mask, so a call that is to stop can neither rest nor wait.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import greenlet

from blockx_executor.answers import waiting
from blockx_executor.calls import NEVER, BudgetExceeded, Call, CallState
from blockx_executor.link import Link
from blockx_executor.loader import Loader
from blockx_executor.mainthread import MainThread
from blockx_executor.scheduler import Scheduler
from blockx_executor.sdk import CurrentCall
from blockx_executor.turns import Turns
from blockx_executor.waits import Answer, Request

__all__ = ["CallRuntime"]

_MS: Final = 1_000_000

_now: Final = time.monotonic_ns


class CallRuntime:
    """Implements `sdk.Runtime`. Made on the main thread, in the greenlet of the hub."""

    def __init__(
        self, *, link: Link, main: MainThread, scheduler: Scheduler, loader: Loader, turns: Turns
    ) -> None:
        self._link = link
        self._main = main
        self._scheduler = scheduler
        self._loader = loader
        self._turns = turns
        self._hub = greenlet.getcurrent()

    def current(self) -> CurrentCall:
        """The call that asks, for `sdk.current`."""
        call = self._asking("current")
        payload = call.payload
        left_ms = max(0, call.deadline_ns - _now()) // _MS if call.budget_ns else None
        return CurrentCall(
            task_id=payload.task_id,
            call_id=call.call_id,
            function_id=payload.function_id,
            attempt=payload.attempt_seq,
            remaining_budget_ms=left_ms,
            deadline_unix_ms=payload.task_deadline_unix_ms,
        )

    def function_id(self, name: str, function: object) -> str:
        """The id of ``function``, for `sdk.call` and `sdk.gather`."""
        call = self._asking(name)
        if isinstance(function, str):
            return function
        code = self._loader.get(call.payload.function_code_digest)
        assert code is not None  # code in use is not evicted
        return code.function_id(function)

    def sleep(self, seconds: float) -> None:
        """Let the asking call rest, for `sdk.sleep`."""
        call = self._asking("sleep")
        if not 0 <= seconds < NEVER / 1e9:
            raise ValueError(f"sdk.sleep({seconds!r}): seconds must be a number from 0 on.")
        self._main.masked = True
        try:
            if call.stop is None:
                self._rest(call, int(seconds * 1e9))
            _bring_stop(call)
        finally:
            self._main.unmask()

    def wait(self, name: str, requests: Sequence[Request]) -> list[Answer]:
        """Let the asking call wait for the worker, for all that `sdk` asks of it."""
        call = self._asking(name)
        answers: list[Answer | None] = []
        self._main.masked = True
        try:
            if call.stop is None and requests:
                answers = self._await(call, requests)
            _bring_stop(call)
        finally:
            self._main.unmask()
        return answers  # type: ignore[return-value]  # complete, or the call is stopped

    def _rest(self, call: Call, rest_ns: int) -> None:
        now = self._turns.step_aside(call)
        left_ns = call.left_ns()
        self._scheduler.sleep(call, now + min(rest_ns, left_ns))
        self._hub.switch()
        call.state = CallState.RUNNING
        call.used_ns += min(_now() - now, rest_ns, left_ns)  # the wait in the queue after waking is free
        if rest_ns >= left_ns and call.stop is None and not call.left_ns():
            call.stop = BudgetExceeded
        self._turns.own(call)

    def _await(self, call: Call, requests: Sequence[Request]) -> list[Answer | None]:
        now = self._turns.step_aside(call)
        left_ns = call.left_ns()
        if not left_ns:
            call.stop = BudgetExceeded
            self._turns.own(call)
            return []
        left_ms = 0 if left_ns == NEVER else -(-left_ns // _MS)
        wait = self._scheduler.wait(call, len(requests), now)
        for request_id, request in zip(list(wait.open), requests, strict=True):
            self._link.send(waiting(call, request_id, request, left_ms))
        self._hub.switch()
        call.state = CallState.RUNNING
        call.wait = None
        self._turns.own(call)
        return wait.answers

    def _asking(self, name: str) -> Call:
        main = self._main
        if main.forked:
            raise RuntimeError(
                f"sdk.{name}() was used in a forked process; only the call itself may use the SDK."
            )
        if threading.get_ident() != main.ident:
            raise RuntimeError(
                f"sdk.{name}() was used in a thread; only the code of the call itself may use the SDK."
            )
        call = main.running
        if call is None or main.masked or call.reporting:
            raise RuntimeError(
                f"sdk.{name}() was used where no call runs, such as the top level of a module."
            )
        if greenlet.getcurrent() is not call.greenlet:
            raise RuntimeError(
                f"sdk.{name}() was used in a greenlet of its own; use it in the code of the call itself."
            )
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public function raises
            raise RuntimeError(f"sdk.{name}() was used inside a running asyncio loop, which it would block.")
        return call


def _bring_stop(call: Call) -> None:
    """Make the end of the mask raise the stop of ``call``, if there is one."""
    if call.stop is not None and not call.deferred:
        call.deferred = True
        call.note_signal(_now())
