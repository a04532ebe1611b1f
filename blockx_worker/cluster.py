"""A worker among others, made from its settings: its registration in etcd, and its shadow.

What etcd needs takes a while to import, so that only a worker that is given an etcd imports it.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from blockx_worker import __version__
from blockx_worker.assembly import Worker
from blockx_worker.config.settings import Settings
from blockx_worker.registry.value import WorkerValue
from blockx_worker.shadow import ShadowConfig, ShadowForwarder

if TYPE_CHECKING:
    from blockx_worker.registry.publisher import RegistryPublisher

__all__ = ["Registration", "make_shadow"]


class Registration:
    """The worker's key in etcd, from `run` until that is cancelled; without an etcd in the settings there is none."""

    def __init__(self, settings: Settings, worker: Worker, wall_ms: int) -> None:
        self._settings = settings
        self._worker = worker
        self._instance = uuid.uuid4().hex[:16]
        self._started_at = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
        self._publisher: RegistryPublisher | None = None
        if self.wanted:
            import_module("blockx_worker.registry.publisher")  # now, and not while requests wait

    @property
    def wanted(self) -> bool:
        """Whether there is an etcd to register with."""
        return bool(self._settings.etcd.endpoints)

    def announce(self) -> None:
        """Say at once what has changed: the worker drains."""
        if self._publisher is not None:
            self._publisher.announce()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the worker registered; its address must be known by now."""
        from blockx_worker.registry.etcd import EtcdAccess  # noqa: PLC0415 - see the module's docstring
        from blockx_worker.registry.publisher import PublisherConfig, RegistryPublisher  # noqa: PLC0415

        etcd = self._settings.etcd
        config = PublisherConfig(
            endpoints=tuple(etcd.endpoints),
            prefix=self._settings.worker_registry_prefix,
            ttl_s=etcd.lease_ttl_s,
            put_interval_ms=etcd.put_interval_ms,
            access=EtcdAccess(
                user=etcd.user,
                password=etcd.password,
                tls_ca=etcd.tls_ca,
                tls_cert=etcd.tls_cert,
                tls_key=etcd.tls_key,
            ),
        )
        self._publisher = RegistryPublisher(config, self._value)
        await self._publisher.run(task_status=task_status)

    def _value(self) -> WorkerValue:
        door = self._worker.orchestrator.door
        counts = door.worker.counts(door.now_ms())
        return WorkerValue(
            address=self._worker.api.address,
            instance=self._instance,
            deployment=self._settings.deployment,
            version=__version__,
            task_slots=counts.slots,
            reserved_slots=counts.allocated,
            running_tasks=counts.running,
            draining=counts.draining,
            started_at=self._started_at,
        )


def make_shadow(settings: Settings, worker: Worker) -> ShadowForwarder | None:
    """What mirrors the tasks that the worker accepts; None if no target is set."""
    shadow = settings.shadow
    if shadow.target is None or shadow.sample_rate <= 0:
        return None
    config = ShadowConfig(
        target=shadow.target,
        sample_rate=shadow.sample_rate,
        queue_tasks=shadow.queue_tasks,
        queue_bytes=shadow.queue_bytes,
        max_inflight=shadow.max_inflight,
        timeout_ms=shadow.timeout_ms,
        backoff_ms=shadow.backoff_ms,
    )
    return ShadowForwarder(config, worker.orchestrator.dropped)
