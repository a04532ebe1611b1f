"""What each message from the worker does. All of it needs the link's lock; either thread may hold it."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from blockx_executor.answers import code_request, failed, returned
from blockx_executor.calls import Call, CallState, new_call
from blockx_executor.failure import Failure
from blockx_executor.link import Incoming, Link, WithSidecar
from blockx_executor.loader import Loader
from blockx_executor.scheduler import CodeWait, Scheduler
from blockx_executor.waits import Answer
from blockx_executor.wire.messages import (
    CancelCall,
    ExecuteCall,
    FunctionCodeResult,
    HeartbeatAck,
    ResumeCall,
)

__all__ = ["Inbox"]

_MS: Final = 1_000_000

_decode_code: Final = msgspec.json.Decoder(FunctionCodeResult).decode


class Inbox:
    """Takes messages in and puts calls where they belong."""

    def __init__(self, *, link: Link, scheduler: Scheduler, loader: Loader) -> None:
        self._link = link
        self._scheduler = scheduler
        self._loader = loader

    def take_in(self) -> None:
        """Handle all messages that have arrived; `LinkLost` and `MalformedFrame` from the link."""
        for message in self._link.receive():
            self._handle(message)

    def await_code(self, call: Call) -> None:
        """Let ``call`` wait for its code, and ask for it unless that was done."""
        self._ask(self._scheduler.await_code(call))

    def give_back(self, *, but_digest: str | None, reason: str) -> bool:
        """Give back the calls that were to start, but for those of ``but_digest``; whether there were any."""
        calls = self._scheduler.give_back(but_digest=but_digest)
        if calls:
            self._link.send(returned(calls, reason))
        return bool(calls)

    def _handle(self, message: Incoming) -> None:
        match message:
            case ExecuteCall():
                self._admit(new_call(message))
            case CancelCall():
                self._cancel(message)
            case ResumeCall():
                self._answered(message, None)
            case WithSidecar():
                self._answered(message.message, message.sidecar)
            case HeartbeatAck():
                pass

    def _admit(self, call: Call) -> None:
        refusal = self._scheduler.admit(call)
        if refusal is not None:
            self._link.send(failed(call, Failure("DISPATCH_REFUSED", refusal, retryable=True)))
        elif not self._loader.knows(call.payload.function_code_digest):
            self.await_code(call)
        elif call.payload.parent_call_id is None:
            self._scheduler.ready.append(call)
        else:
            self._scheduler.go_ahead(call)

    def _cancel(self, message: CancelCall) -> None:
        call = self._scheduler.calls.get(message.call_id)
        if call is None or call.payload.attempt_seq != message.payload.attempt_seq or call.reporting:
            return  # its terminal frame is on its way
        again = self._scheduler.cancel(call, message.payload.reason, time.monotonic_ns())
        if call.state is CallState.DONE:
            text = f"{call.name} was cancelled before it started: {call.stop_reason}."
            self._link.send(failed(call, Failure("CANCELLED", text)))
        self._ask(again)

    def _answered(self, message: ResumeCall, sidecar: bytes | None) -> None:
        """An answer goes to who waits for it, a call or the calls that need some code; else it came too late."""
        payload = message.payload
        wait = self._scheduler.code_wait(message.request_id)
        if wait is not None:
            self._code_answered(wait, message)
            return
        self._scheduler.answer(
            message.call_id,
            message.request_id,
            Answer(payload.result, sidecar, payload.error),
            used_ns=payload.budget_used_ms * _MS,
            now_ns=time.monotonic_ns(),
        )

    def _code_answered(self, wait: CodeWait, message: ResumeCall) -> None:
        source = self._source(wait, message)
        if isinstance(source, Failure):
            if message.request_id == wait.request_id:  # else a newer request is still on its way
                self._refuse(wait, source)
            return
        self._loader.offer(wait.digest, source)
        self._scheduler.end_code_wait(wait)
        for call in wait.waiting.values():
            self._scheduler.make_ready(call)

    def _source(self, wait: CodeWait, message: ResumeCall) -> FunctionCodeResult | Failure:
        error = message.payload.error
        if error is not None:
            return Failure(error.kind, error.message, retryable=error.retryable)
        try:
            return _decode_code(message.payload.result)
        except (msgspec.MsgspecError, RecursionError) as reason:
            text = f"The worker's answer with the code of {wait.asker.payload.function_id} is not usable: {reason}."
            return Failure("FUNCTION_CODE_UNAVAILABLE", text)

    def _refuse(self, wait: CodeWait, failure: Failure) -> None:
        """Fail the calls of the task that asked; another task may be given what this one was refused."""
        task_id = wait.asker.payload.task_id
        for call in [call for call in wait.waiting.values() if call.payload.task_id == task_id]:
            del wait.waiting[call.call_id]
            self._scheduler.finish(call)
            self._link.send(failed(call, failure))
        self._ask(self._scheduler.ask_again(wait))

    def _ask(self, wait: CodeWait | None) -> None:
        if wait is not None:
            self._link.send(code_request(wait))
