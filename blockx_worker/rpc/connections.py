"""grpclib's server with connections that the worker can close and limit.

``Server.close`` of grpclib leaves connections open; here they get GOAWAY and are closed. A frame of unknown type would
end the connection with an error; HTTP/2 says to ignore it. Whatever bytes a client sends, they end its own connection
at most, without a line in the log that looks like a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import trio
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RemoteSettingsChanged, RequestReceived, UnknownFrameReceived
from h2.exceptions import FrameTooLargeError, ProtocolError, StreamClosedError
from h2.settings import SettingCodes
from hyperframe.frame import SettingsFrame

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.rpc.boundary import Service
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.receive import Codec
from blockx_worker.rpc.refusals import refusal_headers
from blockx_worker.rpc.transport import AbortingTransport, keepalive_configuration
from blockx_worker.telemetry.log import get_logger

__all__ = ["ServerConnection", "WorkerServer"]

log = get_logger(__name__)

CLOSE_LINGER_S = 1.0
"""How long a closing connection may take to send what is left."""

FRAME_HEADER_BYTES = 9
DECODED_HEADERS = 4  # times the limit
HEADER_OVERHEAD_BYTES = 32  # that HTTP/2 counts for each header


class WorkerServer(Server):
    """A grpclib server that knows its connections and gets them from outside: it does not listen by itself."""

    def __init__(self, services: Collection[Service], config: RpcConfig) -> None:
        keepalive = keepalive_configuration(config.keepalive_time_s, config.keepalive_timeout_s)
        super().__init__(services, codec=Codec(), config=keepalive)
        self._limits = config
        self._open: set[ServerConnection] = set()

    def connection(self) -> ServerConnection:
        """The protocol of a new connection, to be given a transport."""
        plain = self._protocol_factory()
        return ServerConnection(plain.handler, plain.config, plain.h2_config, self._limits, self._open)

    def cancel_requests(self) -> None:
        """Cancel every running request."""
        for handler in self._handlers:
            handler.close()

    async def close_connections(self) -> None:
        """On Trio: tell every client to go (GOAWAY), close, and wait for that.

        A client that takes nothing is cut off after ``CLOSE_LINGER_S``, so this ends also when it is shielded.
        """
        for connection in list(self._open):
            connection.shut("the worker is shutting down")
        for connection in list(self._open):
            await connection.lost.wait()


class ServerConnection(H2Protocol):
    """One connection. ``greeted``: the client's HTTP/2 greeting is there, or never comes; ``lost``: it is over."""

    def __init__(
        self,
        handler: Any,
        config: Configuration,
        h2_config: H2Configuration,
        limits: RpcConfig,
        open_set: set[ServerConnection],
    ) -> None:
        super().__init__(handler, config, h2_config)
        self._limits = limits
        self._open_set = open_set
        self.greeted = trio.Event()
        self.lost = trio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say our greeting, limits included."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(AbortingTransport(transport, CLOSE_LINGER_S))
        self._limit()
        self.processor.processors[RemoteSettingsChanged] = self._greet
        self.processor.processors[RequestReceived] = self._request
        self.processor.processors[UnknownFrameReceived] = _ignore
        self._open_set.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self.connection.is_closing():  # TLS may have some left
            return
        try:
            self._process(data)
        except Exception as error:  # noqa: BLE001  # whatever a client sends must not look like a defect of ours
            log.debug("broken_connection", reason=str(error) or type(error).__name__)
            code = error.error_code if isinstance(error, ProtocolError) else ErrorCodes.PROTOCOL_ERROR
            self.shut("the client broke the rules of HTTP/2", code)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        self._open_set.discard(self)
        super().connection_lost(exc)
        self.greeted.set()
        self.lost.set()

    def shut(self, reason: str, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Say GOAWAY and close."""
        if not self.connection.is_closing():
            self._h2.close_connection(code)
            self.connection.flush()
            self.processor.close(reason)

    @property
    def _h2(self) -> H2Connection:
        return self.connection._connection  # noqa: SLF001  # grpclib gives no way to GOAWAY or to these limits

    def _process(self, data: bytes) -> None:
        events = self.connection.feed(data)
        if len(self._h2.incoming_buffer._data) > self._h2.max_inbound_frame_size + FRAME_HEADER_BYTES:  # noqa: SLF001
            raise FrameTooLargeError("h2 would collect an overlong frame before it refuses it")
        self.connection.flush()
        for event in events:
            self.processor.process(event)
        self.connection.flush()

    def _limit(self) -> None:
        """Tell the client its limits.

        Headers beyond theirs can still be decoded, to a point: a request with too many is refused, where h2 would end the
        connection with all that is on it. So h2 does not hear of the limit that is told to the client.
        """
        limits = self._limits
        self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams})
        self._h2.decoder.max_header_list_size = DECODED_HEADERS * limits.max_header_bytes
        self.connection.flush()
        told = {SettingsFrame.MAX_HEADER_LIST_SIZE: limits.max_header_bytes}
        self.connection._transport.write(SettingsFrame(settings=told).serialize())  # noqa: SLF001

    def _greet(self, event: RemoteSettingsChanged) -> None:
        self.greeted.set()
        self.processor.process_remote_settings_changed(event)

    def _request(self, event: RequestReceived) -> None:
        """Refuse one whose headers are too large, as long as they can be decoded at all, and go on."""
        headers = event.headers or []
        size = sum(len(name) + len(value) + HEADER_OVERHEAD_BYTES for name, value in headers)
        if size <= self._limits.max_header_bytes:
            self.processor.process_request_received(event)
            return
        refusal = WorkerError(
            ErrorCode.REQUEST_TOO_LARGE,
            f"the request has {size} bytes of headers, the worker takes at most {self._limits.max_header_bytes} "
            "(rpc.max_header_bytes); send less metadata",
        )
        assert event.stream_id is not None
        self._h2.send_headers(event.stream_id, refusal_headers(refusal), end_stream=True)
        with suppress(StreamClosedError):  # if the request was there as a whole
            self._h2.reset_stream(event.stream_id, ErrorCodes.NO_ERROR)


def _ignore(_event: object) -> None:
    pass
