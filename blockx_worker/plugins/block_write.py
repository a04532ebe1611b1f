"""`BlockWriteHandler {"target", "table", "mode"?, "columns"?}`: the outputs become rows of a database table.

The modes are described in `append` and `replace`, what a row may be in `rows`, how values are stored in `sqlite_table` and
`postgres_table`. ``mode`` is ``replace_block`` for tasks over block tables unless they say ``append``, and ``append`` for call
lists. ``columns`` selects: the table gets these columns only, a row's other keys are left out, and a key that a row lacks
becomes NULL. A missing table is made from the rows of the first transaction; the task that made it, and only that one, adds
columns for keys that come later.

Each database has one *lane*: transactions of this worker's tasks wait there for their turn, first come, first served, so a
large append lets small tasks in between. SQLite has one writer at a time, PostgreSQL as many as ``postgres_pool_size``.

Outputs come all at once (`write`) or in batches while calls still run (`open`); both go the same way through a job.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import trio

from blockx_worker.io.postgres import PostgresLimits, psycopg_problem
from blockx_worker.plugins.append import AppendJob
from blockx_worker.plugins.batch_writer import JobWriter, Lane
from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import TableDatabase
from blockx_worker.plugins.jobs import Batch, WriteJob, WriteStats
from blockx_worker.plugins.replace import ReplaceJob
from blockx_worker.plugins.sqlite_writer import SqliteDatabase
from blockx_worker.plugins.targets import PostgresTarget, SqliteTarget, Target, Targets
from blockx_worker.plugins.write_config import WriteConfig, WriteMode, read_write_config
from blockx_worker.ports import BatchWriter, OutputLines, WriterContext

__all__ = ["BlockWritePlugin"]

BUSY_TIMEOUT_MS = 10_000
BATCH_ROWS = 10_000
MAX_BUFFERED_BYTES = 256 * 1024 * 1024


class BlockWritePlugin:
    """Writes rows to the databases of ``targets``.

    ``busy_timeout_ms`` bounds the wait for another program's lock on an SQLite file, ``batch_rows`` the rows of a transaction
    (a single block or output may have more), ``max_buffered_bytes`` the outputs of a task that wait for their block to be
    complete.
    """

    type = "BlockWriteHandler"
    keeps_outputs = False

    def __init__(
        self,
        targets: Targets,
        *,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        batch_rows: int = BATCH_ROWS,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        postgres: PostgresLimits | None = None,
    ) -> None:
        self._targets = targets
        self._busy_timeout_ms = busy_timeout_ms
        self._batch_rows = batch_rows
        self._max_buffered_bytes = max_buffered_bytes
        self._postgres = postgres or PostgresLimits()
        self._lanes: WeakValueDictionary[str, Lane] = WeakValueDictionary()

    def check(self, config: bytes, blocks: tuple[int, int] | None) -> None:
        """Refuse a bad field, and a database that cannot be, before any call runs."""
        target = read_write_config(config, blocks, self._targets).target
        match target:
            case SqliteTarget():
                _check_file(Path(target.path))
            case PostgresTarget():
                _check_driver()

    async def write(self, context: WriterContext, config: bytes, outputs: OutputLines) -> bytes:
        """Write all outputs, one transaction after the other; WriteStopped if the task has ended meanwhile."""
        writer = self._open(context, config, total=outputs.count)
        await writer.take(Batch.whole(outputs))
        return await writer.finish()

    def open(self, context: WriterContext, config: bytes) -> BatchWriter:
        """A writer that takes batches as they settle."""
        return self._open(context, config, total=None)

    def _open(self, context: WriterContext, config: bytes, total: int | None) -> JobWriter:
        settings = read_write_config(config, context.blocks, self._targets)
        lane = self._lane(settings.target)
        job = self._job(context, settings, lane, total)
        return JobWriter(job, lane, context.threads, partial(_result, settings))

    def _job(self, context: WriterContext, settings: WriteConfig, lane: Lane, total: int | None) -> WriteJob:
        stopped = threading.Event()
        database = self._database(settings, lane, stopped)
        if settings.mode is WriteMode.APPEND:
            return AppendJob(database, context, stopped, max_rows=self._batch_rows, total=total)
        assert context.blocks is not None
        return ReplaceJob(
            database,
            context,
            stopped,
            blocks=context.blocks,
            max_rows=self._batch_rows,
            max_bytes=self._max_buffered_bytes,
        )

    def _database(self, settings: WriteConfig, lane: Lane, stopped: threading.Event) -> TableDatabase:
        target, table, columns = settings.target, settings.table, settings.columns
        match target:
            case SqliteTarget():
                timeout = self._busy_timeout_ms
                return SqliteDatabase(target.path, table, columns, busy_timeout_ms=timeout, stopped=stopped)
            case PostgresTarget():
                from blockx_worker.plugins.postgres_database import PostgresDatabase  # noqa: PLC0415 - driver

                assert lane.pool is not None
                return PostgresDatabase(target, lane.pool, settings.schema, table, columns, stopped=stopped)

    def _lane(self, target: Target) -> Lane:
        key = os.path.realpath(target.path) if isinstance(target, SqliteTarget) else target.url
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._make_lane(target)
        return lane

    def _make_lane(self, target: Target) -> Lane:
        match target:
            case SqliteTarget():
                return Lane(trio.CapacityLimiter(1))
            case PostgresTarget():
                _check_driver()
                from blockx_worker.io.postgres_pool import PostgresPool  # noqa: PLC0415 - needs the driver

                limiter = trio.CapacityLimiter(self._postgres.pool_size)
                return Lane(limiter, PostgresPool(target.url, self._postgres))


def _check_file(path: Path) -> None:
    if not path.parent.is_dir():
        raise plugin_failed(
            f"resultHandler.target: the folder {path.parent} does not exist; create it or correct the target"
        )
    if path.is_dir():
        raise plugin_failed(f"resultHandler.target: {path} is a folder; name a file in it")


def _check_driver() -> None:
    if problem := psycopg_problem():
        raise plugin_failed(f"resultHandler.target: {problem}")


def _result(settings: WriteConfig, stats: WriteStats) -> bytes:
    """What the task's result says about the writing."""
    target = settings.target
    result: dict[str, object] = {
        "table": settings.table if settings.schema is None else f"{settings.schema}.{settings.table}",
        "target": target.label,
        "mode": settings.mode.value,
        "rowsWritten": stats.rows,
        "database": target.path if isinstance(target, SqliteTarget) else target.shown,
    }
    if stats.blocks is not None:
        result["blocksReplaced"] = stats.blocks
    if stats.skipped_outputs is not None:
        result["outputsSkippedByLedger"] = stats.skipped_outputs
    return msgspec.json.encode(result)
