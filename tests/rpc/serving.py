"""A real server on loopback, the official client, and a proxy that can fall silent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

import grpc
import trio
from google.protobuf import message_factory

from blockx_worker.ports import WorkerApi
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.descriptors import descriptor_pool
from blockx_worker.rpc.server import serve

T = TypeVar("T")

WORKER = "blockx.worker.v1"
RPCS = {
    "RequestTaskSlot": "unary_unary",
    "SubmitTask": "unary_unary",
    "GetTaskResult": "unary_unary",
    "WatchTasks": "unary_stream",
    "CancelTask": "unary_unary",
    "GetWorkerStatus": "unary_unary",
}


@asynccontextmanager
async def serving(api: WorkerApi, **config: Any) -> AsyncIterator[str]:
    """A server over ``api``; its address. Everything inside is bounded, since a lost wake-up shows as a hang."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve, api, RpcConfig(port=0, **config))
            nursery.cancel_scope.cancel()


def message(name: str, **fields: Any) -> Any:
    """A message of WorkerService, of the official protobuf runtime."""
    return message_factory.GetMessageClass(descriptor_pool().FindMessageTypeByName(f"{WORKER}.{name}"))(
        **fields
    )


class Official:
    """WorkerService through the official client with default limits; for use in threads."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        secure = partial(grpc.secure_channel, credentials=credentials)
        self.channel = secure(address) if credentials else grpc.insecure_channel(address)
        self._service = descriptor_pool().FindServiceByName(f"{WORKER}.WorkerService")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def method(self, name: str) -> Any:
        """The callable of one RPC."""
        described = self._service.methods_by_name[name]
        return getattr(self.channel, RPCS[name])(
            f"/{WORKER}.WorkerService/{name}",
            message_factory.GetMessageClass(described.input_type).SerializeToString,
            message_factory.GetMessageClass(described.output_type).FromString,
        )

    def call(self, name: str, _timeout: float = 10, _metadata: Any = None, **fields: Any) -> Any:
        """Send one request made of ``fields``."""
        described = self._service.methods_by_name[name]
        request = message(described.input_type.name, **fields)
        return self.method(name)(request, timeout=_timeout, metadata=_metadata)

    def refused(self, name: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """The status of a request that must be refused."""
        return status_of(lambda: self.call(name, **fields))


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Status and message of a call that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call was answered")


async def with_official(
    address: str, use: Callable[[Official], T], credentials: grpc.ChannelCredentials | None = None
) -> T:
    """Run ``use`` with an official client in a thread."""

    def work() -> T:
        with Official(address, credentials) as client:
            return use(client)

    return await trio.to_thread.run_sync(work)


class Proxy:
    """Forwards TCP to ``address`` until `freeze` (silence, connections stay open) or `cut` (connections end)."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._frozen = False
        self._streams: list[trio.SocketStream] = []

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host=self._host)
        port = listeners[0].socket.getsockname()[1]
        task_status.started(f"{self._host}:{port}")
        await trio.serve_listeners(self._serve, listeners)

    def freeze(self) -> None:
        self._frozen = True

    def cut(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    async def _serve(self, client: trio.SocketStream) -> None:
        connection = trio.socket.socket()
        connection.setsockopt(
            trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 8192
        )  # what is not read stays unsent
        await connection.connect((self._host, self._port))
        server = trio.SocketStream(connection)
        self._streams += [client, server]
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self._forward, client, server)
            nursery.start_soon(self._forward, server, client)

    async def _forward(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65536):
                if self._frozen:
                    await trio.sleep_forever()
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
