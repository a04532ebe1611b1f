"""grpclib's server with connections that the worker can close.

``Server.close`` of grpclib leaves connections open; here they get GOAWAY and are closed. A frame of unknown type would
end the connection with an error; HTTP/2 says to ignore it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import trio
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from h2.config import H2Configuration
from h2.events import UnknownFrameReceived

from blockx_worker.rpc.boundary import Service
from blockx_worker.rpc.receive import Codec
from blockx_worker.rpc.transport import AbortingTransport

__all__ = ["WorkerServer"]

CLOSE_LINGER_S = 1.0
"""How long a closing connection may take to send what is left."""


class WorkerServer(Server):
    """A grpclib server that knows its connections."""

    def __init__(self, services: Collection[Service], config: Configuration) -> None:
        super().__init__(services, codec=Codec(), config=config)
        self._open: set[_ServerProtocol] = set()

    @property
    def bound(self) -> tuple[str, int]:
        """Host and port of the first listening socket."""
        assert isinstance(self._server, asyncio.Server)
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def close_connections(self) -> None:
        """On Trio: tell every client to go (GOAWAY), close, and wait for that.

        A client that takes nothing is cut off after ``CLOSE_LINGER_S``, so this ends also when it is shielded.
        """
        for protocol in list(self._open):
            protocol.shut()
        for protocol in list(self._open):
            await protocol.lost.wait()

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _ServerProtocol(plain.handler, plain.config, plain.h2_config, self._open)


class _ServerProtocol(H2Protocol):
    def __init__(
        self, handler: Any, config: Configuration, h2_config: H2Configuration, open_set: set[_ServerProtocol]
    ) -> None:
        super().__init__(handler, config, h2_config)
        self._open_set = open_set
        self.lost = trio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(AbortingTransport(transport, CLOSE_LINGER_S))
        self.processor.processors[UnknownFrameReceived] = _ignore
        self._open_set.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open_set.discard(self)
        super().connection_lost(exc)
        self.lost.set()

    def shut(self) -> None:
        if not self.connection.is_closing():
            self.connection._connection.close_connection()  # noqa: SLF001  # grpclib has no way to send GOAWAY
            self.connection.flush()
            self.processor.close("the worker is shutting down")


def _ignore(_event: object) -> None:
    pass
