"""Which call comes next: the rules of the executor, without a clock, a socket or a greenlet.

Calls that others wait for go ahead: subcalls, and calls whose wait is over. So what was begun ends before more is begun,
and a parent never waits behind calls that came after it. Of either kind the first in is the first out, whether it
starts or goes on; a long run of calls that go ahead lets one of the others in now and then.

Subcalls are let in without limit, as their parents hold the room that they would wait for.

A call whose code is not here waits for it beside all others that need the same digest; one request per digest is on its
way. A sleeping call becomes ready at its time, a waiting one when all its requests are answered or its budget is used.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Final

import msgspec

from blockx_executor.calls import NEVER, BudgetExceeded, Call, CallCancelled, CallState
from blockx_executor.waits import Answer, Wait

__all__ = ["CodeWait", "Scheduler"]


_AHEAD_IN_A_ROW: Final = 256


class CodeWait(msgspec.Struct, eq=False):
    """Calls that wait for one digest; ``asker`` is the one in whose name ``request_id`` was sent."""

    digest: str
    asker: Call
    request_id: int
    waiting: dict[str, Call]


class Scheduler:
    """All calls of this process, from their arrival to their terminal frame.

    ``ahead`` and ``ready`` are the two queues of ready calls; ``waiting`` counts the calls that wait for the worker.
    """

    def __init__(self, *, max_inflight: int, max_runnable: int) -> None:
        self.max_inflight = max_inflight
        self.max_runnable = max_runnable
        self.calls: dict[str, Call] = {}
        self.ahead: deque[Call] = deque()
        self.ready: deque[Call] = deque()
        self.waiting = 0
        self._subcalls = 0
        self._ahead_in_a_row = 0
        self._code_waits: dict[str, CodeWait] = {}
        self._code_requests: dict[int, str] = {}
        self._requests: dict[int, Call] = {}
        self._sleepers: list[tuple[int, int, Call]] = []
        self._numbers = itertools.count(1)

    @property
    def available_contexts(self) -> int:
        """How many more calls may arrive: the tighter of what is left of inflight and of runnable."""
        return max(0, min(self.max_inflight - len(self.calls), self.max_runnable - self.runnable))

    @property
    def runnable(self) -> int:
        """How many calls are ready to run."""
        return len(self.ahead) + len(self.ready)

    # --- arrival and end ----------------------------------------------------------------------------------------

    def admit(self, call: Call) -> str | None:
        """Take ``call`` in; or say, as a sentence, why it is refused."""
        calls, parent_id = self.calls, call.payload.parent_call_id
        if len(calls) - self._subcalls >= self.max_inflight and parent_id not in calls:
            return (
                f"{call.name} was refused: this executor already holds {self.max_inflight} calls, its limit."
            )
        if call.call_id in calls:
            return f"{call.name} was refused: an attempt of it is still here."
        calls[call.call_id] = call
        if parent_id is not None:
            self._subcalls += 1
        return None

    def finish(self, call: Call) -> None:
        """Forget ``call``: its terminal frame is on its way."""
        call.state = CallState.DONE
        del self.calls[call.call_id]
        if call.payload.parent_call_id is not None:
            self._subcalls -= 1

    def give_back(self, *, but_digest: str | None) -> list[Call]:
        """Forget the root calls that were to start, in their order, but for those of ``but_digest``."""
        given = [
            call
            for call in self.ready
            if call.state is CallState.READY and call.payload.function_code_digest != but_digest
        ]
        for call in given:
            self.finish(call)
        kept = [call for call in self.ready if call.state is not CallState.DONE]
        self.ready.clear()  # the engine holds this very queue
        self.ready.extend(kept)
        return given

    # --- the ready queues ---------------------------------------------------------------------------------------

    def make_ready(self, call: Call) -> None:
        """Put ``call`` at the end of its ready queue."""
        before = call.state
        started = before is CallState.SLEEPING or before is CallState.WAITING
        call.state = CallState.RESUMABLE if started else CallState.READY
        if before is CallState.WAITING or call.payload.parent_call_id is not None:
            self.go_ahead(call)
        else:
            self.ready.append(call)

    def go_ahead(self, call: Call) -> None:
        """Put ``call``, which is ready, at the end of those that go ahead."""
        if not self.ahead:
            self._ahead_in_a_row = 0
        self.ahead.append(call)

    def take(self) -> Call:
        """The call whose turn it is; there must be one."""
        if not self.ahead or (self.ready and self._ahead_in_a_row >= _AHEAD_IN_A_ROW):
            self._ahead_in_a_row = 0
            return self.ready.popleft()
        self._ahead_in_a_row += 1
        return self.ahead.popleft()

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
        digest = self._code_requests.pop(request_id, None)
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
        self._code_requests[wait.request_id] = wait.digest
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

    # --- waits for the worker -----------------------------------------------------------------------------------

    def wait(self, call: Call, requests: int, now_ns: int) -> Wait:
        """Let ``call`` wait for so many answers."""
        wait = Wait(
            now_ns, {next(self._numbers): position for position in range(requests)}, [None] * requests
        )
        self._requests |= dict.fromkeys(wait.open, call)
        call.state, call.wait = CallState.WAITING, wait
        self.waiting += 1
        return wait

    def answer(self, call_id: str, request_id: int, answer: Answer, *, used_ns: int, now_ns: int) -> None:
        """``answer`` has come; nothing happens when nobody waits for it any more."""
        call = self._requests.get(request_id)
        if call is None or call.call_id != call_id or call.wait is None:
            return
        del self._requests[request_id]
        wait = call.wait
        wait.take(request_id, answer, used_ns)
        if call.used_ns + wait.charge_ns(now_ns) > (call.budget_ns or NEVER):
            call.stop = call.stop or BudgetExceeded
            self._end_wait(call, wait, now_ns)
        elif not wait.open:
            self._end_wait(call, wait, now_ns)

    def _end_wait(self, call: Call, wait: Wait, now_ns: int) -> None:
        for request_id in wait.open:
            del self._requests[request_id]
        call.used_ns += wait.charge_ns(now_ns)
        self.waiting -= 1
        self.make_ready(call)

    # --- cancel -------------------------------------------------------------------------------------------------

    def cancel(self, call: Call, reason: str, now_ns: int) -> CodeWait | None:
        """Stop ``call``. One that has not started is DONE at once and the caller answers for it.

        Returns a wait whose request has to be sent again, because it was asked for in the name of this call.
        """
        call.stop = call.stop or CallCancelled
        call.stop_reason = call.stop_reason or reason
        if call.state is CallState.READY:
            (self.ready if call.payload.parent_call_id is None else self.ahead).remove(call)
            self.finish(call)
        elif call.state is CallState.AWAITS_CODE:
            self.finish(call)
            return self._leave_wait(call)
        elif call.state is CallState.SLEEPING:
            self.make_ready(call)
        elif call.state is CallState.WAITING and call.wait is not None:
            self._end_wait(call, call.wait, now_ns)
        return None

    def _leave_wait(self, call: Call) -> CodeWait | None:
        wait = self._code_waits[call.payload.function_code_digest]
        del wait.waiting[call.call_id]
        return self.ask_again(wait) if wait.asker is call or not wait.waiting else None
