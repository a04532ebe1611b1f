"""The boundary between grpclib and the handlers: no exception passes it, and every request is counted.

Tokens are judged before anything of the body is read. A refusal becomes its status. A defect becomes INTERNAL and one log line with its traceback. A client that is gone is
nobody's fault. Whatever happens, the server and the other requests go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import attrs
import structlog
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Stream
from h2.exceptions import ProtocolError

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.rpc.access import OPEN_GATE, Gate
from blockx_worker.rpc.errors import INTERNAL_MESSAGE, to_grpc_error
from blockx_worker.rpc.receive import receive
from blockx_worker.security.tokens import Scope

__all__ = ["Requests", "Send", "Service", "StreamFunction", "handler", "streaming", "unary"]

log = structlog.get_logger(__name__)

StreamFunction: TypeAlias = Callable[[Stream[Any, Any]], Awaitable[None]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
Q = TypeVar("Q")

_CLIENT_GONE = (ProtocolError, StreamTerminatedError, ConnectionError)
_SHUTTING_DOWN = WorkerError(ErrorCode.UNAVAILABLE, "the worker is shutting down; submit to another one")


@attrs.frozen
class Service:
    """Method handlers under the full name of a service, in the form that grpclib's server takes."""

    name: str
    methods: dict[str, Handler]

    def __mapping__(self) -> dict[str, Handler]:
        return {f"/{self.name}/{method}": entry for method, entry in self.methods.items()}


@attrs.define
class Requests:
    """The requests under way: who may make them, their number, and whether the server ends them now."""

    gate: Gate = OPEN_GATE
    running: int = 0
    closing: bool = False
    _idle: trio.Event = attrs.field(factory=trio.Event)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around one request."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if self.closing and not self.running:
                self._idle.set()

    async def wait_ended(self) -> None:
        """After ``closing`` was set: wait for the last request to end."""
        if self.running:
            await self._idle.wait()


def handler(
    function: StreamFunction,
    requests: Requests,
    cardinality: Cardinality,
    request: type,
    reply: type,
    *,
    admit: Callable[[Stream[Any, Any]], None] | None,
) -> Handler:
    """A method that reads and answers its stream by itself, behind the boundary.

    ``admit`` raises for a request that may not be made; None = open to everybody.
    """

    async def guarded(stream: Stream[Any, Any]) -> None:
        with requests.counted(), _cancelled_by_client(stream):
            try:
                if admit is not None:
                    admit(stream)
                await function(stream)
            except WorkerError as error:
                raise to_grpc_error(error) from None
            except GRPCError:
                raise
            except asyncio.CancelledError:
                if not requests.closing:
                    raise
                raise to_grpc_error(_SHUTTING_DOWN) from None
            except _CLIENT_GONE as error:
                raise GRPCError(Status.CANCELLED, str(error)) from None
            except Exception as error:
                log.exception("rpc_failed", method=stream._method_name)  # noqa: SLF001  # no public name for it
                raise GRPCError(Status.INTERNAL, INTERNAL_MESSAGE) from error

    return Handler(guarded, cardinality, request, reply)


@contextmanager
def _cancelled_by_client(stream: Stream[Any, Any]) -> Iterator[None]:
    """A request that its client cancelled, left or timed out ends as cancelled, however its handler took it.

    grpclib calls everything else a failed cancellation and logs an error: also a handler that had just finished.
    """
    try:
        yield
    finally:
        if stream._stream.wrapper.cancelled:  # type: ignore[union-attr]  # noqa: SLF001  # grpclib tells it nowhere else
            raise asyncio.CancelledError


def unary(
    function: Callable[[Q], Awaitable[Any]],
    requests: Requests,
    max_bytes: int,
    request: type[Q],
    reply: type,
    *,
    scope: Scope | None,
) -> Handler:
    """A method with one request and one answer. ``scope`` None = open to everybody."""

    async def answer(stream: Stream[Any, Any]) -> None:
        await stream.send_message(await function(await receive(stream, max_bytes)))

    admit = None if scope is None else partial(requests.gate.admit, scope=scope)
    return handler(answer, requests, Cardinality.UNARY_UNARY, request, reply, admit=admit)


def streaming(
    function: Callable[[Q, Send], Awaitable[None]],
    requests: Requests,
    max_bytes: int,
    request: type[Q],
    reply: type,
    *,
    scope: Callable[[Q], Scope] | None,
) -> Handler:
    """A method with one request and a stream of answers; ``function`` gets the request and what sends one answer.

    ``scope`` tells what a request needs, once it is known; None = open to everybody.
    """

    async def answer(stream: Stream[Any, Any]) -> None:
        message = await receive(stream, max_bytes)
        if scope is not None:
            requests.gate.admit(stream, scope(message))
        await function(message, stream.send_message)

    admit = None if scope is None else requests.gate.admit
    return handler(answer, requests, Cardinality.UNARY_STREAM, request, reply, admit=admit)
