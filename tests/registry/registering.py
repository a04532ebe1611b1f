"""Publishers on a real etcd, in the test's own Trio, and a way to wait for what etcdctl shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import msgspec
import trio

from blockx_worker import bridge
from blockx_worker.registry.etcd import EtcdAccess
from blockx_worker.registry.publisher import PublisherConfig, RegistryPublisher
from blockx_worker.registry.value import WorkerValue

__all__ = ["PREFIX", "TTL_S", "Announced", "publishing", "until"]

T = TypeVar("T")

PREFIX = "/test/workers/"
TTL_S = 2


@attrs.define
class Announced:
    """A worker that is nothing but its value, which a test may change."""

    value: WorkerValue
    publisher: RegistryPublisher = attrs.field(init=False)

    @property
    def key(self) -> str:
        return PREFIX + self.value.address

    def change(self, **fields: Any) -> None:
        self.value = msgspec.structs.replace(self.value, **fields)


@asynccontextmanager
async def publishing(
    *endpoints: str, access: EtcdAccess | None = None, ttl_s: int = TTL_S, **fields: Any
) -> AsyncIterator[Announced]:
    """Keep a worker registered while the body runs; leaving removes it."""
    announced = Announced(WorkerValue(address="10.0.0.1:7420", instance="one", task_slots=64))
    announced.change(**fields)
    config = PublisherConfig(
        endpoints=endpoints, prefix=PREFIX, ttl_s=ttl_s, put_interval_ms=50, access=access or EtcdAccess()
    )
    announced.publisher = RegistryPublisher(config, lambda: announced.value)
    async with bridge.open_loop(), trio.open_nursery() as nursery:
        await nursery.start(announced.publisher.run)
        yield announced
        nursery.cancel_scope.cancel()


async def until(look: Callable[[], T], timeout_s: float = 10) -> T:
    """Look, in a thread, until what is seen is true; for facts of etcd, which nobody announces to a test."""
    seen: Any = None
    with trio.move_on_after(timeout_s):
        while not (seen := await trio.to_thread.run_sync(look)):  # noqa: ASYNC110 - etcd has no event for us
            await trio.sleep(0.02)
        return seen
    raise AssertionError(f"not within {timeout_s} s; last seen: {seen!r}")
