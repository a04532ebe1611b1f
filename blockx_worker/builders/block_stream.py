"""Calls over the block tables of a range, made while earlier ones run.

Each batch is read in a thread when the task has credit for it, and only then as one of the few tasks that scan. Between
batches the tables stay open at where they are; what a store does when they change meanwhile, the store says (`FolderBlockStore`).
In memory are the rows of one block of each table, besides the batches that the task has outstanding.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from itertools import accumulate

import msgspec
import trio

from blockx_worker.builders.block_rows import read_calls
from blockx_worker.builders.table_config import BlockTableConfig
from blockx_worker.dispatch.source import CallBatch, ResolvedFunction
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BlockStore, BuilderContext, StepFailed

__all__ = ["BlockTableStream"]


class BlockTableStream:
    """A `CallStream` over the range of a configuration; its batches can be had once."""

    def __init__(
        self,
        context: BuilderContext,
        store: BlockStore,
        config: BlockTableConfig,
        function: ResolvedFunction,
        *,
        max_block_bytes: int,
    ) -> None:
        self.function = function
        self._context = context
        self._stop = threading.Event()
        self._calls = read_calls(store, config, self._stop.is_set)
        self._cutter = BatchCutter(
            self._calls,
            last_block=config.last,
            max_rows=context.batch_max_rows,
            max_bytes=context.batch_max_args_bytes,
            max_block_bytes=max_block_bytes,
        )

    async def batches(self) -> AsyncGenerator[CallBatch]:
        """Read batch after batch; StepFailed names table, file and line of what cannot be read."""
        threads = self._context.threads
        try:
            while True:
                async with self._context.scan:
                    batch = await threads.run(self._cutter.cut, interrupt=self._stop.set)
                if batch is None:
                    return
                yield batch
        finally:
            with trio.CancelScope(shield=True):
                await threads.run(self._calls.close)


class BatchCutter:
    """Cuts the calls of blocks into batches of at least one call, within the bounds on rows and bytes if there are more."""

    def __init__(
        self,
        calls: Iterator[tuple[int, list[msgspec.Raw]]],
        *,
        last_block: int,
        max_rows: int,
        max_bytes: int,
        max_block_bytes: int,
    ) -> None:
        self._calls = calls
        self._last_block = last_block
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._max_block_bytes = max_block_bytes
        self._next_index = 0
        self._block = -1
        self._args: list[msgspec.Raw] = []
        self._size = 0
        self._taken = 0
        self._over = False

    def cut(self) -> CallBatch | None:
        """The next batch, with the last block that is complete with it; None after the last one.

        The calls after the batch are looked at already, so a block whose last call ends a batch is complete with it, and so
        are blocks behind it without calls. While the first block of the range is not complete, it is the one before it.
        """
        args: list[msgspec.Raw] = []
        room = self._max_bytes
        self._advance()
        while not self._over:
            part, size = self._take(self._max_rows - len(args), room, at_least=0 if args else 1)
            args += part
            room -= size
            if not part or len(args) == self._max_rows:
                break
            self._advance()
        if not args:
            return None
        self._advance()
        first, self._next_index = self._next_index, self._next_index + len(args)
        return CallBatch(first, args, self._last_block if self._over else self._block - 1)

    def _advance(self) -> None:
        """Have a call to take, or know that there is none."""
        if self._over or self._taken < len(self._args):
            return
        self._args, self._taken = [], 0
        found = next(self._calls, None)
        if found is None:
            self._over = True
            return
        self._block, self._args = found
        self._size = sum(map(len, self._args))
        if self._size > self._max_block_bytes:
            raise StepFailed(
                TaskFailureCode.BUILDER_FAILED,
                f"functionCallConfig.block: the rows of block {self._block} in one table have {self._size} bytes, more than "
                f"the {self._max_block_bytes} that are read at once",
            )

    def _take(self, rows: int, room: int, *, at_least: int) -> tuple[list[msgspec.Raw], int]:
        """Take calls of the block at hand, as many as there is room for, and their size."""
        part, size = self._args, self._size
        if self._taken or len(part) > rows:
            part = part[self._taken : self._taken + rows]
            size = sum(map(len, part))
        if size > room:
            sizes = list(accumulate(map(len, part), initial=0))
            count = max(at_least, bisect_right(sizes, room) - 1)
            part, size = part[:count], sizes[count]
        self._taken += len(part)
        return part, size
