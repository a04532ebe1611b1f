"""The frames that speak for a call, built from its record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from blockx_executor.calls import BudgetExceeded, Call
from blockx_executor.failure import Failure
from blockx_executor.scheduler import CodeWait
from blockx_executor.waits import IoRequest, Request, SubcallRequest
from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    CallFailed,
    CallFailedPayload,
    CallsReturned,
    CallsReturnedPayload,
    CallWaiting,
    CallWaitingPayload,
    ReturnedCall,
)

__all__ = ["code_request", "completed", "failed", "load_timed_out", "returned", "stopped", "waiting"]

_MS: Final = 1_000_000


def completed(call: Call, output: bytes) -> CallCompleted:
    """``call`` returned ``output``, which is JSON."""
    payload = CallCompletedPayload(
        task_id=call.payload.task_id,
        attempt_seq=call.payload.attempt_seq,
        output=msgspec.Raw(output),
        budget_used_ms=call.used_ns // _MS,
        run_us=call.ran_ns // 1000,
    )
    return CallCompleted(call.call_id, payload)


def failed(call: Call, failure: Failure) -> CallFailed:
    """``call`` ended with ``failure``."""
    payload = CallFailedPayload(
        task_id=call.payload.task_id,
        attempt_seq=call.payload.attempt_seq,
        error_kind=failure.kind,
        error_message=failure.message,
        retryable=failure.retryable,
        error_type=failure.error_type,
        error_stack=failure.stack,
        local_vars=failure.local_vars,
        budget_used_ms=call.used_ns // _MS,
        run_us=call.ran_ns // 1000,
    )
    return CallFailed(call.call_id, payload)


def stopped(call: Call) -> Failure:
    """Why ``call`` was stopped, by its budget or by a cancel."""
    if call.stop is BudgetExceeded:
        budget_ms = call.payload.call_budget_ms
        used_ms = call.used_ns // _MS
        text = f"{call.name} was stopped: it used {used_ms} ms, more than its budget of {budget_ms} ms."
        return Failure("BUDGET_EXCEEDED", text)
    return Failure("CANCELLED", f"{call.name} was cancelled: {call.stop_reason}.")


def load_timed_out(call: Call, timeout_ms: int) -> CallFailed:
    """The code of ``call`` takes longer than ``timeout_ms`` to load."""
    text = (
        f"Importing the code of {call.payload.function_id} took longer than the function load time-out of "
        f"{timeout_ms} ms. Move slow work from the module's top level into the function."
    )
    return failed(call, Failure("IMPORT_ERROR", text))


def code_request(wait: CodeWait) -> CallWaiting:
    """The request for the code that all calls in ``wait`` need."""
    asker = wait.asker
    payload = CallWaitingPayload(
        task_id=asker.payload.task_id,
        attempt_seq=asker.payload.attempt_seq,
        wait_kind="function_code",
        function_id=asker.payload.function_id,
        function_code_digest=wait.digest,
    )
    return CallWaiting(asker.call_id, wait.request_id, payload)


def waiting(call: Call, request_id: int, request: Request, left_ms: int) -> CallWaiting:
    """``call`` waits for ``request``, and has ``left_ms`` of its budget left (0 = it has no budget)."""
    task_id, attempt = call.payload.task_id, call.payload.attempt_seq
    match request:
        case SubcallRequest():
            payload = CallWaitingPayload(
                task_id=task_id,
                attempt_seq=attempt,
                wait_kind="subcall",
                function_id=request.function_id,
                args=msgspec.Raw(request.args),
                granted_budget_ms=left_ms,
            )
        case IoRequest():
            payload = CallWaitingPayload(
                task_id=task_id,
                attempt_seq=attempt,
                wait_kind="io",
                backend=request.backend,
                op=request.op,
                request=msgspec.Raw(request.request),
                granted_budget_ms=left_ms,
            )
    return CallWaiting(call.call_id, request_id, payload)


def returned(calls: Iterable[Call], reason: str) -> CallsReturned:
    """``calls`` were not started and go back."""
    back = [
        ReturnedCall(call_id=call.call_id, task_id=call.payload.task_id, attempt_seq=call.payload.attempt_seq)
        for call in calls
    ]
    return CallsReturned(CallsReturnedPayload(calls=back, reason=reason))
