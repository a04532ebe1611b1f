"""Which call comes next: the rules of the executor, without a clock, a socket or a greenlet.

Ready calls run first in, first out, whether they start or go on. A call whose code is not here waits for it beside
all others that need the same digest; one request per digest is on its way. A sleeping call becomes ready at its time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque

import msgspec

from blockx_executor.calls import NEVER, Call, CallCancelled, CallState

__all__ = ["CodeWait", "Scheduler"]


class CodeWait(msgspec.Struct, eq=False):
    """Calls that wait for one digest; ``asker`` is the one in whose name ``request_id`` was sent."""

    digest: str
    asker: Call
    request_id: int
    waiting: dict[str, Call]


class Scheduler:
    """All calls of this process, from their arrival to their terminal frame."""

    def __init__(self, *, max_inflight: int, max_runnable: int) -> None:
        self.max_inflight = max_inflight
        self.max_runnable = max_runnable
        self.calls: dict[str, Call] = {}
        self.ready: deque[Call] = deque()
        self._code_waits: dict[str, CodeWait] = {}
        self._requests: dict[int, str] = {}
        self._sleepers: list[tuple[int, int, Call]] = []
        self._numbers = itertools.count(1)

    @property
    def available_contexts(self) -> int:
        """How many more calls may arrive: the tighter of what is left of inflight and of runnable."""
        return max(0, min(self.max_inflight - len(self.calls), self.max_runnable - len(self.ready)))

    # --- arrival and end ----------------------------------------------------------------------------------------

    def admit(self, call: Call) -> str | None:
        """Take ``call`` in; or say, as a sentence, why it is refused."""
        calls = self.calls
        if len(calls) >= self.max_inflight:
            return (
                f"{call.name} was refused: this executor already holds {self.max_inflight} calls, its limit."
            )
        if call.call_id in calls:
            return f"{call.name} was refused: an attempt of it is still here."
        calls[call.call_id] = call
        return None

    def finish(self, call: Call) -> None:
        """Forget ``call``: its terminal frame is on its way."""
        call.state = CallState.DONE
        del self.calls[call.call_id]

    # --- the ready queue ----------------------------------------------------------------------------------------

    def make_ready(self, call: Call) -> None:
        """Put ``call`` at the end of the ready queue."""
        started = call.state is CallState.SLEEPING
        call.state = CallState.RESUMABLE if started else CallState.READY
        self.ready.append(call)

    # --- code ---------------------------------------------------------------------------------------------------

    def await_code(self, call: Call) -> CodeWait | None:
        """Let ``call`` wait for its digest; returns the wait when its request has to be sent."""
        digest = call.payload.function_code_digest
        call.state = CallState.AWAITS_CODE
        wait = self._code_waits.get(digest)
        if wait is not None:
            wait.waiting[call.call_id] = call
            return None
        wait = self._code_waits[digest] = CodeWait(digest, call, 0, {call.call_id: call})
        return self._ask(wait, call)

    def code_wait(self, request_id: int) -> CodeWait | None:
        """The wait that an answer to ``request_id`` is for; None for an answer that comes too late."""
        digest = self._requests.pop(request_id, None)
        return None if digest is None else self._code_waits.get(digest)

    def end_code_wait(self, wait: CodeWait) -> None:
        """The code of ``wait`` is here."""
        del self._code_waits[wait.digest]

    def ask_again(self, wait: CodeWait) -> CodeWait | None:
        """Ask once more for the calls that are left in ``wait``; without any it is over."""
        if not wait.waiting:
            self.end_code_wait(wait)
            return None
        return self._ask(wait, next(iter(wait.waiting.values())))

    def _ask(self, wait: CodeWait, asker: Call) -> CodeWait:
        wait.asker = asker
        wait.request_id = next(self._numbers)
        self._requests[wait.request_id] = wait.digest
        return wait

    # --- sleep --------------------------------------------------------------------------------------------------

    def sleep(self, call: Call, wake_ns: int) -> None:
        """Let ``call`` rest until ``wake_ns``."""
        call.state = CallState.SLEEPING
        call.wake_ns = wake_ns
        heapq.heappush(self._sleepers, (wake_ns, next(self._numbers), call))

    def next_wake_ns(self) -> int:
        """When the next sleeper wakes; `NEVER` without one. May name the time of a sleeper that is already up."""
        return self._sleepers[0][0] if self._sleepers else NEVER

    def wake(self, now_ns: int) -> None:
        """Make all sleepers ready whose time has come."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= now_ns:
            wake_ns, _, call = heapq.heappop(sleepers)
            if call.state is CallState.SLEEPING and call.wake_ns == wake_ns:
                self.make_ready(call)

    # --- cancel -------------------------------------------------------------------------------------------------

    def cancel(self, call: Call, reason: str) -> CodeWait | None:
        """Stop ``call``. One that has not started is DONE at once and the caller answers for it.

        Returns a wait whose request has to be sent again, because it was asked for in the name of this call.
        """
        call.stop = call.stop or CallCancelled
        call.stop_reason = call.stop_reason or reason
        if call.state is CallState.READY:
            self.ready.remove(call)
            self.finish(call)
        elif call.state is CallState.AWAITS_CODE:
            self.finish(call)
            return self._leave_wait(call)
        elif call.state is CallState.SLEEPING:
            self.make_ready(call)
        return None

    def _leave_wait(self, call: Call) -> CodeWait | None:
        wait = self._code_waits[call.payload.function_code_digest]
        del wait.waiting[call.call_id]
        return self.ask_again(wait) if wait.asker is call or not wait.waiting else None
