"""replace_block: the task's rows become the only ones of each of its blocks.

A batch is read twice. First each row is looked at: is it a row, of which block, with which columns; so a bad row is found
before anything of its batch is written. Then blocks that are complete are written: under the lock of the block its rows are
deleted and the new ones inserted, in one transaction, also for a block that yields nothing. Consecutive blocks share a
transaction as long as they have no more than ``max_rows`` rows together.

When a block is complete the batches say. Outputs that are there all at once are complete at the end. The outputs of blocks
that are not complete are kept in memory, up to ``max_bytes``. The last block of the range waits for the end: it goes with the
final commit.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice

import attrs

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import TableDatabase
from blockx_worker.plugins.jobs import CHECK_EVERY, Batch, WriteJob
from blockx_worker.plugins.rows import BLOCK_COLUMN, ColumnKinds, Row, bad_row, block_of, read_output
from blockx_worker.ports import WriterContext

__all__ = ["ReplaceJob"]


@attrs.define
class _BlockRows:
    """Where the rows of a block are: runs of outputs (start, count), and how many rows."""

    runs: list[tuple[int, int]] = attrs.field(factory=list)
    rows: int = 0

    def add(self, index: int) -> None:
        """Note a row in the output ``index``."""
        self.rows += 1
        start, count = self.runs[-1] if self.runs else (index, 0)
        if start + count > index:
            return  # another row of the same output
        if start + count == index and count:
            self.runs[-1] = (start, count + 1)
        else:
            self.runs.append((index, 1))


@attrs.define
class _Held:
    """A batch that is still needed, until its last block is written."""

    batch: Batch
    last_block: int


class ReplaceJob(WriteJob):
    """Replaces the rows of each block of the task."""

    def __init__(
        self,
        database: TableDatabase,
        context: WriterContext,
        stopped: threading.Event,
        *,
        blocks: tuple[int, int],
        max_rows: int,
        max_bytes: int,
    ) -> None:
        super().__init__(database, context, stopped)
        self.stats.blocks = 0
        self._blocks = blocks
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._columns = ColumnKinds(database.check_columns)
        self._plan: dict[int, _BlockRows] = {}
        self._waiting: list[int] = []  # a heap of the blocks in the plan
        self._held: list[_Held] = []  # in the order of their outputs
        self._next = blocks[0]
        self._complete = blocks[0] - 1

    def take(self, batch: Batch) -> None:
        """Look at each row of the batch; StepFailed for a bad one."""
        last = self._next - 1
        for index, line in batch.cursor.lines(batch.first):
            if not index % CHECK_EVERY:
                self._check_stopped()
            for row in read_output(index, line):
                last = max(last, self._look_at(row))
        if last >= self._next:
            self._held.append(_Held(batch, last))
        if batch.blocks_done is not None:
            self._complete = max(self._complete, min(batch.blocks_done, self._blocks[1] - 1))
        self._check_held()

    def end(self) -> None:
        """There are no more batches: all blocks are complete."""
        super().end()
        self._complete = self._blocks[1]

    def has_work(self) -> bool:
        """Whether complete blocks wait."""
        return self._next <= self._complete

    def kept(self) -> str:
        """Which blocks are written."""
        if not self.stats.blocks:
            return ""
        first = self._blocks[0]
        return (
            f"blocks {first} to {first + self.stats.blocks - 1} ({self.stats.rows} rows) are written and stay"
        )

    def _look_at(self, row: Row) -> int:
        block = block_of(row, self._blocks)
        if block < self._next:
            raise bad_row(
                row,
                f"block {block} is written already, with the blocks up to {self._next - 1}; a call may only return rows "
                "of the block that it was called for, or of later ones",
                BLOCK_COLUMN,
            )
        self._columns.add(row)
        found = self._plan.get(block)
        if found is None:
            found = self._plan[block] = _BlockRows()
            heappush(self._waiting, block)
        found.add(row.output)
        return block

    def _check_held(self) -> None:
        """What is held for blocks that are not complete stays within the limit."""
        size = sum(held.batch.size for held in self._held if held.last_block > self._complete)
        if size > self._max_bytes:
            raise plugin_failed(
                f"the outputs that wait for block {self._complete + 1} to be complete take {size} bytes, more than "
                f"writers.max_buffered_bytes ({self._max_bytes}); raise it, return smaller rows, or use the mode append"
            )

    def _transact(self) -> None:
        first, last, blocks = self._group()
        self._database.lock_blocks(first, last)
        if self._columns.kinds:
            self._database.ensure_table(self._columns.kinds, self._writing)
        self._database.delete_blocks(first, last)
        written = self._database.insert(self._rows_of(blocks)) if blocks else 0
        final = self._ending and last == self._blocks[1]
        self._commit(final=final, note=partial(self._note, last, written))
        self._forget(blocks)

    def _group(self) -> tuple[int, int, list[int]]:
        """The next blocks that are one transaction: first, last, and those among them that have rows."""
        first, rows = self._next, 0
        blocks: list[int] = []
        last = min(self._complete, first + self._database.max_blocks - 1)
        while self._waiting and self._waiting[0] <= last:
            more = self._plan[self._waiting[0]].rows
            if blocks and rows + more > self._max_rows:
                last = self._waiting[0] - 1
                break
            rows += more
            blocks.append(heappop(self._waiting))
        return first, last, blocks

    def _note(self, last: int, rows: int) -> None:
        self._next = last + 1
        self.stats.rows += rows
        self.stats.blocks = self._next - self._blocks[0]

    def _forget(self, blocks: list[int]) -> None:
        for block in blocks:
            del self._plan[block]
        self._held = [held for held in self._held if held.last_block >= self._next]

    def _rows_of(self, blocks: list[int]) -> Iterator[Row]:
        for block in blocks:
            for start, count in self._plan[block].runs:
                for index, line in self._outputs(start, count):
                    for row in read_output(index, line):
                        if block_of(row, self._blocks) == block:
                            yield row

    def _outputs(self, start: int, count: int) -> Iterator[tuple[int, bytes]]:
        """The outputs of a run, which may lie in several batches."""
        position = bisect_right(self._held, start, key=_first_output) - 1
        while count:
            batch = self._held[position].batch
            here = min(count, batch.end - start)
            yield from islice(batch.cursor.lines(start), here)
            start, count, position = start + here, count - here, position + 1


def _first_output(held: _Held) -> int:
    return held.batch.first
