"""The client itself, in asyncio over grpclib; the flavours for Trio and for blocking programs run its coroutines.

Rules and traps:

* Every method is one coroutine, and a watch is an object with `next` and `close`, because under Trio each step runs in
  an asyncio task of its own; an async generator would be resumed from different tasks.
* A connection counts as made once the worker has greeted. With TLS 1.3 a client believes itself connected before the
  worker has judged its certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from enum import Enum, auto
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import attrs
import betterproto
from grpclib.client import Channel, Stream
from grpclib.const import Cardinality
from grpclib.protocol import H2Protocol
from h2.events import RemoteSettingsChanged

from blockx_worker.client import convert
from blockx_worker.client.errors import translated
from blockx_worker.client.task import Task
from blockx_worker.model.tasks import TaskSnapshot
from blockx_worker.model.watch import (
    ResultPage,
    WatchEvent,
    WorkerStatus,
)
from blockx_worker.ports import SubmitReply
from blockx_worker.rpc.pb.blockx.worker import v1 as pb
from blockx_worker.rpc.receive import Codec
from blockx_worker.rpc.transport import AbortingTransport, keepalive_configuration

__all__ = ["ClientOptions", "Core", "CoreWatch", "EventStream", "TaskCore"]

R = TypeVar("R", bound=betterproto.Message)

_SERVICE = "/blockx.worker.v1.WorkerService/"


@attrs.frozen(kw_only=True)
class ClientOptions:
    """How a client behaves; times are seconds.

    ``request_timeout_s`` bounds one request, beyond what it asks the worker to wait. ``run`` first waits ``run_wait_ms``
    for a short task to end within its submit, and tries for ``reconnect_s`` to come back to a worker that is gone.
    ``metadata`` goes with every request, and so does ``token``, where the worker asks for one. ``tls``: how to make the
    connection secret, see `tls_context`; None = plain text.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0
    keepalive_time_s: float = 20.0
    keepalive_timeout_s: float = 20.0
    reconnect_s: float = 30.0
    run_wait_ms: int = 200
    metadata: dict[str, str] = attrs.field(factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    token: str | None = attrs.field(default=None, repr=False)

    def all_metadata(self) -> dict[str, str]:
        """What goes with every request."""
        if self.token is None:
            return self.metadata
        return {**self.metadata, "authorization": f"Bearer {self.token}"}


class EventStream(Protocol):
    """Events of watched tasks, step by step; `CoreWatch` says more."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def next(self) -> WatchEvent | None:
        """The next event; None after the last."""

    async def close(self) -> None:
        """Leave."""


class TaskCore(Protocol):
    """What the flavours of the client run: one worker (`Core`), or whichever a directory chooses for a task."""

    @property
    def address(self) -> str:
        """The worker's address."""

    @property
    def options(self) -> ClientOptions:
        """How the client behaves."""

    async def request_slot(self, task_id: str, ttl_ms: int = 0) -> TaskSnapshot:
        """Lease a slot; 0 = the worker's default time."""

    async def submit(self, task: Task, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end."""

    async def result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""

    async def cancel(self, task_id: str, reason: str = "") -> TaskSnapshot:
        """Cancel a task, or give a leased slot back."""

    async def status(self) -> WorkerStatus:
        """The worker as it stands."""

    def watch(self, task_ids: Sequence[str], *, observe: bool = False) -> EventStream:
        """Watch tasks; nothing happens before the first `EventStream.next`."""


class Core:
    """One connection to one worker; made again by itself when it broke."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = address
        self.options = options
        host, port = _split(address)
        keepalive = keepalive_configuration(options.keepalive_time_s, options.keepalive_timeout_s)
        self._metadata = options.all_metadata()
        self._channel = _Channel(host, port, codec=Codec(), config=keepalive, ssl=options.tls)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()

    async def connect(self) -> None:
        """Connect if there is no connection. Requests do so by themselves; what fails here was certainly not sent."""
        with translated(self.address):
            await asyncio.wait_for(self._channel.__connect__(), self.options.connect_timeout_s)

    async def request_slot(self, task_id: str, ttl_ms: int = 0) -> TaskSnapshot:
        """Lease a slot; 0 = the worker's default time."""
        request = pb.RequestTaskSlotRequest(task_id=task_id, ttl_ms=ttl_ms)
        return convert.to_snapshot(
            (await self._call("RequestTaskSlot", request, pb.RequestTaskSlotResponse)).task
        )

    async def submit(self, task: Task, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end."""
        request = task.to_request(wait_ms)
        return convert.to_submit_reply(
            await self._call("SubmitTask", request, pb.SubmitTaskResponse, wait_ms / 1000)
        )

    async def result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""
        request = pb.GetTaskResultRequest(task_id=task_id, output_offset=output_offset)
        return convert.to_page(await self._call("GetTaskResult", request, pb.GetTaskResultResponse))

    async def cancel(self, task_id: str, reason: str = "") -> TaskSnapshot:
        """Cancel a task, or give a leased slot back."""
        request = pb.CancelTaskRequest(task_id=task_id, reason=reason)
        return convert.to_snapshot((await self._call("CancelTask", request, pb.CancelTaskResponse)).task)

    async def status(self) -> WorkerStatus:
        """The worker as it stands."""
        answer = await self._call("GetWorkerStatus", pb.GetWorkerStatusRequest(), pb.GetWorkerStatusResponse)
        return convert.to_status(answer.status)

    def watch(self, task_ids: Sequence[str], *, observe: bool = False) -> CoreWatch:
        """Watch tasks; nothing happens before the first `CoreWatch.next`."""
        request = pb.WatchTasksRequest(task_ids=list(task_ids), observe=observe)
        stream = self._open("WatchTasks", Cardinality.UNARY_STREAM, request, pb.TaskEvent, None)
        return CoreWatch(self.address, request, stream)

    async def _call(
        self, method: str, request: betterproto.Message, reply_type: type[R], extra_s: float = 0
    ) -> R:
        timeout_s = self.options.request_timeout_s + extra_s
        with translated(self.address):
            async with self._open(method, Cardinality.UNARY_UNARY, request, reply_type, timeout_s) as stream:
                await stream.send_message(request, end=True)
                reply: R | None = await stream.recv_message()
        assert reply is not None
        return reply

    def _open(
        self,
        method: str,
        cardinality: Cardinality,
        request: betterproto.Message,
        reply_type: type[R],
        timeout_s: float | None,
    ) -> Stream[Any, R]:
        return self._channel.request(
            _SERVICE + method,
            cardinality,
            type(request),
            reply_type,
            timeout=timeout_s,
            metadata=self._metadata,
        )


class CoreWatch:
    """One WatchTasks stream, step by step. A step that is cancelled or fails ends the watch."""

    def __init__(
        self, address: str, request: pb.WatchTasksRequest, stream: Stream[Any, pb.TaskEvent]
    ) -> None:
        self._address = address
        self._request = request
        self._stream = stream
        self._state = _WatchState.NEW

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self) -> WatchEvent | None:
        """The next event; None after the last."""
        while self._state is not _WatchState.ENDED:
            if self._state is _WatchState.BROKEN:
                raise RuntimeError("this watch was cancelled, failed or closed; open another one")
            with translated(self._address):
                message = await self._receive()
            if message is not None and (event := convert.to_event(message)) is not None:
                return event
        return None

    async def close(self) -> None:
        """Leave; the worker hears of it at once. May be called twice, and after an error."""
        if self._state is _WatchState.OPEN:
            await self._leave(asyncio.CancelledError())
        elif self._state is _WatchState.NEW:
            self._state = _WatchState.BROKEN

    async def _receive(self) -> pb.TaskEvent | None:
        """A message half read cannot be read again, hence no second try after a cancelled one."""
        try:
            if self._state is _WatchState.NEW:
                self._state = _WatchState.OPEN
                await self._stream.__aenter__()
                await self._stream.send_message(self._request, end=True)
            message = await self._stream.recv_message()
            if message is None:
                self._state = _WatchState.ENDED
                await self._stream.__aexit__(None, None, None)  # raises what the trailers say
        except BaseException as error:
            if self._state is _WatchState.OPEN:
                await self._leave(error)
            self._state = _WatchState.BROKEN
            raise
        return message

    async def _leave(self, error: BaseException) -> None:
        self._state = _WatchState.BROKEN
        await self._stream.__aexit__(type(error), error, error.__traceback__)


class _WatchState(Enum):
    NEW = auto()
    OPEN = auto()
    ENDED = auto()
    BROKEN = auto()


class _Channel(Channel):
    async def _create_connection(self) -> H2Protocol:
        protocol = await super()._create_connection()
        assert isinstance(protocol, _Protocol)
        try:
            await protocol.greeted
        except BaseException:
            protocol.processor.close()
            raise
        return protocol

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _Protocol(plain.handler, plain.config, plain.h2_config)


class _Protocol(H2Protocol):
    """``greeted`` is done with the worker's HTTP/2 greeting, or with why it does not come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(
            AbortingTransport(transport, linger_s=0)
        )  # a client that closes waits for nothing
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.processor.processors[RemoteSettingsChanged] = self._greet

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.greeted.done():
            self.greeted.set_exception(
                exc or ConnectionError("the connection was closed before the worker answered")
            )
            self.greeted.exception()  # somebody may have stopped waiting

    def _greet(self, event: RemoteSettingsChanged) -> None:
        if not self.greeted.done():
            self.greeted.set_result(None)
        self.processor.process_remote_settings_changed(event)


def _split(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"the worker's address is {address[:100]!r}; accepted: host:port, such as 127.0.0.1:7420"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
