"""Error vocabulary: refusals of requests, failure codes of tasks, error kinds of calls.

Three different things that are easily mixed up:

* a *refusal* answers one request of a client and changes nothing (`WorkerError`, `ErrorCode`);
* a *task failure code* (`TaskFailureCode`) says why an accepted task did not succeed;
* a *call error kind* (`CallErrorKind`) says why one attempt of one call failed, and `CALL_ERROR_RULES` what follows.

Beside them stands the *IO error kind* (`IoErrorKind`): why a back end could not answer a call, which user code sees as an
exception and may handle.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

__all__ = [
    "CALL_ERROR_RULES",
    "IO_ERROR_RETRYABLE",
    "CallErrorKind",
    "CallErrorRule",
    "ErrorCode",
    "IoErrorKind",
    "TaskFailureCode",
    "WorkerError",
]


class ErrorCode(StrEnum):
    """Stable codes of refused requests; `blockx_worker.rpc.errors` maps each to one gRPC status."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    TASK_ID_CONFLICT = "TASK_ID_CONFLICT"
    NO_SLOT = "NO_SLOT"
    UNAVAILABLE = "UNAVAILABLE"
    INVALID_SLOT = "INVALID_SLOT"
    NOT_FOUND = "NOT_FOUND"
    SLOT_UNCERTAIN = "SLOT_UNCERTAIN"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"


class WorkerError(Exception):
    """A request was refused: a stable code and one sentence that tells the caller what to do."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TaskFailureCode(StrEnum):
    """Why a task did not succeed."""

    ACTIVATION_FAILED = "ACTIVATION_FAILED"
    IO_SCOPE_FAILED = "IO_SCOPE_FAILED"
    SLOT_LOST = "SLOT_LOST"
    BUILDER_NOT_FOUND = "BUILDER_NOT_FOUND"
    BUILDER_FAILED = "BUILDER_FAILED"
    FUNCTION_NOT_FOUND = "FUNCTION_NOT_FOUND"
    FUNCTION_NOT_AUDITED = "FUNCTION_NOT_AUDITED"
    CALLS_FAILED = "CALLS_FAILED"
    OUTPUT_BYTES_EXCEEDED = "OUTPUT_BYTES_EXCEEDED"
    PLUGIN_NOT_FOUND = "PLUGIN_NOT_FOUND"
    PLUGIN_FAILED = "PLUGIN_FAILED"
    TASK_TIMED_OUT = "TASK_TIMED_OUT"
    WATCH_DISCONNECTED = "WATCH_DISCONNECTED"
    CANCELLED_BY_CLIENT = "CANCELLED_BY_CLIENT"
    WORKER_SHUTDOWN = "WORKER_SHUTDOWN"


class CallErrorKind(StrEnum):
    """Why one attempt of a call failed. The wire carries the value; an unknown one counts as USER_ERROR."""

    USER_ERROR = "USER_ERROR"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    CANCELLED = "CANCELLED"
    OUTPUT_NOT_JSON = "OUTPUT_NOT_JSON"
    OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"
    ARGS_INVALID = "ARGS_INVALID"
    ARGS_TOO_LARGE = "ARGS_TOO_LARGE"
    IMPORT_ERROR = "IMPORT_ERROR"
    SYNTAX_ERROR = "SYNTAX_ERROR"
    FUNCTION_NOT_FOUND = "FUNCTION_NOT_FOUND"
    FUNCTION_CODE_UNAVAILABLE = "FUNCTION_CODE_UNAVAILABLE"
    SUBCALL_DEPTH = "SUBCALL_DEPTH"
    SUBCALL_CYCLE = "SUBCALL_CYCLE"
    EXECUTOR_WEDGED = "EXECUTOR_WEDGED"
    EXECUTOR_LOST = "EXECUTOR_LOST"
    DISPATCH_REFUSED = "DISPATCH_REFUSED"


@attrs.frozen
class CallErrorRule:
    """What follows from an error kind.

    ``retryable``: may be tried again while attempts are left; None = as the failure itself says (`Retryable`).
    ``charged``: the attempt counts. ``shared``: callers waiting for the same key share this failure; where False the
    next of them runs the call itself.
    """

    retryable: bool | None
    charged: bool
    shared: bool


_FINAL = CallErrorRule(retryable=False, charged=True, shared=True)

CALL_ERROR_RULES: dict[CallErrorKind, CallErrorRule] = {
    CallErrorKind.USER_ERROR: CallErrorRule(retryable=None, charged=True, shared=True),
    CallErrorKind.BUDGET_EXCEEDED: CallErrorRule(retryable=False, charged=True, shared=False),
    CallErrorKind.CANCELLED: CallErrorRule(retryable=False, charged=True, shared=False),
    CallErrorKind.OUTPUT_NOT_JSON: _FINAL,
    CallErrorKind.OUTPUT_TOO_LARGE: _FINAL,
    CallErrorKind.ARGS_INVALID: _FINAL,
    CallErrorKind.ARGS_TOO_LARGE: _FINAL,
    CallErrorKind.IMPORT_ERROR: _FINAL,
    CallErrorKind.SYNTAX_ERROR: _FINAL,
    CallErrorKind.FUNCTION_NOT_FOUND: _FINAL,
    CallErrorKind.FUNCTION_CODE_UNAVAILABLE: _FINAL,
    CallErrorKind.SUBCALL_DEPTH: CallErrorRule(retryable=False, charged=True, shared=False),
    CallErrorKind.SUBCALL_CYCLE: CallErrorRule(retryable=False, charged=True, shared=False),
    CallErrorKind.EXECUTOR_WEDGED: CallErrorRule(retryable=False, charged=True, shared=False),
    CallErrorKind.EXECUTOR_LOST: CallErrorRule(retryable=True, charged=True, shared=False),
    CallErrorKind.DISPATCH_REFUSED: CallErrorRule(retryable=True, charged=False, shared=False),
}


class IoErrorKind(StrEnum):
    """Why a back end could not answer; back ends of extensions may use kinds of their own."""

    IO_BACKEND_NOT_FOUND = "IO_BACKEND_NOT_FOUND"
    IO_BAD_REQUEST = "IO_BAD_REQUEST"
    IO_BUSY = "IO_BUSY"
    IO_TIMEOUT = "IO_TIMEOUT"
    IO_ANSWER_TOO_LARGE = "IO_ANSWER_TOO_LARGE"
    IO_BACKEND_FAILED = "IO_BACKEND_FAILED"
    IO_CLOSED = "IO_CLOSED"
    RPC_ERROR = "RPC_ERROR"
    RPC_UNAVAILABLE = "RPC_UNAVAILABLE"
    RPC_BAD_RESPONSE = "RPC_BAD_RESPONSE"
    TABLE_NOT_FOUND = "TABLE_NOT_FOUND"
    BLOCK_NOT_FOUND = "BLOCK_NOT_FOUND"
    STORE_ERROR = "STORE_ERROR"


IO_ERROR_RETRYABLE: dict[IoErrorKind, bool | None] = {
    IoErrorKind.IO_BACKEND_NOT_FOUND: False,
    IoErrorKind.IO_BAD_REQUEST: False,
    IoErrorKind.IO_BUSY: True,
    IoErrorKind.IO_TIMEOUT: True,
    IoErrorKind.IO_ANSWER_TOO_LARGE: False,
    IoErrorKind.IO_BACKEND_FAILED: False,
    IoErrorKind.IO_CLOSED: False,
    IoErrorKind.RPC_ERROR: None,
    IoErrorKind.RPC_UNAVAILABLE: None,
    IoErrorKind.RPC_BAD_RESPONSE: True,
    IoErrorKind.TABLE_NOT_FOUND: False,
    IoErrorKind.BLOCK_NOT_FOUND: False,
    IoErrorKind.STORE_ERROR: False,
}
"""Whether the same request may succeed later; None = as the error itself says."""
