"""What a failed attempt amounts to: its rule, the texts that people read, and the back-off before the next attempt.

Texts come from user code, so each is clipped here before anything keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from blockx_executor.wire.messages import CallFailedPayload
from blockx_worker.model.errors import CALL_ERROR_RULES, CallErrorKind, TaskFailureCode
from blockx_worker.model.tasks import FailedCall, TaskFailure

if TYPE_CHECKING:
    from blockx_worker.dispatch.records import Call

__all__ = [
    "MAX_BACKOFF_MS",
    "REFUSED_BACKOFF_MS",
    "AttemptFailure",
    "backoff_ms",
    "clip",
    "failed_call",
    "failure_of_frame",
    "failure_of_kind",
    "preview",
    "task_failure",
]

REFUSED_BACKOFF_MS = 10
"""A call that could not be sent tries again after this long; a full outbox empties within a few ms."""

MAX_BACKOFF_MS = 60_000
MAX_MESSAGE_CHARS = 4_000
MAX_LISTED_MESSAGE_CHARS = 500
MAX_STACK_CHARS = 64_000
MAX_PREVIEW_CHARS = 200

_KINDS = {kind.value: kind for kind in CallErrorKind}


class AttemptFailure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt failed, and whether it may be tried again while attempts are left."""

    kind: CallErrorKind
    message: str
    retryable: bool
    stack: str = ""
    locals: dict[str, str] = {}

    @property
    def charged(self) -> bool:
        """The attempt counts."""
        return CALL_ERROR_RULES[self.kind].charged

    @property
    def shared(self) -> bool:
        """Equal calls that wait for this one fail with it, since they would fail alike."""
        return CALL_ERROR_RULES[self.kind].shared and not self.retryable


def failure_of_frame(payload: CallFailedPayload) -> AttemptFailure:
    """The failure that an executor reports; a kind that the table does not know is the user's."""
    kind = _KINDS.get(payload.error_kind, CallErrorKind.USER_ERROR)
    rule = CALL_ERROR_RULES[kind].retryable
    return AttemptFailure(
        kind,
        clip(payload.error_message, MAX_MESSAGE_CHARS),
        payload.retryable if rule is None else rule,
        clip(payload.error_stack, MAX_STACK_CHARS),
        payload.local_vars,
    )


def failure_of_kind(kind: CallErrorKind, message: str) -> AttemptFailure:
    """A failure that the worker itself states."""
    return AttemptFailure(kind, message, bool(CALL_ERROR_RULES[kind].retryable))


def backoff_ms(base_ms: int, attempts: int, jitter: float) -> int:
    """Wait after the ``attempts``-th charged attempt: doubles each time, plus up to 5 % (``jitter`` is 0..1)."""
    delay = min(base_ms << min(attempts - 1, 32), MAX_BACKOFF_MS)
    return delay + int(delay * 0.05 * jitter)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, with an ellipsis where something is missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def preview(args: msgspec.Raw) -> str:
    """The beginning of an argument list, for people."""
    head = bytes(memoryview(args)[: 4 * MAX_PREVIEW_CHARS + 4])  # a character has at most four bytes
    return clip(head.decode(errors="replace"), MAX_PREVIEW_CHARS)


def failed_call(call: Call, failure: AttemptFailure) -> FailedCall:
    """The line of a finally failed call in the list of failed calls."""
    return FailedCall(
        index=call.index,
        error_kind=failure.kind.value,
        message=clip(failure.message, MAX_LISTED_MESSAGE_CHARS),
        args_preview=preview(call.args),
        attempts=max(call.attempts, 1),
    )


def task_failure(call: Call, failure: AttemptFailure) -> TaskFailure:
    """The failure of a task that one call's failure ended."""
    function_id = call.function.function_id
    return TaskFailure(
        code=TaskFailureCode.CALLS_FAILED,
        message=f"call {call.index} of {function_id} failed: {failure.kind}: {failure.message}",
        call_id=call.call_id,
        function_id=function_id,
        args_preview=preview(call.args),
        error_kind=failure.kind.value,
        stack=failure.stack,
        locals=failure.locals,
    )
