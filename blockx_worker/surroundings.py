"""The real wall clock and the real threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import trio

__all__ = ["SystemClock", "WorkerThreads"]

T = TypeVar("T")


class SystemClock:
    """The system's wall clock."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


class WorkerThreads:
    """Trio's worker threads, at most ``limit`` at once; always joined."""

    def __init__(self, limit: int = 64) -> None:
        self._limiter = trio.CapacityLimiter(limit)

    async def run(self, work: Callable[..., T], *args: Any, interrupt: Callable[[], None] | None = None) -> T:
        """Run ``work(*args)`` in a thread; see `blockx_worker.ports.Threads`."""
        if interrupt is None:
            return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
        done = False
        result: T
        failure: Exception | None = None

        async def interrupt_on_cancel() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if not done:
                    interrupt()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt_on_cancel)
            try:
                with trio.CancelScope(shield=True):
                    result = await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
            except Exception as error:  # noqa: BLE001 - raised below: a nursery would wrap it in a group
                failure = error
            done = True
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    def call_back(self, function: Callable[..., T], *args: Any) -> T:
        """From inside such work: call ``function`` on the Trio thread."""
        return trio.from_thread.run_sync(function, *args)
