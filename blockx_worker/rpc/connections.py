"""grpclib's server with connections that can be closed, and that close when the client is frozen.

What grpclib lacks, read in its source (0.4.9):

* ``Connection.close`` closes the transport gently: with bytes still unsent, asyncio waits until the client takes them.
  A frozen client never does, so the connection, its handlers and its watches would stay for ever although the
  keep-alive had noticed. Here a close that is not through after a second becomes an abort.
* ``Server.close`` leaves connections open; here they get GOAWAY and are closed.
* A frame of unknown type ends the connection with an error; HTTP/2 says to ignore it.
* The keep-alive needs all of its private fields: by default pings stop after two without data between them, and none
  is sent within five minutes of the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from h2.config import H2Configuration
from h2.events import UnknownFrameReceived

from blockx_worker.rpc.boundary import Service
from blockx_worker.rpc.receive import Codec

__all__ = ["WorkerServer", "keepalive_configuration"]

CLOSE_LINGER_S = 1.0


def keepalive_configuration(time_s: float, timeout_s: float) -> Configuration:
    """Ping every ``time_s``; without an answer within ``timeout_s`` the other side is gone, with calls or without."""
    return Configuration(
        _keepalive_time=time_s,
        _keepalive_timeout=timeout_s,
        _keepalive_permit_without_calls=True,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=time_s / 2,
    )


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

    def close_connections(self) -> None:
        """Tell every client to go (GOAWAY) and close; a client that takes nothing is cut off soon after."""
        for protocol in list(self._open):
            protocol.shut()

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _ServerProtocol(plain.handler, plain.config, plain.h2_config, self._open)


class _ServerProtocol(H2Protocol):
    def __init__(
        self, handler: Any, config: Configuration, h2_config: H2Configuration, open_set: set[_ServerProtocol]
    ) -> None:
        super().__init__(handler, config, h2_config)
        self._open_set = open_set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(_AbortingTransport(transport))
        self.processor.processors[UnknownFrameReceived] = _ignore
        self._open_set.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open_set.discard(self)
        super().connection_lost(exc)

    def shut(self) -> None:
        if not self.connection.is_closing():
            self.connection._connection.close_connection()  # noqa: SLF001  # grpclib has no way to send GOAWAY
            self.connection.flush()
            self.processor.close("the worker is shutting down")


class _AbortingTransport(asyncio.Transport):
    """The transport as grpclib uses it, with a `close` that ends within a second whatever the client does."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self.write = transport.write  # type: ignore[method-assign]  # the hot path, without a frame of our own
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def close(self) -> None:
        self._transport.close()
        asyncio.get_running_loop().call_later(CLOSE_LINGER_S, self._transport.abort)


def _ignore(_event: object) -> None:
    pass
