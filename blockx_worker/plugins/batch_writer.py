"""Drives a write job: its thinking in threads, its transactions in the lane of their database.

After a failed `write` call `abort`; after `finish`, failed or not, nothing is left to do. A failure of `finish` says what is
written and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from blockx_worker.plugins.jobs import Batch, WriteJob, WriteStats
from blockx_worker.ports import StepFailed, Threads

if TYPE_CHECKING:
    from blockx_worker.io.postgres_pool import PostgresPool  # needs the driver

__all__ = ["JobWriter", "Lane"]


@attrs.define(eq=False, weakref_slot=True)
class Lane:
    """The way to one database: places for the transactions that may run at once, and its connections if they are shared."""

    places: trio.CapacityLimiter
    pool: PostgresPool | None = None


class JobWriter:
    """A `BatchWriter` over a job; ``describe`` makes the result of the task from what the job has committed."""

    def __init__(
        self,
        job: WriteJob,
        lane: Lane,
        threads: Threads,
        describe: Callable[[WriteStats], bytes],
    ) -> None:
        self._job = job
        self._lane = lane
        self._threads = threads
        self._describe = describe

    async def write(self, first_index: int, outputs: Sequence[bytes | None], blocks_done: int | None) -> None:
        """Write a batch, as far as it can be written before the next."""
        await self.take(Batch.part(first_index, outputs, blocks_done))
        await self._work_off()

    async def take(self, batch: Batch) -> None:
        """Accept a batch without writing anything yet."""
        await self._threads.run(self._job.take, batch, interrupt=self._job.stop)

    async def finish(self) -> bytes:
        """Write what is left, the last transaction as the final one."""
        self._job.end()
        try:
            await self._work_off()
        except StepFailed as failed:
            kept = self._job.kept()
            raise StepFailed(failed.code, f"{failed.message}; {kept}" if kept else failed.message) from failed
        finally:
            await self._close()
        return self._describe(self._job.stats)

    async def abort(self) -> str:
        """Let go of the database; what is written and stays, in words."""
        await self._close()
        return self._job.kept()

    async def _work_off(self) -> None:
        """One transaction after the other; between them other tasks get their turn."""
        while self._job.has_work():
            async with self._lane.places:
                await self._threads.run(self._job.step, interrupt=self._job.stop)

    async def _close(self) -> None:
        with trio.CancelScope(shield=True):
            await self._threads.run(self._job.close)
