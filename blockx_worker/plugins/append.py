"""append: rows and a ledger entry (task id, table, next output) commit together.

So a rerun under the same task id goes on where the last commit stood, and rows are never doubled. How many outputs the task
has goes into the ledger as soon as it is known: a rerun that brings another number was another task, and is refused.
"""

from __future__ import annotations

import threading
from functools import partial

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import LedgerEntry, TableDatabase
from blockx_worker.plugins.jobs import CHECK_EVERY, Batch, WriteJob
from blockx_worker.plugins.rows import ColumnKinds, Row, read_output
from blockx_worker.ports import StepFailed, WriterContext

__all__ = ["AppendJob"]

MAX_TRANSACTION_BYTES = 32 * 1024 * 1024


class AppendJob(WriteJob):
    """Appends all outputs, at most ``max_rows`` rows (and one output more) a transaction.

    ``total``: how many outputs the task has, None while that is not known.
    """

    def __init__(
        self,
        database: TableDatabase,
        context: WriterContext,
        stopped: threading.Event,
        *,
        max_rows: int,
        total: int | None,
    ) -> None:
        super().__init__(database, context, stopped)
        self.stats.skipped_outputs = 0
        self._max_rows = max_rows
        self._total = total
        self._columns = ColumnKinds(database.check_columns)
        self._batch: Batch | None = None
        self._end = 0
        self._next = 0
        self._written = 0
        self._done = False

    def take(self, batch: Batch) -> None:
        """Accept the next batch."""
        self._batch, self._end = batch, batch.end

    def end(self) -> None:
        """There are no more batches: their outputs were all."""
        super().end()
        self._total = self._end

    def has_work(self) -> bool:
        """Whether outputs wait, or the final commit."""
        return self._next < self._end or (self._ending and not self._done)

    def kept(self) -> str:
        """Up to which output everything is written."""
        if not self._written:
            return ""
        return (
            f"outputs up to {self._written - 1} ({self.stats.rows} rows{self._earlier()}) are written and stay; "
            "a rerun under the same task id goes on after them"
        )

    def _earlier(self) -> str:
        skipped = self.stats.skipped_outputs
        return f", beside those of {skipped} outputs that an earlier run has written" if skipped else ""

    def _transact(self) -> None:
        entry = self._database.ledger(self._writing.task_id)
        if entry is not None:
            self._check_same_task(entry)
            self._skip(entry)
        rows, end = self._take()
        final = self._ending and end == self._end
        if (final and entry == LedgerEntry(end, end)) or not (rows or final):
            self._note(end, 0)
            self._done = final
            return
        if rows:
            self._database.ensure_table(self._columns.kinds, self._writing)
            self._database.insert(rows)
        self._database.set_ledger(LedgerEntry(end, self._total), self._writing)
        self._commit(final=final, note=partial(self._note, end, len(rows)))
        self._done = final

    def _note(self, end: int, rows: int) -> None:
        self._next = end
        self.stats.rows += rows
        if rows:
            self._written = end

    def _check_same_task(self, entry: LedgerEntry) -> None:
        if self._total is not None:
            same = entry.outputs in (None, self._total) and entry.next_output <= self._total
        else:
            same = entry.outputs is None or self._end <= entry.outputs
        if not same:
            raise self._other_task(entry)

    def _other_task(self, entry: LedgerEntry) -> StepFailed:
        had = f"{entry.outputs}" if entry.outputs is not None else f"at least {entry.next_output}"
        has = f"{self._total}" if self._total is not None else f"at least {self._end}"
        return plugin_failed(
            f'task id "{self._writing.task_id}" has already appended to this table, from {had} outputs where there '
            f"are {has} now: it was another task; submit this one under a new task id"
        )

    def _skip(self, entry: LedgerEntry) -> None:
        """Pass over the outputs that were written by an earlier run under this task id."""
        start = min(entry.next_output, self._end)
        if start > self._next:
            self.stats.skipped_outputs = (self.stats.skipped_outputs or 0) + start - self._next
            self._next = self._written = start

    def _take(self) -> tuple[list[Row], int]:
        """The rows of the next outputs, and the output after them."""
        rows: list[Row] = []
        size, end = 0, self._next
        if self._batch is None or end >= self._end:
            return rows, end
        for index, line in self._batch.cursor.lines(end):
            rows.extend(read_output(index, line))
            size += len(line)
            end = index + 1
            if len(rows) >= self._max_rows or size >= MAX_TRANSACTION_BYTES:
                break
            if not end % CHECK_EVERY:
                self._check_stopped()
        for row in rows:
            self._columns.add(row)
        return rows, end
