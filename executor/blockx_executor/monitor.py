"""The monitor: a thread that does what must be done while the main thread is in user code.

It sends heartbeats on time, ends calls that are over their budget or cancelled, and when the main thread has stayed
in one call for `_STUCK_NS` it reads and writes the link in its place, and gives back the calls that were to start after
that one. It only ever tries to take the lock: when it cannot, the main thread is between calls and does the work itself
(``Pulse.due``). While it holds the lock the main thread can neither end nor start a call, so a call that is given back
was never started and never will be.

A call that is to stop gets its first signal at once, the second after 250 ms, then one every 50 ms: user code may
swallow some. While code is loaded there are no signals; past the load time-out the process ends.

It wakes every `_STUCK_NS` while there is work, and only for heartbeats when there is none; the main thread wakes it
when work comes.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Final

from blockx_executor.answers import load_timed_out
from blockx_executor.calls import BudgetExceeded, Call
from blockx_executor.engine import Engine
from blockx_executor.guard import Guard
from blockx_executor.inbox import Inbox
from blockx_executor.link import Link, LinkLost, MalformedFrame, leave, leave_without_link
from blockx_executor.mainthread import MainThread
from blockx_executor.pulse import Pulse
from blockx_executor.userlog import LogWriter
from blockx_executor.wire import exit_codes

__all__ = ["Monitor"]

_MS: Final = 1_000_000
_STUCK_NS: Final = 20 * _MS
_LAST_WORDS_S: Final = 1.0


class Monitor:
    """Started once, after the engine is built; ends with the process."""

    def __init__(
        self,
        *,
        engine: Engine,
        link: Link,
        main: MainThread,
        inbox: Inbox,
        pulse: Pulse,
        log: LogWriter,
        guard: Guard,
        heartbeat_ms: int,
        load_timeout_ms: int,
    ) -> None:
        self._engine = engine
        self._link = link
        self._main = main
        self._inbox = inbox
        self._pulse = pulse
        self._log = log
        self._guard = guard
        self._heartbeat_ns = heartbeat_ms * _MS
        self._load_timeout_ms = load_timeout_ms
        self._beat_ns = time.monotonic_ns() + self._heartbeat_ns
        self._seen_activity = -1
        self._resting = False
        self._stretch_ns = 0
        self._return_ns = 0
        self._return_gap_ns = _STUCK_NS
        self._wake = threading.Event()
        engine.on_busy = self._on_busy

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="blockx-monitor", daemon=True).start()

    def _on_busy(self) -> None:
        """Called on the main thread when there may be work again."""
        if self._resting:
            self._resting = False
            self._wake.set()

    def _run(self) -> None:
        try:
            while True:
                self._step(time.monotonic_ns())
                self._wake.wait(self._rest_ns(time.monotonic_ns()) / 1e9)
                self._wake.clear()
        except LinkLost as error:
            leave_without_link(error)
        except MalformedFrame as error:
            leave(exit_codes.MALFORMED_FRAME, str(error))
        except BaseException:  # noqa: BLE001 - without its monitor a process must not go on
            leave(exit_codes.ENGINE_FAULT, f"The monitor failed.\n{traceback.format_exc()}")

    def _step(self, now: int) -> None:
        if now >= self._beat_ns:
            self._beat_ns = now + self._heartbeat_ns
            self._pulse.due = True
            self._log.report_dropped()
        call = self._main.running
        stuck = call if call is not None and now - call.slice_started_ns >= _STUCK_NS else None
        if stuck or self._pulse.due or self._link.pending:
            self._use_link(stuck)
        if call is not None:
            self._check(call, now)

    def _use_link(self, stuck: Call | None) -> None:
        if not self._link.lock.acquire(blocking=False):
            return
        try:
            if self._pulse.due:
                self._pulse.send()
            # Only while the call still runs: were the main thread waiting for the socket, it would not learn of
            # what is read here.
            if stuck is not None and self._main.running is stuck:
                self._inbox.take_in()
                self._give_back(stuck)
            self._link.flush()
        finally:
            self._link.lock.release()

    def _give_back(self, call: Call) -> None:
        """Give back what waits behind ``call``; then leave the worker more and more time before the next return.

        Calls that were on their way when the first ones went back so follow them, but an executor that is sent calls
        for want of another one keeps them.
        """
        now = time.monotonic_ns()
        if call.slice_started_ns != self._stretch_ns:
            self._stretch_ns, self._return_ns, self._return_gap_ns = call.slice_started_ns, 0, _STUCK_NS
        held_ns = now - call.slice_started_ns
        if held_ns < _STUCK_NS or now < self._return_ns:
            return
        loading = self._main.loading
        doing = "has loaded its code" if loading else "has run"
        reason = f"{call.name} {doing} for {held_ns // _MS} ms without a pause."
        # Calls of the code that is being loaded would have to load it elsewhere too.
        if self._inbox.give_back(
            but_digest=call.payload.function_code_digest if loading else None, reason=reason
        ):
            self._return_ns = now + self._return_gap_ns
            self._return_gap_ns *= 2
            self._pulse.send()

    def _check(self, call: Call, now: int) -> None:
        """Stop ``call`` if it has to be stopped. If it has just ended, its record is marked and nobody looks."""
        if self._main.loading:
            self._check_load(call, now)
            return
        if call.stop is None and now >= call.deadline_ns:
            call.stop = BudgetExceeded
        if call.stop is not None and (call.signals == 0 or now >= call.next_signal_ns):
            # Not the first one: it had no effect. Or the signal is known to reach no handler of ours.
            if call.signals or not self._guard.signals_arrive():
                self._guard.restore_soon()
            call.note_signal(now)
            self._main.interrupt()

    def _check_load(self, call: Call, now: int) -> None:
        if now - call.slice_started_ns < self._load_timeout_ms * _MS:
            return
        if not self._link.lock.acquire(timeout=_LAST_WORDS_S):
            return
        try:
            if self._main.loading and self._main.running is call:
                self._link.send(load_timed_out(call, self._load_timeout_ms))
                self._link.drain(_LAST_WORDS_S)
                leave(
                    exit_codes.LOAD_TIMED_OUT,
                    f"Importing the code of {call.payload.function_id} took too long.",
                )
        finally:
            self._link.lock.release()

    def _rest_ns(self, now: int) -> int:
        """How long to rest: until the next heartbeat without work, else at most `_STUCK_NS`."""
        beat = max(0, self._beat_ns - now)
        self._resting = True  # before looking: work that comes in between then wakes us
        activity = self._engine.activity
        call = self._main.running
        if call is None and activity == self._seen_activity and not self._link.pending:
            return beat
        self._resting = False
        self._seen_activity = activity
        due = now + _STUCK_NS
        if call is not None:
            stuck_ns = call.slice_started_ns + _STUCK_NS
            due = stuck_ns if now < stuck_ns else due
            if not self._main.loading:
                due = min(due, call.next_signal_ns if call.stop is not None else call.deadline_ns)
        return max(0, min(beat, due - now))
