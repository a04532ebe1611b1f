"""One connection to one etcd member, in asyncio: aetcd's messages over grpclib's connections.

Of aetcd (1.0.0) only the generated messages are used, because of what was found in its client, in etcd (3.5.1) and in
gRPC's own library, on which that client stands:

* It has no time-out by default, so a paused etcd hangs its caller. Here every call has one; a watch has one for its
  beginning, and keep-alive pings for the rest of its life. (etcd refuses pings more often than every five seconds.)
* It knows plain channels only, and fetches its token once.
* It takes a watch that etcd refuses, as with a token that has run out, for one on which nothing happens.
* A watch from a revision that does not exist yet is no error to etcd, it is silent until then: after the data were
  lost that may be for ever. `EtcdClient.watch` compares revisions when it begins.
* A refresh of a lease that is gone answers normally, with TTL 0.
* A call that timed out may be carried out nevertheless, when a paused etcd goes on.
* gRPC's own library wakes all asyncio loops of the process through one socket. Trio lets only one task wait for a
  socket, so that two loops in one Trio program fail with BusyResourceError.

Errors of all kinds are `EtcdError`, with the endpoint in the message. A client is used by one task at a time, and not
again after an error.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import attrs
from aetcd import rpc
from grpclib.client import Channel, Stream
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from h2.exceptions import ProtocolError

from blockx_worker.config.addresses import parse_address
from blockx_worker.rpc.transport import AbortingTransport, keepalive_configuration
from blockx_worker.security.tls import TlsFileError, client_context

__all__ = ["Change", "EtcdAccess", "EtcdClient", "EtcdError", "Lease", "Listing"]

KEEPALIVE_TIME_S = 10.0
KEEPALIVE_TIMEOUT_S = 5.0


class EtcdError(Exception):
    """etcd cannot be reached, did not answer in time, or refused."""


@attrs.frozen(kw_only=True)
class EtcdAccess:
    """How to be let in: user and password, and the files (PEM) of TLS; without ``tls_ca`` the channel is plain."""

    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@attrs.frozen
class Lease:
    """A lease and the TTL that etcd has granted, which may be longer than what was asked for."""

    lease_id: int
    ttl_s: int


@attrs.frozen
class Listing:
    """Keys and values under a prefix as of one revision."""

    revision: int
    values: Mapping[bytes, bytes]


@attrs.frozen
class Change:
    """A key has a new value; None = it is gone."""

    key: bytes
    value: bytes | None


class EtcdClient:
    """A connection; `open` makes one, `close` must follow."""

    def __init__(self, endpoint: str, channel: Channel, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel = channel
        self._metadata: dict[str, str] = {}

    @classmethod
    async def open(cls, endpoint: str, access: EtcdAccess, timeout_s: float) -> Self:
        """Connect and log in; each call takes ``timeout_s`` at most. Certificates are read anew each time."""
        with _errors_of(endpoint):
            client = cls(endpoint, _channel(endpoint, access), timeout_s)
        try:
            if access.user is not None:
                await client._log_in(access)
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Close at once; calls under way are given up."""
        self._channel.close()

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        answer = await self._ask("Lease/LeaseGrant", request, rpc.LeaseGrantResponse)
        return Lease(answer.ID, answer.TTL)

    async def refresh(self, lease_id: int) -> int:
        """Refresh a lease: its TTL in seconds, 0 if it is gone."""
        request = rpc.LeaseKeepAliveRequest(ID=lease_id)
        answer = await self._ask(
            "Lease/LeaseKeepAlive", request, rpc.LeaseKeepAliveResponse, Cardinality.STREAM_STREAM
        )
        return 0 if answer is None else int(answer.TTL)

    async def revoke(self, lease_id: int) -> None:
        """End a lease; the keys that it holds are gone."""
        await self._ask("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease_id), rpc.LeaseRevokeResponse)

    async def put(self, key: bytes, value: bytes, lease_id: int) -> None:
        """Set a key that lives as long as the lease, whoever has set it before."""
        await self._ask("KV/Put", rpc.PutRequest(key=key, value=value, lease=lease_id), rpc.PutResponse)

    async def lease_of(self, key: bytes) -> int | None:
        """The lease that holds a key, 0 = none; None if there is no such key."""
        answer = await self._ask("KV/Range", rpc.RangeRequest(key=key, keys_only=True), rpc.RangeResponse)
        return int(answer.kvs[0].lease) if answer.kvs else None

    async def list(self, prefix: bytes) -> Listing:
        """All keys that begin with ``prefix``."""
        request = rpc.RangeRequest(key=prefix, range_end=_range_end(prefix))
        answer = await self._ask("KV/Range", request, rpc.RangeResponse)
        return Listing(answer.header.revision, {kv.key: kv.value for kv in answer.kvs})

    async def watch(self, prefix: bytes, after_revision: int) -> AsyncGenerator[Change, None]:
        """Changes to keys that begin with ``prefix`` after a revision that this client has listed; never ends well."""
        create = rpc.WatchCreateRequest(
            key=prefix, range_end=_range_end(prefix), start_revision=after_revision + 1
        )
        request = rpc.WatchRequest(create_request=create)
        stream = self._stream("Watch/Watch", request, rpc.WatchResponse, Cardinality.STREAM_STREAM, None)
        with _errors_of(self.endpoint):
            async with stream:
                async with asyncio.timeout(self._timeout_s):
                    await stream.send_message(request)
                    answer = self._accepted(await stream.recv_message())
                if answer.header.revision < after_revision:
                    raise EtcdError(f"{self.endpoint}: etcd has lost its data")
                while True:
                    for event in answer.events:
                        gone = event.type == event.DELETE
                        yield Change(event.kv.key, None if gone else event.kv.value)
                    answer = self._accepted(await stream.recv_message())

    async def _log_in(self, access: EtcdAccess) -> None:
        request = rpc.AuthenticateRequest(name=access.user, password=access.password)
        answer = await self._ask("Auth/Authenticate", request, rpc.AuthenticateResponse)
        self._metadata = {"token": answer.token}

    async def _ask(
        self,
        method: str,
        request: Any,
        reply_type: Any,
        cardinality: Cardinality = Cardinality.UNARY_UNARY,
    ) -> Any:
        """Send one message, take one. etcd is told of the time-out, too, so that it gives up what is not wanted."""
        stream = self._stream(method, request, reply_type, cardinality, self._timeout_s)
        with _errors_of(self.endpoint):
            async with asyncio.timeout(self._timeout_s), stream:
                await stream.send_message(request, end=True)
                return await stream.recv_message()

    def _stream(
        self, method: str, request: Any, reply_type: Any, cardinality: Cardinality, timeout_s: float | None
    ) -> Stream[Any, Any]:
        return self._channel.request(
            f"/etcdserverpb.{method}",
            cardinality,
            type(request),
            reply_type,
            timeout=timeout_s,
            metadata=self._metadata,
        )

    def _accepted(self, answer: Any) -> Any:
        if answer is None:
            raise EtcdError(f"{self.endpoint}: the watch was ended")
        if answer.canceled or answer.compact_revision:
            raise EtcdError(f"{self.endpoint}: the watch was ended: {answer.cancel_reason or 'compacted'}")
        return answer


class _Channel(Channel):
    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _Protocol(plain.handler, plain.config, plain.h2_config)


class _Protocol(H2Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A paused etcd takes no farewell, so closing waits for none."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(AbortingTransport(transport, linger_s=0))


def _channel(endpoint: str, access: EtcdAccess) -> Channel:
    host, port = parse_address(endpoint)
    tls = None if access.tls_ca is None else client_context(access.tls_ca, access.tls_cert, access.tls_key)
    return _Channel(
        host, port, ssl=tls, config=keepalive_configuration(KEEPALIVE_TIME_S, KEEPALIVE_TIMEOUT_S)
    )


@contextmanager
def _errors_of(endpoint: str) -> Iterator[None]:
    try:
        yield
    except GRPCError as error:
        raise EtcdError(f"{endpoint}: {error.status.name}: {error.message}") from None
    except TimeoutError:
        raise EtcdError(f"{endpoint}: no answer in time") from None
    except TlsFileError as error:
        raise EtcdError(f"{endpoint}: cannot use {error}") from None
    except (StreamTerminatedError, ProtocolError) as error:
        raise EtcdError(f"{endpoint}: {str(error) or type(error).__name__}") from None
    except OSError as error:
        raise EtcdError(f"{endpoint}: {_why(error)}") from None


def _why(error: OSError) -> str:
    """In words of the system, in place of which asyncio puts its own."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return f"TLS: {error.strerror or error}" if isinstance(error, ssl.SSLError) else str(error)


def _range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with ``prefix``, whose last byte must not be 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
