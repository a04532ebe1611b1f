"""The engine: runs calls on the main thread, one greenlet each, and talks to the worker between them.

The hub is the thread's first greenlet. It reads frames, hands the next ready call to an idle greenlet (a new greenlet
costs ten times a switch, so they are used again), and sends results. A call that sleeps switches back to the hub and
keeps its greenlet.

Three rules carry everything else:

* The main thread holds the link's lock except in user code and while it waits for the socket (`link`).
* User code runs between `_own` and `_disown`; only there is the thread unmasked (`mainthread`). The flag is a plain
  store around the call of user code, and the outer ``except`` stores it again, so an interrupt that strikes between
  the end of user code and the first store is caught and the second store ends it.
* Whether a call was stopped is decided once, after the window is closed: user code that swallowed the interrupt and
  returned a value was still stopped.

The hub answers the worker after at most `_SERVICE_RESULTS` results or `_SERVICE_NS`, so that results never wait for a
whole batch and cancels are seen between short calls.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import greenlet
import msgspec

from blockx_executor.answers import completed, failed, stopped
from blockx_executor.calls import NEVER, BudgetExceeded, Call, CallState
from blockx_executor.failure import Failure, fill_report
from blockx_executor.inbox import Inbox
from blockx_executor.link import Link
from blockx_executor.loader import Entry, LoadedCode, Loader
from blockx_executor.mainthread import MainThread
from blockx_executor.pulse import Pulse
from blockx_executor.scheduler import Scheduler
from blockx_executor.sdk import CurrentCall
from blockx_executor.userlog import LogWriter
from blockx_executor.wire.blackbox import BlackBoxWriter
from blockx_executor.wire.json_rules import (
    ArgsInvalid,
    OutputNotJson,
    OutputTooLarge,
    decode_args,
    encode_output,
)

__all__ = ["Engine"]

_SERVICE_RESULTS: Final = 32
_SERVICE_NS: Final = 2_000_000
_REPORT_NS: Final = 1_000_000_000
_MAX_CHAIN: Final = 16
_MS: Final = 1_000_000
_KINDS: Final[dict[type[BaseException], str]] = {
    ArgsInvalid: "ARGS_INVALID",
    OutputNotJson: "OUTPUT_NOT_JSON",
    OutputTooLarge: "OUTPUT_TOO_LARGE",
}

_now: Final = time.monotonic_ns


class Engine:
    """What the main thread does.

    ``activity`` counts the rounds of the hub, and ``on_busy`` is called in each: the monitor's signs of work.
    """

    def __init__(
        self,
        *,
        link: Link,
        main: MainThread,
        scheduler: Scheduler,
        loader: Loader,
        inbox: Inbox,
        pulse: Pulse,
        log: LogWriter,
        box: BlackBoxWriter,
        load_timeout_ms: int,
    ) -> None:
        self._link = link
        self._main = main
        self._scheduler = scheduler
        self._loader = loader
        self._inbox = inbox
        self._pulse = pulse
        self._log = log
        self._box = box
        self._load_timeout_ms = load_timeout_ms
        self.activity = 0
        self.on_busy: Callable[[], None] = lambda: None
        self._hub = greenlet.getcurrent()
        self._idle: list[greenlet.greenlet] = []
        self._next: Call | None = None
        self._switched_ns = 0
        self._context = contextvars.copy_context()

    # --- the hub ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the worker until the process ends; raises `LinkLost` and `MalformedFrame`."""
        self._link.lock.acquire()
        self._hub = greenlet.getcurrent()
        while True:
            self._service()
            if self._scheduler.ready and not self._link.congested:
                self._run_ready()
            else:
                self._wait()

    def _service(self) -> None:
        """Send what is finished, take in what has come, wake who has slept enough."""
        self.activity += 1
        self.on_busy()
        if self._pulse.due:
            self._pulse.send()
        self._link.flush()
        self._inbox.take_in()
        self._scheduler.wake(_now())

    def _run_ready(self) -> None:
        ready, link = self._scheduler.ready, self._link
        started = _now()
        while ready:
            call = ready.popleft()
            if call.greenlet is None:
                self._start(call)
            else:
                call.greenlet.switch()
            if link.queued >= _SERVICE_RESULTS or self._switched_ns - started >= _SERVICE_NS:
                return

    def _start(self, call: Call) -> None:
        worker = self._idle.pop() if self._idle else greenlet.greenlet(self._serve)
        worker.gr_context = self._context.copy()  # context variables of one call do not reach the next
        self._next = call
        worker.switch()

    def _serve(self) -> None:
        """The body of a greenlet: one call after the other, handed over in ``_next``."""
        me = greenlet.getcurrent()
        while True:
            call, self._next = self._next, None
            assert call is not None
            call.greenlet = me
            self._run(call)
            call.greenlet = None
            del call
            self._idle.append(me)
            self._hub.switch()

    def _wait(self) -> None:
        wake_ns = self._scheduler.next_wake_ns()
        timeout_ms = None if wake_ns == NEVER else max(0, wake_ns - _now()) / _MS
        self._link.flush()
        self._link.wait(timeout_ms)

    # --- one call -----------------------------------------------------------------------------------------------

    def _run(self, call: Call) -> None:
        """Run ``call`` from its start to its terminal frame; entered and left with the lock."""
        digest, selector = call.payload.function_code_digest, call.payload.entry_selector
        call.state = CallState.RUNNING
        code = self._loader.get(digest)
        if code is None:
            if not self._loader.knows(digest):  # evicted since the call was put into the queue
                self._inbox.await_code(call)
                return
            code = self._load(call)
        entry = code.entries.get(selector)
        if entry is None:
            entry = code.entry(selector)
        if type(entry) is Failure:
            self._finish_failed(call, entry)
        elif call.stop is not None:  # cancelled while its code was loaded
            self._finish_failed(call, stopped(call))
        else:
            self._run_entry(call, entry)

    def _run_entry(self, call: Call, entry: Entry) -> None:
        main = self._main
        output = b""
        self._own(call)
        try:
            try:
                main.masked = False
                output = _invoke(entry, call.payload.args)
            finally:
                main.masked = True
        except BaseException as error:  # noqa: BLE001 - whatever user code raises fails its call, and nothing else
            main.masked = True
            call.error = error
        if main.forked:
            main.end_forked(call.error)
        now = _now()
        if call.stop is None and now > call.deadline_ns:
            call.stop = BudgetExceeded  # native code that kept the monitor from running, but did return
        self._account(call, now)
        if call.error is None and call.stop is None:
            self._disown(now)
            self._end(call)
            self._link.send(completed(call, output))
        else:
            failure = self._report(call)
            self._disown(_now())
            self._finish_failed(call, failure)

    def _own(self, call: Call) -> None:
        """The call owns the main thread from now on; gives the lock away."""
        now, left_ns = _now(), call.left_ns()
        call.slice_started_ns = now
        call.deadline_ns = now + left_ns
        self._box.running(call.payload.call_no, now, 0 if left_ns == NEVER else left_ns // _MS + 1)
        self._main.running = call
        self._link.lock.release()

    def _account(self, call: Call, now: int) -> None:
        owned = now - call.slice_started_ns
        call.used_ns += owned
        call.ran_ns += owned

    def _disown(self, now: int) -> None:
        """The engine owns the main thread again; takes the lock."""
        self._link.lock.acquire()
        self._main.running = None
        self._box.idle(now)
        self._switched_ns = now

    def _load(self, call: Call) -> LoadedCode:
        """Compile and import the code of ``call``, with the lock given away; masked, so nothing interrupts it."""
        main, payload, started = self._main, call.payload, _now()
        call.slice_started_ns = started
        call.deadline_ns = NEVER
        self._box.loading(payload.call_no, started, self._load_timeout_ms)
        main.loading = True
        main.running = call
        in_use = {other.payload.function_code_digest for other in self._scheduler.calls.values()}
        self._link.lock.release()
        try:
            return self._loader.load(payload.function_code_digest, payload.function_id, in_use)
        finally:
            if main.forked:
                main.end_forked()
            self._link.lock.acquire()
            main.running = None
            main.loading = False
            self._box.loaded(_now())

    # --- failures -----------------------------------------------------------------------------------------------

    def _report(self, call: Call) -> Failure:
        """The failure of ``call``, made in its greenlet, unmasked and with a limit of its own."""
        main, error = self._main, call.error
        failure = stopped(call) if call.stop is not None else _failure_of(error)
        now = _now()
        self._box.running(call.payload.call_no, now, _REPORT_NS // _MS)
        call.reporting = True
        call.error, call.stop, call.signals, call.deferred = None, None, 0, False
        call.slice_started_ns, call.deadline_ns = now, now + _REPORT_NS
        try:
            try:
                main.masked = False
                if error is not None and type(error) not in _KINDS:
                    fill_report(failure, error)
                _release(error)
            finally:
                main.masked = True
        except BaseException:  # noqa: BLE001 - what has been filled in until now is the report
            main.masked = True
        if main.forked:
            main.end_forked()
        failure.message = (
            failure.message or f"{failure.error_type or 'An exception'} was raised; it could not be shown."
        )
        return failure

    def _finish_failed(self, call: Call, failure: Failure) -> None:
        self._end(call)
        self._link.send(failed(call, failure))

    def _end(self, call: Call) -> None:
        self._scheduler.finish(call)
        if call.partial_lines:
            self._log.finish(call)

    # --- the SDK's side -----------------------------------------------------------------------------------------

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

    def sleep(self, seconds: float) -> None:
        """Let the asking call rest, for `sdk.sleep`."""
        call = self._asking("sleep")
        if not 0 <= seconds < NEVER / 1e9:
            raise ValueError(f"sdk.sleep({seconds!r}): seconds must be a number from 0 on.")
        self._main.masked = True
        try:
            if call.stop is None:
                self._rest(call, int(seconds * 1e9))
            call.deferred = call.deferred or call.stop is not None
        finally:
            self._main.unmask()

    def _rest(self, call: Call, rest_ns: int) -> None:
        now = _now()
        self._account(call, now)
        self._disown(now)
        left_ns = call.left_ns()
        self._scheduler.sleep(call, now + min(rest_ns, left_ns))
        self._hub.switch()
        call.state = CallState.RUNNING
        call.used_ns += min(_now() - now, rest_ns, left_ns)  # the wait in the queue after waking is free
        if rest_ns >= left_ns and call.stop is None and not call.left_ns():
            call.stop = BudgetExceeded
        self._own(call)

    def _asking(self, name: str) -> Call:
        main = self._main
        if threading.get_ident() != main.ident:
            raise RuntimeError(
                f"sdk.{name}() was used in a thread; only the code of the call itself may use the SDK."
            )
        if main.forked:
            raise RuntimeError(
                f"sdk.{name}() was used in a forked process; only the executor itself may use it."
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


def _invoke(entry: Any, args: msgspec.Raw) -> bytes:
    """Arguments, result and all that user code left behind die in here, where their destructors may be interrupted."""
    return encode_output(entry(*decode_args(args)))


def _release(error: BaseException | None) -> None:
    """Let go of the frames, and with them of the user's objects."""
    for _ in range(_MAX_CHAIN):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__context__


def _failure_of(error: BaseException | None) -> Failure:
    """What is known about ``error`` without running user code."""
    kind = None if error is None else _KINDS.get(type(error))
    return Failure("USER_ERROR", "") if kind is None else Failure(kind, str(error))
