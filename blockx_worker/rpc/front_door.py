"""The front door of the TCP port: from an accepted socket to a connection that has greeted.

::

    accept ── too many? ── first byte: TLS or not? ── TLS handshake ── HTTP/2 greeting ── served until it is over
                └ turned away      └ told which               └ alert          └ closed
                                   └────────────── all within handshake_timeout_s ──────────────┘

Rules and traps:

* Nothing is sent before the client's first byte: it tells a TLS record from the plain text of HTTP/2 (or anything
  else). A client of the wrong kind is turned away in plain HTTP/2; a TLS client takes that for a wrong version of TLS,
  which is what TLS clients say of a plain port.
* asyncio drops what OpenSSL still wants to send when a handshake fails, and with it the alert that tells the client
  why. `_Session` keeps it, and a second handle of the socket carries it.
* A socket that is closed with bytes unread is reset, and a reset overtakes the last words. So the door waits a moment
  for the other side to close.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from blockx_worker import bridge
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.connections import ServerConnection
from blockx_worker.rpc.refusals import RefusalLog
from blockx_worker.rpc.turn_away import turn_away
from blockx_worker.security.tls_words import seen_by_server

__all__ = ["FrontDoor"]

ALERT_S = 1.0
"""How long a client may take to read why its handshake failed."""

MAX_LEAVING = 64
"""How many clients may be turned away at once; further ones are cut off."""

_TLS_HANDSHAKE = b"\x16"


class FrontDoor:
    """Lets connections in; `admit` is the handler of `trio.serve_listeners`."""

    def __init__(self, new_connection: Callable[[], ServerConnection], config: RpcConfig) -> None:
        self._new_connection = new_connection
        self._config = config
        self._log = RefusalLog(__name__)
        self._inside = 0
        self._leaving = 0

    async def admit(self, stream: trio.SocketStream) -> None:
        """See one connection through to its end."""
        peer = _peer(stream.socket)
        if self._inside >= self._config.max_connections:
            await self._turn_away_from_full_house(stream, peer)
            return
        self._inside += 1
        try:
            await self._welcome(stream, peer)
        except OSError as error:  # broken by the client, or by the network
            self._log.refused(
                "connection_broken", peer, str(error) or "the client closed it before its greeting"
            )
        finally:
            self._inside -= 1

    async def _welcome(self, stream: trio.SocketStream, peer: str) -> None:
        connection = None
        with trio.move_on_after(self._config.handshake_timeout_s) as patience:
            if not await self._speaks_our_kind(stream, peer):
                return
            connection = await self._connect(stream, peer)
            if connection is None:
                return
            await connection.greeted.wait()
        if patience.cancelled_caught:
            limit = f"{self._config.handshake_timeout_s:g} s (rpc.handshake_timeout_ms)"
            self._log.refused(
                "connection_too_slow", peer, f"no TLS handshake and HTTP/2 greeting within {limit}"
            )
            if connection is not None:
                connection.shut("no greeting in time")
        if connection is not None:
            with trio.CancelScope(shield=True):  # at shutdown the server closes it
                await connection.lost.wait()

    async def _speaks_our_kind(self, stream: trio.SocketStream, peer: str) -> bool:
        first = await stream.socket.recv(1, socket.MSG_PEEK)
        if not first:
            return False
        tls = self._config.tls is not None
        if tls == (first == _TLS_HANDSHAKE):
            return True
        what = (
            "takes TLS only; connect with TLS (--tls-ca F)"
            if tls
            else "does not speak TLS; connect without it"
        )
        await self._turn_away(
            "connection_of_wrong_kind",
            stream,
            peer,
            WorkerError(ErrorCode.UNAUTHENTICATED, f"the worker's port {what}"),
        )
        return False

    async def _connect(self, stream: trio.SocketStream, peer: str) -> ServerConnection | None:
        """Hand the socket over to asyncio; None if the TLS handshake failed."""
        plain = socket.socket(fileno=stream.socket.detach())
        plain.setblocking(False)
        if self._config.tls is None:
            return await self._hand_over(plain)
        session = _Session(self._config.tls)
        with trio.socket.from_stdlib_socket(plain.dup()) as spare:
            try:
                return await self._hand_over(plain, ssl=session)
            except ssl.SSLError as error:
                self._log.refused("connection_without_tls", peer, seen_by_server(error))
                await _alert(trio.SocketStream(spare), session.alert)
                return None

    async def _hand_over(self, plain: socket.socket, **tls: Any) -> ServerConnection:
        loop = asyncio.get_running_loop()
        _, connection = await bridge.run_asyncio(
            partial(loop.connect_accepted_socket, self._new_connection, plain, **tls)
        )
        return connection

    async def _turn_away_from_full_house(self, stream: trio.SocketStream, peer: str) -> None:
        reason = f"the worker has {self._inside} connections (rpc.max_connections); ask another, or raise the limit"
        if self._config.tls is None:
            await self._turn_away(
                "too_many_connections", stream, peer, WorkerError(ErrorCode.UNAVAILABLE, reason)
            )
        else:  # a TLS client would take plain words for a port without TLS
            self._log.refused("too_many_connections", peer, reason)

    async def _turn_away(
        self, event: str, stream: trio.SocketStream, peer: str, refusal: WorkerError
    ) -> None:
        self._log.refused(event, peer, refusal.message)
        if self._leaving >= MAX_LEAVING:
            return
        self._leaving += 1
        try:
            await turn_away(stream, refusal)
        finally:
            self._leaving -= 1


class _Session:
    """Stands for the TLS context at one connection, and keeps the alert of a handshake that fails."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.alert = b""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any) -> ssl.SSLObject:
        """All that asyncio asks of a context."""
        tls = self._context.wrap_bio(incoming, outgoing, **options)
        do_handshake = tls.do_handshake

        def keeping_the_alert() -> None:
            try:
                do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLSyscallError):
                raise
            except ssl.SSLError:
                self.alert = outgoing.read()
                raise

        tls.do_handshake = keeping_the_alert  # type: ignore[method-assign]
        return tls


async def _alert(stream: trio.SocketStream, alert: bytes) -> None:
    try:
        with trio.move_on_after(ALERT_S):
            await stream.send_all(alert)
            await stream.send_eof()
            while await stream.receive_some():
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


def _peer(sock: trio.socket.SocketType) -> str:
    try:
        host, port, *_ = sock.getpeername()
    except OSError:  # gone already
        return "unknown"
    return f"{host}:{port}"
