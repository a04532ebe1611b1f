"""HTTP POST over a pool of connections, with a limit for time, size and number.

What can go wrong is told in two kinds: it certainly never reached the server, or nobody knows. Redirects are not followed
and proxy variables not read: requests go where the configuration says.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self

import attrs
import httpx
import trio

__all__ = ["HttpConfig", "HttpPoster", "HttpReply", "HttpTooLarge", "TransportFailed", "open_http"]

KEEPALIVE_S = 30.0

# Uncompressed, so that the size limit is met by what is read and the one thread need not unpack.
HEADERS = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "blockx-worker"}


class TransportFailed(Exception):
    """No response; ``sent``: the server may have the request all the same."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class HttpTooLarge(Exception):
    """A response above the limit; its connection is closed."""


@attrs.frozen(kw_only=True)
class HttpConfig:
    """Limits: connections at once, times in ms, bytes of one response."""

    max_connections: int
    connect_timeout_ms: int
    attempt_timeout_ms: int
    max_response_bytes: int


@attrs.frozen
class HttpReply:
    """A whole response; ``retry_after_ms`` is what the server asks for, if it does."""

    status: int
    body: bytes
    retry_after_ms: int | None = None


@asynccontextmanager
async def open_http(
    config: HttpConfig, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[HttpPoster]:
    """A pool of connections for as long as the context is open."""
    for library in ("httpx", "httpcore"):  # they log the URL of every request, with the keys that stand in it
        logging.getLogger(library).setLevel(logging.WARNING)
    limits = httpx.Limits(
        max_connections=config.max_connections,
        max_keepalive_connections=config.max_connections,
        keepalive_expiry=KEEPALIVE_S,
    )
    async with httpx.AsyncClient(
        limits=limits,
        timeout=httpx.Timeout(None, connect=config.connect_timeout_ms / 1000),
        headers=HEADERS,
        trust_env=False,
        transport=transport,
    ) as client:
        yield HttpPoster(client, config)


class HttpPoster:
    """Made by `open_http`."""

    def __init__(self, client: httpx.AsyncClient, config: HttpConfig) -> None:
        self._client = client
        self._config = config

    async def post(self, url: str, body: bytes) -> HttpReply:
        """POST and read the whole response; `TransportFailed` or `HttpTooLarge`."""
        limit_ms = self._config.attempt_timeout_ms
        with trio.move_on_after(limit_ms / 1000):
            try:
                return await self._post(url, body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise TransportFailed(f"cannot connect: {_reason(error)}", sent=False) from error
            except httpx.HTTPError as error:
                raise TransportFailed(_reason(error), sent=True) from error
        raise TransportFailed(f"no response within {limit_ms} ms", sent=True)

    async def _post(self, url: str, body: bytes) -> HttpReply:
        chunks: list[bytes] = []
        size, limit = 0, self._config.max_response_bytes
        request = self._client.build_request("POST", url, content=body)
        request.stream = _Body(body)
        with trio.CancelScope() as reading:
            async with aclosing(await self._client.send(request, stream=True)) as response:
                async for chunk in response.aiter_bytes():
                    size += len(chunk)
                    if size <= limit:
                        chunks.append(chunk)
                    else:  # not by leaving the loop: httpx would leave generators behind that nobody closes
                        reading.cancel()
        if size > limit:
            raise HttpTooLarge
        return HttpReply(response.status_code, b"".join(chunks), _retry_after_ms(response.headers))


class _Body(httpx.AsyncByteStream):
    """The bytes of a request in one piece.

    Not a generator, as httpx makes one: a connection that breaks would leave it behind half way, for Trio to warn of.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = [body]

    def __aiter__(self) -> Self:
        self._left = [self._body]
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _retry_after_ms(headers: httpx.Headers) -> int | None:
    """Seconds only: a date would need the servers' clocks to agree."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return math.ceil(seconds * 1000) if 0 <= seconds < math.inf else None
