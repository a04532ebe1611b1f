"""`BlockWriteHandler {"target", "table", "mode"?, "columns"?}`: the outputs become rows of a database table.

The modes are described in `jobs`, what a row may be in `rows`, how values are stored in `sqlite_table`. ``mode`` is
``replace_block`` for tasks over block tables unless they say ``append``, and ``append`` for call lists. ``columns`` selects: the
table gets these columns only, a row's other keys are left out, and a key that a row lacks becomes NULL.

Each database has one *lane*: transactions of this worker's tasks wait there for their turn, first come, first served, so a
large append lets small tasks in between.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import trio

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.jobs import AppendJob, ReplaceJob, WriteJob
from blockx_worker.plugins.sqlite_writer import SqliteDatabase
from blockx_worker.plugins.targets import Targets
from blockx_worker.plugins.write_config import WriteConfig, WriteMode, read_write_config
from blockx_worker.ports import OutputLines, WriterContext

__all__ = ["BlockWritePlugin"]

BUSY_TIMEOUT_MS = 10_000
BATCH_ROWS = 10_000


class _Lane:
    """The lock of one database; kept while anybody holds it or waits for it."""

    def __init__(self) -> None:
        self.lock = trio.Lock()


class BlockWritePlugin:
    """Writes rows to the databases of ``targets``.

    ``busy_timeout_ms`` bounds the wait for another program's lock; ``batch_rows`` is the size of an append's transactions.
    """

    type = "BlockWriteHandler"
    keeps_outputs = False

    def __init__(
        self, targets: Targets, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS, batch_rows: int = BATCH_ROWS
    ) -> None:
        self._targets = targets
        self._busy_timeout_ms = busy_timeout_ms
        self._batch_rows = batch_rows
        self._lanes: WeakValueDictionary[str, _Lane] = WeakValueDictionary()

    def check(self, config: bytes, blocks: tuple[int, int] | None) -> None:
        """Refuse a bad field, and a database in a folder that is not there, before any call runs."""
        path = Path(read_write_config(config, blocks, self._targets).target.path)
        if not path.parent.is_dir():
            raise plugin_failed(
                f"resultHandler.target: the folder {path.parent} does not exist; create it or correct the target"
            )
        if path.is_dir():
            raise plugin_failed(f"resultHandler.target: {path} is a folder; name a file in it")

    async def write(self, context: WriterContext, config: bytes, outputs: OutputLines) -> bytes:
        """Write all outputs, one transaction after the other; WriteStopped if the task has ended meanwhile."""
        settings = read_write_config(config, context.blocks, self._targets)
        job = self._job(context, settings, outputs)
        lane = self._lane(settings.target.path)
        try:
            await context.threads.run(job.prepare, interrupt=job.stop)
            done = False
            while not done:
                async with lane.lock:
                    done = await context.threads.run(job.step, interrupt=job.stop)
        finally:
            with trio.CancelScope(shield=True):
                await context.threads.run(job.close)
        return _result(settings, job)

    def _job(self, context: WriterContext, settings: WriteConfig, outputs: OutputLines) -> WriteJob:
        stopped = threading.Event()
        database = SqliteDatabase(
            settings.target.path,
            settings.table,
            settings.columns,
            busy_timeout_ms=self._busy_timeout_ms,
            stopped=stopped,
        )
        if settings.mode is WriteMode.APPEND:
            return AppendJob(database, context, outputs, stopped, max_rows=self._batch_rows)
        assert context.blocks is not None
        return ReplaceJob(database, context, outputs, stopped, blocks=context.blocks)

    def _lane(self, path: str) -> _Lane:
        key = os.path.realpath(path)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        return lane


def _result(settings: WriteConfig, job: WriteJob) -> bytes:
    """What the task's result says about the writing."""
    result: dict[str, object] = {
        "table": settings.table,
        "target": settings.target.label,
        "mode": settings.mode.value,
        "rowsWritten": job.stats.rows,
        "database": settings.target.path,
    }
    if job.stats.blocks is not None:
        result["blocksReplaced"] = job.stats.blocks
    if job.stats.skipped_outputs is not None:
        result["outputsSkippedByLedger"] = job.stats.skipped_outputs
    return msgspec.json.encode(result)
