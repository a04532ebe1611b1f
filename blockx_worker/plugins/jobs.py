"""How a task's outputs become transactions: append and replace_block.

A job is a row of steps; each step is one transaction and runs in a thread while the job holds the lane of its database.
Before each commit it asks the gate: the core may have ended the task meanwhile, and then nothing is committed.

**append.** Rows and a ledger entry (task id, table, next output) commit together, so a rerun under the same task id goes on
where the last commit stood, and rows are never doubled.

**replace_block.** All outputs are read once before anything is written: what block each belongs to, which columns there are,
and whether a row is bad. Then each block is one transaction: delete, insert. Neighbouring blocks without rows share one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import attrs

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import LedgerEntry, TableDatabase
from blockx_worker.plugins.rows import OutputCursor, Row, block_of, read_output
from blockx_worker.ports import CommitGate, OutputLines, StepFailed, WriterContext, WriteStopped

__all__ = ["AppendJob", "ReplaceJob", "WriteJob", "WriteStats"]

MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
CHECK_EVERY = 1000


@attrs.define
class WriteStats:
    """What a job has committed so far."""

    rows: int = 0
    blocks: int | None = None
    skipped_outputs: int | None = None


class WriteJob:
    """Base: one database, the gate, and a stop flag that any thread may set."""

    def __init__(
        self, database: TableDatabase, context: WriterContext, outputs: OutputLines, stopped: threading.Event
    ) -> None:
        self.stats = WriteStats()
        self._database = database
        self._gate: CommitGate = context.gate
        self._outputs = outputs
        self._cursor = OutputCursor(outputs)
        self._stopped = stopped

    def stop(self) -> None:
        """From another thread: end the running step soon, without a commit."""
        self._stopped.set()
        self._database.interrupt()

    def prepare(self) -> None:
        """What comes before the first transaction."""
        self._database.open()

    def step(self) -> bool:
        """Do one transaction; True when all is written. StepFailed says what is written and stays."""
        try:
            self._check_stopped()
            self._database.begin()
            return self._transact()
        except StepFailed as failed:
            kept = self._kept()
            raise StepFailed(failed.code, f"{failed.message}; {kept}" if kept else failed.message) from failed
        finally:
            self._database.rollback()

    def close(self) -> None:
        """Disconnect."""
        self._database.close()

    def _transact(self) -> bool:
        raise NotImplementedError

    def _kept(self) -> str:
        raise NotImplementedError

    def _commit(self, *, final: bool, note: Callable[[], None]) -> None:
        """Commit if the task may still; ``note`` takes down what is written then."""
        self._check_stopped()
        if not self._gate.start(final=final, written=self._kept()):
            raise WriteStopped
        try:
            self._database.commit()
            note()
        finally:
            if not final:
                self._gate.ended(written=self._kept())

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise WriteStopped


class AppendJob(WriteJob):
    """Appends all outputs, at most ``max_rows`` rows (and one output more) a transaction."""

    def __init__(
        self,
        database: TableDatabase,
        context: WriterContext,
        outputs: OutputLines,
        stopped: threading.Event,
        *,
        max_rows: int,
    ) -> None:
        super().__init__(database, context, outputs, stopped)
        self.stats.skipped_outputs = 0
        self._task_id = context.task_id
        self._wall_ms = context.wall_ms
        self._max_rows = max_rows
        self._next = 0

    def _transact(self) -> bool:
        entry = self._database.ledger(self._task_id)
        start = self._start(entry)
        if entry is not None and start == self._outputs.count:
            return True
        rows, end = self._take(start)
        if rows:
            self._database.ensure_table(self._columns_of(rows))
            self._database.insert(rows)
        self._database.set_ledger(self._task_id, LedgerEntry(end, self._outputs.count), self._wall_ms)
        final = end == self._outputs.count
        self._commit(final=final, note=partial(self._note, end, len(rows)))
        return final

    def _note(self, end: int, rows: int) -> None:
        self._next = end
        self.stats.rows += rows

    def _start(self, entry: LedgerEntry | None) -> int:
        """The output to go on with; those before it were written by an earlier run under this task id."""
        if entry is None:
            return 0
        if entry.outputs != self._outputs.count:
            raise plugin_failed(
                f'task id "{self._task_id}" has already appended to this table, from {entry.outputs} outputs where there '
                f"are {self._outputs.count} now: it was another task; submit this one under a new task id"
            )
        if entry.next_output > self._next:
            self.stats.skipped_outputs = (self.stats.skipped_outputs or 0) + entry.next_output - self._next
            self._next = entry.next_output
        return entry.next_output

    def _take(self, start: int) -> tuple[list[Row], int]:
        """The rows of the next outputs, and the output after them."""
        rows: list[Row] = []
        size, end = 0, start
        for index, line in self._cursor.lines(start):
            rows.extend(read_output(index, line))
            size += len(line)
            end = index + 1
            if len(rows) >= self._max_rows or size >= MAX_TRANSACTION_BYTES:
                break
            if not end % CHECK_EVERY:
                self._check_stopped()
        return rows, end

    def _columns_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """All columns in order of appearance, checked."""
        shapes: dict[tuple[str, ...], Row] = {}
        for row in rows:
            shapes.setdefault(tuple(row.values), row)
        for shape, first in shapes.items():
            self._database.check_columns(shape, first)
        return tuple(dict.fromkeys(name for shape in shapes for name in shape))

    def _kept(self) -> str:
        if not self.stats.rows:
            return ""
        return (
            f"outputs up to {self._next - 1} ({self.stats.rows} rows) are written and stay; "
            "a rerun under the same task id goes on after them"
        )


@attrs.define
class _Plan:
    """Runs of outputs (start, count) for each block with rows, and all columns in order of appearance."""

    runs: dict[int, list[tuple[int, int]]] = attrs.field(factory=dict)
    columns: dict[str, None] = attrs.field(factory=dict)
    shapes: set[tuple[str, ...]] = attrs.field(factory=set)

    def add(self, index: int, block: int) -> None:
        """Note that the output has a row of the block."""
        runs = self.runs.setdefault(block, [])
        if runs and sum(runs[-1]) > index:
            return  # another row of the same output
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))


class ReplaceJob(WriteJob):
    """Replaces the rows of each block of the task."""

    def __init__(
        self,
        database: TableDatabase,
        context: WriterContext,
        outputs: OutputLines,
        stopped: threading.Event,
        *,
        blocks: tuple[int, int],
    ) -> None:
        super().__init__(database, context, outputs, stopped)
        self.stats.blocks = 0
        self._blocks = blocks
        self._plan = _Plan()
        self._groups: Iterator[tuple[int, int]] = iter(())

    def prepare(self) -> None:
        """Read all outputs, so that a bad row is found before anything is written."""
        for index, line in self._cursor.lines(0):
            if not index % CHECK_EVERY:
                self._check_stopped()
            for row in read_output(index, line):
                self._look_at(row)
        self._groups = _groups(sorted(self._plan.runs), self._blocks)
        super().prepare()

    def _look_at(self, row: Row) -> None:
        self._plan.add(row.output, block_of(row, self._blocks))
        shape = tuple(row.values)
        if shape not in self._plan.shapes:
            self._database.check_columns(shape, row)
            self._plan.shapes.add(shape)
            self._plan.columns.update(dict.fromkeys(shape))

    def _transact(self) -> bool:
        first, last = next(self._groups)
        written = 0
        if self._plan.columns:
            self._database.ensure_table(tuple(self._plan.columns))
        self._database.delete_blocks(first, last)
        if first in self._plan.runs:
            written = self._database.insert(self._rows_of(first))
        final = last == self._blocks[1]
        self._commit(final=final, note=partial(self._note, last, written))
        return final

    def _note(self, last: int, rows: int) -> None:
        self.stats.rows += rows
        self.stats.blocks = last - self._blocks[0] + 1

    def _rows_of(self, block: int) -> Iterator[Row]:
        for start, count in self._plan.runs[block]:
            for index, line in islice(self._cursor.lines(start), count):
                for row in read_output(index, line):
                    if block_of(row, self._blocks) == block:
                        yield row

    def _kept(self) -> str:
        if not self.stats.blocks:
            return ""
        first = self._blocks[0]
        return (
            f"blocks {first} to {first + self.stats.blocks - 1} ({self.stats.rows} rows) are written and stay"
        )


def _groups(with_rows: Sequence[int], blocks: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Ranges of blocks that are one transaction each: a block with rows, or a run of blocks without."""
    start, last = blocks
    for block in with_rows:
        if start < block:
            yield start, block - 1
        yield block, block
        start = block + 1
    if start <= last:
        yield start, last
