"""A stack of long-running services: started in order, each once the one before is ready; stopped in reverse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from blockx_worker.telemetry.log import get_logger

__all__ = ["ServiceStack"]

log = get_logger(__name__)


@attrs.define
class _Running:
    name: str
    scope: trio.CancelScope
    over: trio.Event


class ServiceStack:
    """Services in one nursery. A service that fails ends the nursery, and with it the worker."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._running: list[_Running] = []

    async def start(self, name: str, service: Callable[..., Awaitable[None]]) -> Any:
        """Start a service and wait until it is ready; returns what it gave to ``started``.

        ``service`` runs until cancelled and calls ``task_status.started(value)`` when it is ready.
        """
        running = _Running(name, trio.CancelScope(), trio.Event())

        async def run(*, task_status: trio.TaskStatus[Any]) -> None:
            try:
                with running.scope:
                    await service(task_status=task_status)
            finally:
                running.over.set()

        value = await self._nursery.start(run)
        self._running.append(running)
        log.debug("service_started", service=name)
        return value

    async def stop_all(self) -> None:
        """Stop the services that run, the last started first."""
        while self._running:
            running = self._running.pop()
            running.scope.cancel()
            await running.over.wait()
            log.debug("service_stopped", service=running.name)
