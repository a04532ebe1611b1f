"""One connection to one etcd member, in asyncio, over the stubs that aetcd generates from etcd's protocol.

aetcd's own client is not used, because of what was found in it and in etcd (1.0.0, 3.5.1):

* It has no time-out by default, so a paused etcd hangs its caller. Here every call has one; a watch has one for its
  beginning, and keep-alive pings for the rest of its life. (etcd refuses pings more often than every five seconds.)
* It knows plain channels only, and fetches its token once.
* It takes a watch that etcd refuses, as with a token that has run out, for one on which nothing happens.
* A watch from a revision that does not exist yet is no error to etcd, it is silent until then: after the data were
  lost that may be for ever. `EtcdClient.watch` compares revisions when it begins.
* A refresh of a lease that is gone answers normally, with TTL 0.
* gRPC shares connections, and how long they wait after failures, between channels to the same address; a new channel
  would wait for what an old one has seen. Each of ours has its own.

Errors of all kinds are `EtcdError`, with the endpoint in the message. A client is used by one task at a time, and not
again after an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import attrs

# gRPC's core writes its own lines to stderr, where a worker writes JSON; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from aetcd import rpc

__all__ = ["Change", "EtcdAccess", "EtcdClient", "EtcdError", "Lease", "Listing"]

KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5000
MAX_ANSWER_BYTES = 64 * 1024 * 1024

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # etcd stands inside, and a proxy for the web is no way to it
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
)


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

    def __init__(self, endpoint: str, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel = channel
        self._token: Sequence[tuple[str, str]] = ()
        self._kv = rpc.KVStub(channel)
        self._leases = rpc.LeaseStub(channel)

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
        await self._channel.close()

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease."""
        answer = await self._ask(self._leases.LeaseGrant, rpc.LeaseGrantRequest(TTL=ttl_s))
        return Lease(answer.ID, answer.TTL)

    async def refresh(self, lease_id: int) -> int:
        """Refresh a lease: its TTL in seconds, 0 if it is gone."""
        with _errors_of(self.endpoint):
            call = self._leases.LeaseKeepAlive(
                [rpc.LeaseKeepAliveRequest(ID=lease_id)], timeout=self._timeout_s, metadata=self._token
            )
            try:
                answer = await call.read()
            finally:
                call.cancel()
        return 0 if answer is grpc.aio.EOF else int(answer.TTL)

    async def revoke(self, lease_id: int) -> None:
        """End a lease; the keys that it holds are gone."""
        await self._ask(self._leases.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease_id))

    async def put(self, key: bytes, value: bytes, lease_id: int) -> None:
        """Set a key that lives as long as the lease, whoever has set it before."""
        await self._ask(self._kv.Put, rpc.PutRequest(key=key, value=value, lease=lease_id))

    async def lease_of(self, key: bytes) -> int | None:
        """The lease that holds a key, 0 = none; None if there is no such key."""
        answer = await self._ask(self._kv.Range, rpc.RangeRequest(key=key, keys_only=True))
        return int(answer.kvs[0].lease) if answer.kvs else None

    async def list(self, prefix: bytes) -> Listing:
        """All keys that begin with ``prefix``."""
        request = rpc.RangeRequest(key=prefix, range_end=_range_end(prefix))
        answer = await self._ask(self._kv.Range, request)
        return Listing(answer.header.revision, {kv.key: kv.value for kv in answer.kvs})

    async def watch(self, prefix: bytes, after_revision: int) -> AsyncGenerator[Change, None]:
        """Changes to keys that begin with ``prefix`` after a revision that this client has listed; never ends well."""
        create = rpc.WatchCreateRequest(
            key=prefix, range_end=_range_end(prefix), start_revision=after_revision + 1
        )
        call = rpc.WatchStub(self._channel).Watch(metadata=self._token)
        try:
            with _errors_of(self.endpoint):
                async with asyncio.timeout(self._timeout_s):
                    await call.write(rpc.WatchRequest(create_request=create))
                    answer = self._accepted(await call.read())
                if answer.header.revision < after_revision:
                    raise EtcdError(f"{self.endpoint}: etcd has lost its data")
                while True:
                    for event in answer.events:
                        gone = event.type == event.DELETE
                        yield Change(event.kv.key, None if gone else event.kv.value)
                    answer = self._accepted(await call.read())
        finally:
            call.cancel()

    async def _log_in(self, access: EtcdAccess) -> None:
        request = rpc.AuthenticateRequest(name=access.user, password=access.password)
        answer = await self._ask(rpc.AuthStub(self._channel).Authenticate, request)
        self._token = (("token", answer.token),)

    async def _ask(self, method: Any, request: Any) -> Any:
        with _errors_of(self.endpoint):
            call: Awaitable[Any] = method(request, timeout=self._timeout_s, metadata=self._token)
            return await call

    def _accepted(self, answer: Any) -> Any:
        if answer is grpc.aio.EOF:
            raise EtcdError(f"{self.endpoint}: the watch was ended")
        if answer.canceled or answer.compact_revision:
            raise EtcdError(f"{self.endpoint}: the watch was ended: {answer.cancel_reason or 'compacted'}")
        return answer


def _channel(endpoint: str, access: EtcdAccess) -> grpc.aio.Channel:
    if access.tls_ca is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        _read(access.tls_ca), _read(access.tls_key), _read(access.tls_cert)
    )
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


def _read(file: str | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()


@contextmanager
def _errors_of(endpoint: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise EtcdError(f"{endpoint}: {error.code().name}: {error.details()}") from None
    except TimeoutError:
        raise EtcdError(f"{endpoint}: no answer in time") from None
    except OSError as error:
        raise EtcdError(f"{endpoint}: cannot use {error.filename}: {error.strerror}") from None


def _range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with ``prefix``, whose last byte must not be 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
