"""The one place where request messages come in: size, compression and form are judged here.

A gRPC message is a header of five bytes (a flag, then the length) and a body. The header is judged before the body is
taken in, so that a request over the limit costs at most one flow-control window of memory. grpclib's own
``Stream.recv_message`` has no limit; handlers never call it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import betterproto
from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.rpc.descriptors import strict_type

__all__ = ["Codec", "receive", "receive_or_end"]

HEADER_BYTES = 5

M = TypeVar("M", bound=betterproto.Message)


class Codec(CodecBase):
    """betterproto messages as bytes; `decode` raises ValueError for every body that is not such a message."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ARG002  # grpclib's signature
        """The message's bytes; it is one of betterproto's or one of the protobuf runtime's."""
        return (
            bytes(message) if isinstance(message, betterproto.Message) else bytes(message.SerializeToString())
        )

    def decode(self, data: bytes, message_type: Any) -> Any:
        """The message, or ValueError."""
        try:
            strict_type(message_type).FromString(data)
            return message_type.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from None


async def receive(stream: Stream[M, Any], max_bytes: int) -> M:
    """The request message of a call that has exactly one."""
    message = await receive_or_end(stream, max_bytes)
    if message is None:
        raise WorkerError(ErrorCode.INVALID_ARGUMENT, "the request ended without a message; send one")
    return message


async def receive_or_end(stream: Stream[M, Any], max_bytes: int) -> M | None:
    """The next request message, or None after the last."""
    header = await _read(stream, HEADER_BYTES)
    if not header:
        return None
    _check_header(header, max_bytes)
    body = await _read(stream, int.from_bytes(header[1:], "big"))
    try:
        message: M = Codec().decode(body, stream._recv_type)  # noqa: SLF001  # the handler table's type of this call
    except ValueError as error:
        raise WorkerError(
            ErrorCode.INVALID_ARGUMENT, f"the request body is not a valid protobuf message: {error}"
        ) from None
    return message


async def _read(stream: Stream[Any, Any], size: int) -> bytes:
    try:
        return await stream._stream.recv_data(size)  # noqa: SLF001  # below recv_message there is no public reader
    except AssertionError:  # so grpclib says that the client ended the stream in the middle of a message
        raise WorkerError(
            ErrorCode.INVALID_ARGUMENT, "the request ended in the middle of a message"
        ) from None


def _check_header(header: bytes, max_bytes: int) -> None:
    if header[0]:
        raise GRPCError(
            Status.UNIMPLEMENTED, "compressed requests are not supported; turn compression off in the client"
        )
    size = int.from_bytes(header[1:], "big")
    if size > max_bytes:
        raise WorkerError(
            ErrorCode.REQUEST_TOO_LARGE,
            f"the request has {size} bytes, the worker takes at most {max_bytes} (max_request_bytes); "
            "split the task or raise the limit",
        )
