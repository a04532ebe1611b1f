"""Keeps a worker's value in etcd: carries out the steps of `LeaseMachine`, on Trio.

Serving never depends on it. Whatever etcd does, the publisher logs it, goes on trying, and hangs nobody: every call has
a time-out of a quarter of the TTL, and the calls of one step together have an outer one.

It is a named boundary: also an error that nobody thought of counts as a failed call, since a worker that serves must
not end for its name tag.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import assert_never

import attrs
import trio

from blockx_worker import bridge
from blockx_worker.registry.etcd import EtcdAccess, EtcdClient, EtcdError
from blockx_worker.registry.lease import (
    AttemptStarted,
    CallFailed,
    Fact,
    LeaseConfig,
    LeaseMachine,
    LeaseRefreshed,
    Put,
    Refresh,
    Register,
    Registered,
    ValuePut,
    Wait,
)
from blockx_worker.registry.states import LeaseState
from blockx_worker.registry.value import WorkerValue, encode_value
from blockx_worker.telemetry.log import get_logger

__all__ = ["PublisherConfig", "RegistryPublisher"]

log = get_logger(__name__)

MAX_CALL_TIMEOUT_S = 3.0
CALLS_OF_A_STEP = 3  # logging in, lease, value


@attrs.frozen(kw_only=True)
class PublisherConfig:
    """Where and how to register. The key is ``prefix`` and the worker's address."""

    endpoints: tuple[str, ...]
    prefix: str
    ttl_s: int
    put_interval_ms: int
    access: EtcdAccess

    @property
    def call_timeout_s(self) -> float:
        """Longest time for one call."""
        return min(MAX_CALL_TIMEOUT_S, self.ttl_s / 4)


@attrs.frozen
class _Session:
    """A connection with the lease that was got over it."""

    client: EtcdClient
    lease_id: int


class RegistryPublisher:
    """One worker's registration; ``look`` gives its value at this moment."""

    def __init__(
        self,
        config: PublisherConfig,
        look: Callable[[], WorkerValue],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._look = look
        self._key = f"{config.prefix}{look().address}"
        self._session: _Session | None = None
        self._hurry = trio.Event()
        self._lost_since: float | None = None
        self._machine = LeaseMachine(
            LeaseConfig(
                endpoints=len(config.endpoints),
                ttl_ms=config.ttl_s * 1000,
                put_interval_ms=config.put_interval_ms,
            ),
            jitter,
        )

    @property
    def state(self) -> LeaseState:
        """Whether the worker is registered, as far as it knows."""
        return self._machine.state

    def announce(self) -> None:
        """Something happened that clients must know now, such as draining."""
        self._hurry.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the worker registered until cancelled, then remove its key."""
        task_status.started()
        self._lost_since = trio.current_time()
        try:
            while True:
                await self._step()
        finally:
            with trio.CancelScope(shield=True):
                await self._deregister()

    async def _step(self) -> None:
        urgent = self._hurry.is_set()
        if urgent:
            self._hurry = trio.Event()
        self._machine.want(encode_value(self._look()), urgent=urgent)
        match self._machine.next_step(_now_ms()):
            case Wait(until_ms=until_ms):
                await self._wait(until_ms)
            case Register(endpoint=endpoint):
                self._machine.handle(AttemptStarted(), _now_ms())
                await self._call(self._register, self._config.endpoints[endpoint])
            case Refresh():
                await self._call(self._refresh)
            case Put():
                await self._call(self._put)
            case other:
                assert_never(other)

    async def _wait(self, until_ms: int) -> None:
        """Until something is due; a registered worker also looks whether its value has changed."""
        if self._machine.state is LeaseState.REGISTERED:
            until_ms = min(until_ms, _now_ms() + self._config.put_interval_ms)
        with trio.CancelScope(deadline=until_ms / 1000):
            await self._hurry.wait()

    # --- calls ---------------------------------------------------------------------------------------------------

    async def _call(self, step: Callable[..., object], *args: object) -> None:
        """Carry out a step and tell the machine what came of it."""
        try:
            with trio.fail_after(CALLS_OF_A_STEP * self._config.call_timeout_s):
                fact: Fact = await step(*args)  # type: ignore[misc]  # each step is async and returns a fact
        except Exception as error:  # noqa: BLE001 - the boundary: see the module's docstring
            await self._disconnect()
            self._handle(CallFailed(), _why(error))
        else:
            self._handle(fact, "the lease is gone")
            if self._machine.state is LeaseState.LOST:
                await self._disconnect()

    async def _register(self, endpoint: str) -> Fact:
        client: EtcdClient = await bridge.run_asyncio(
            EtcdClient.open, endpoint, self._config.access, self._config.call_timeout_s
        )
        self._session = _Session(client, 0)
        asked_ms = _now_ms()
        lease = await bridge.run_asyncio(client.grant, self._config.ttl_s)
        self._session = session = _Session(client, lease.lease_id)
        value = await self._put_value(session)
        log.info(
            "registered", endpoint=endpoint, key=self._key, ttl_s=lease.ttl_s, after_ms=self._lost_for_ms()
        )
        self._lost_since = None
        return Registered(asked_ms=asked_ms, ttl_ms=lease.ttl_s * 1000, value=value)

    async def _refresh(self) -> Fact:
        session = self._connected()
        asked_ms = _now_ms()
        ttl_s = await bridge.run_asyncio(session.client.refresh, session.lease_id)
        held = ttl_s > 0 and await self._holds_key(session)
        return LeaseRefreshed(asked_ms=asked_ms, ttl_ms=ttl_s * 1000, held=held)

    async def _holds_key(self, session: _Session) -> bool:
        holder = await bridge.run_asyncio(session.client.lease_of, self._key.encode())
        if holder != session.lease_id:
            log.warning(
                "registration_replaced",
                key=self._key,
                hint="somebody deleted the key, or another worker advertises the same address; it is put again",
            )
        return holder == session.lease_id

    async def _put(self) -> Fact:
        return ValuePut(await self._put_value(self._connected()))

    async def _put_value(self, session: _Session) -> bytes:
        value = encode_value(self._look())
        await bridge.run_asyncio(session.client.put, self._key.encode(), value, session.lease_id)
        return value

    def _connected(self) -> _Session:
        assert self._session is not None
        return self._session

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await bridge.clean_up_asyncio(session.client.close)

    async def _deregister(self) -> None:
        """Our own lease is revoked, not the key deleted: a successor may have put it under another."""
        session = self._session
        if session is None:
            return
        with trio.move_on_after(self._config.call_timeout_s):
            try:
                if session.lease_id:
                    await bridge.run_asyncio(session.client.revoke, session.lease_id)
                    log.info("deregistered", key=self._key)
            except EtcdError as error:
                log.warning(
                    "not_deregistered", key=self._key, error=str(error), hint="the key ends with its lease"
                )
        await self._disconnect()

    # --- what people read ----------------------------------------------------------------------------------------

    def _handle(self, fact: Fact, why: str) -> None:
        before = self._machine.state
        self._machine.handle(fact, _now_ms())
        if self._machine.state is LeaseState.LOST:
            self._lost_since = trio.current_time()
            log.warning("registration_lost", key=self._key, error=why)
        elif before is LeaseState.REGISTERING and self._machine.state is LeaseState.UNREGISTERED:
            tell = log.warning if self._machine.failures == 1 else log.debug  # an outage is one line
            tell("registration_failed", key=self._key, error=why)

    def _lost_for_ms(self) -> int:
        return 0 if self._lost_since is None else round((trio.current_time() - self._lost_since) * 1000)


def _now_ms() -> int:
    return math.floor(trio.current_time() * 1000 + 1e-4)  # a sleep until x / 1000 must not wake at x - 1


def _why(error: Exception) -> str:
    if isinstance(error, EtcdError):
        return str(error)
    if isinstance(error, trio.TooSlowError):
        return "etcd took too long"
    log.error("registry_defect", exc_info=error)
    return repr(error)
