"""The one map from refusals to gRPC statuses, and back.

A status message begins with the stable code, ``NO_SLOT: all 64 slots are taken; ...``, so that a client in any
language can tell refusals apart that share a status.

Trap: the message travels in a header, percent-encoded. Clients refuse headers above 8 KiB, so it is cut.
"""

from __future__ import annotations

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from blockx_worker.model.errors import ErrorCode, WorkerError

__all__ = ["INTERNAL_MESSAGE", "MAX_MESSAGE_BYTES", "STATUS_OF_CODE", "to_grpc_error", "to_worker_error"]

MAX_MESSAGE_BYTES = 1800
"""Of UTF-8; percent-encoding makes at most three bytes of each, and other headers need room as well."""

INTERNAL_MESSAGE = "internal error; see the worker's log"

STATUS_OF_CODE: dict[ErrorCode, Status] = {
    ErrorCode.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    ErrorCode.TASK_ID_CONFLICT: Status.INVALID_ARGUMENT,
    ErrorCode.NO_SLOT: Status.RESOURCE_EXHAUSTED,
    ErrorCode.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorCode.INVALID_SLOT: Status.FAILED_PRECONDITION,
    ErrorCode.NOT_FOUND: Status.NOT_FOUND,
    ErrorCode.SLOT_UNCERTAIN: Status.ABORTED,
    ErrorCode.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    ErrorCode.PERMISSION_DENIED: Status.PERMISSION_DENIED,
    ErrorCode.REQUEST_TOO_LARGE: Status.RESOURCE_EXHAUSTED,
}


def to_grpc_error(error: WorkerError) -> GRPCError:
    """The status for a refusal."""
    return GRPCError(STATUS_OF_CODE[error.code], _cut(f"{error.code}: {error.message}"))


def to_worker_error(message: str | None) -> WorkerError | None:
    """The refusal that a status message stands for; None if it does not begin with one of our codes."""
    code, separator, text = (message or "").partition(": ")
    if not separator or code not in ErrorCode.__members__:
        return None
    return WorkerError(ErrorCode(code), text)


def _cut(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return data[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "…"
