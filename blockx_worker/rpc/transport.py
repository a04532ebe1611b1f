"""What both ends of a connection share: keep-alive that notices a frozen peer, and a close that ends.

Read in grpclib's source (0.4.9):

* The keep-alive needs all of its private fields: by default pings stop after two without data between them, and none
  is sent within five minutes of the last.
* When a ping stays unanswered, grpclib closes the transport gently: with bytes still unsent, asyncio waits until the
  peer takes them. A frozen peer never does, so the connection, its calls and its watches would stay for ever although
  the keep-alive had noticed. Here a close that is not through after a while becomes an abort.
"""

from __future__ import annotations

import asyncio

from grpclib.config import Configuration

__all__ = ["AbortingTransport", "keepalive_configuration"]


def keepalive_configuration(time_s: float, timeout_s: float) -> Configuration:
    """Ping every ``time_s``; without an answer within ``timeout_s`` the peer is gone, with calls or without."""
    return Configuration(
        _keepalive_time=time_s,
        _keepalive_timeout=timeout_s,
        _keepalive_permit_without_calls=True,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=time_s / 2,
    )


class AbortingTransport(asyncio.Transport):
    """A transport as grpclib uses it, with a `close` that ends within ``linger_s`` whatever the peer does."""

    def __init__(self, transport: asyncio.Transport, linger_s: float) -> None:
        super().__init__()
        self._transport = transport
        self._linger_s = linger_s
        self.write = transport.write  # type: ignore[method-assign]  # the hot path, without a frame of our own
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def close(self) -> None:
        """Send what is left, for ``linger_s`` at most."""
        if not self._linger_s:
            self._transport.abort()
            return
        self._transport.close()
        asyncio.get_running_loop().call_later(self._linger_s, self._transport.abort)
