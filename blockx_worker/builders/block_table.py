"""`BlockTableCallConfig {"functionId", "block", "triggerSources", "rowsPerCall"?}`: a call for the rows of block tables.

``block`` is a number or ``{"from", "to"}`` (inclusive). Without ``rowsPerCall`` each call gets one row; with it each
call gets a list of up to so many rows of one block and one table. Calls are ordered by block, then by the order of
``triggerSources``, then by line. Rows are passed on as the text in which the store holds them.

The calls of one block are a list. Those of a range are a stream, made while earlier ones run, and bounded by nothing but
`MAX_BLOCKS_PER_STREAM`; where the worker does not stream, they are a list too, which has to fit into memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import msgspec

from blockx_worker.builders.block_rows import read_calls
from blockx_worker.builders.block_stream import BlockTableStream
from blockx_worker.builders.table_config import BlockTableConfig, read_table_config
from blockx_worker.dispatch.source import ListSource, ResolvedFunction
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BlockStore, BuilderContext, BuildResult, StepFailed

__all__ = ["BlockTableBuilder"]

MAX_BLOCKS_PER_LIST = 1_000_000
MAX_BLOCKS_PER_STREAM = 1_000_000_000
MAX_TABLE_BYTES = 512 * 1024 * 1024


class BlockTableBuilder:
    """Builds calls over the tables of a store; without one every task is refused with what to do.

    ``max_table_bytes`` bounds the rows that are in memory at once: all rows of a list, those of one block of a table in a
    stream.
    """

    type = "BlockTableCallConfig"

    def __init__(self, store: BlockStore | None, *, max_table_bytes: int = MAX_TABLE_BYTES) -> None:
        self._store = store
        self._max_bytes = max_table_bytes

    async def build(self, context: BuilderContext, config: bytes) -> BuildResult:
        """Make a stream of a range. Else read the rows in a thread, as one of the few tasks that may scan at a time."""
        max_blocks = MAX_BLOCKS_PER_STREAM if context.streaming else MAX_BLOCKS_PER_LIST
        settings = read_table_config(config, max_blocks=max_blocks)
        if self._store is None:
            message = "this worker has no block store; start it with --blocks DIR, or submit to one that has"
            raise StepFailed(TaskFailureCode.BUILDER_FAILED, message)
        function = context.view.resolve(settings.function_id)
        blocks = (settings.first, settings.last)
        if context.streaming and settings.first < settings.last:
            stream = BlockTableStream(
                context, self._store, settings, function, max_block_bytes=self._max_bytes
            )
            return BuildResult(stream=stream, blocks=blocks)
        return BuildResult(source=await self._list(context, self._store, settings, function), blocks=blocks)

    async def _list(
        self, context: BuilderContext, store: BlockStore, config: BlockTableConfig, function: ResolvedFunction
    ) -> ListSource:
        stop = threading.Event()
        async with context.scan:
            args = await context.threads.run(self._collect, store, config, stop.is_set, interrupt=stop.set)
        return ListSource(
            function,
            args,
            batch_max_rows=context.batch_max_rows,
            batch_max_args_bytes=context.batch_max_args_bytes,
        )

    def _collect(
        self, store: BlockStore, config: BlockTableConfig, interrupted: Callable[[], bool]
    ) -> list[msgspec.Raw]:
        args: list[msgspec.Raw] = []
        size = 0
        with closing(read_calls(store, config, interrupted)) as calls:
            for _, part in calls:
                size += sum(map(len, part))
                if size > self._max_bytes:
                    raise StepFailed(TaskFailureCode.BUILDER_FAILED, self._too_large(config))
                args += part
        return args

    def _too_large(self, config: BlockTableConfig) -> str:
        which = (
            f"blocks {config.first} to {config.last}"
            if config.first < config.last
            else f"block {config.first}"
        )
        advice = "; submit several tasks with fewer blocks each" if config.first < config.last else ""
        return (
            f"functionCallConfig.block: the rows of {which} are more than {self._max_bytes} bytes, the limit of a task "
            f"that does not stream{advice}"
        )
