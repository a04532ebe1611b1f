"""`BlockTableCallConfig {"functionId", "block", "triggerSources", "rowsPerCall"?}`: a call for the rows of block tables.

``block`` is a number or ``{"from", "to"}`` (inclusive). Without ``rowsPerCall`` each call gets one row; with it each
call gets a list of up to so many rows of one block and one table. Calls are ordered by block, then by the order of
``triggerSources``, then by line. Rows are passed on as the text in which the store holds them.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

import attrs
import msgspec

from blockx_worker.builders.config import config_errors, read_config
from blockx_worker.dispatch.source import ListSource
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import Fields, read_object
from blockx_worker.ports import BlockStore, BlockStoreError, BuilderContext, BuildResult, StepFailed

__all__ = ["BlockTableBuilder"]

FIELDS = ("functionId", "block", "triggerSources", "rowsPerCall")
EXPECTED_BLOCK = 'a block number or {"from": N, "to": M}'
MAX_BLOCKS_PER_TASK = 1_000_000
MAX_TABLE_BYTES = 512 * 1024 * 1024

_one_row = b"[%b]".__mod__
_block = itemgetter(0)


@attrs.frozen(kw_only=True)
class _Config:
    function_id: str
    first: int
    last: int
    sources: list[str]
    rows_per_call: int | None


class BlockTableBuilder:
    """Builds calls over the tables of a store; without one every task is refused with what to do."""

    type = "BlockTableCallConfig"

    def __init__(self, store: BlockStore | None, *, max_table_bytes: int = MAX_TABLE_BYTES) -> None:
        self._store = store
        self._max_bytes = max_table_bytes

    async def build(self, context: BuilderContext, config: bytes) -> BuildResult:
        """Read the rows in a thread, as one of the few tasks that may scan at a time, and make the calls."""
        settings = _read(config)
        if self._store is None:
            message = "this worker has no block store; start it with --blocks DIR, or submit to one that has"
            raise StepFailed(TaskFailureCode.BUILDER_FAILED, message)
        function = context.view.resolve(settings.function_id)
        stop = threading.Event()
        async with context.scan:
            args = await context.threads.run(
                self._collect, self._store, settings, stop.is_set, interrupt=stop.set
            )
        source = ListSource(
            function,
            args,
            batch_max_rows=context.batch_max_rows,
            batch_max_args_bytes=context.batch_max_args_bytes,
        )
        return BuildResult(source=source, blocks=(settings.first, settings.last))

    def _collect(
        self, store: BlockStore, settings: _Config, interrupted: Callable[[], bool]
    ) -> list[msgspec.Raw]:
        streams = [
            _of_source(store, i, name, settings, interrupted) for i, name in enumerate(settings.sources)
        ]
        args: list[msgspec.Raw] = []
        size = 0
        for _, rows in heapq.merge(*streams, key=_block):
            size += sum(map(len, rows))
            if size > self._max_bytes:
                raise StepFailed(TaskFailureCode.BUILDER_FAILED, self._too_large(settings))
            args.extend(_arguments(rows, settings.rows_per_call))
        return args

    def _too_large(self, settings: _Config) -> str:
        return (
            f"functionCallConfig.block: the rows of blocks {settings.first} to {settings.last} are more than "
            f"{self._max_bytes} bytes, the limit of one task; submit several tasks with fewer blocks each"
        )


def _of_source(
    store: BlockStore, index: int, name: str, settings: _Config, interrupted: Callable[[], bool]
) -> Iterator[tuple[int, list[bytes]]]:
    try:
        yield from store.read_blocks(name, settings.first, settings.last, interrupted)
    except BlockStoreError as error:
        message = f"functionCallConfig.triggerSources[{index}]: {error}"
        raise StepFailed(TaskFailureCode.BUILDER_FAILED, message) from error


def _arguments(rows: list[bytes], rows_per_call: int | None) -> Iterable[msgspec.Raw]:
    """The JSON text of the argument list of each call."""
    if rows_per_call is None:
        return map(msgspec.Raw, map(_one_row, rows))
    groups = (rows[i : i + rows_per_call] for i in range(0, len(rows), rows_per_call))
    return (msgspec.Raw(b"[[%b]]" % b",".join(group)) for group in groups)


def _read(config: bytes) -> _Config:
    fields = read_config(config, FIELDS)
    with config_errors():
        first, last = _read_block(fields)
        return _Config(
            function_id=fields.text("functionId", "the id of a function"),
            first=first,
            last=last,
            sources=fields.names("triggerSources", "a list of at least one table name"),
            rows_per_call=fields.integer("rowsPerCall", 1) if fields.has("rowsPerCall") else None,
        )


def _read_block(fields: Fields) -> tuple[int, int]:
    raw = fields.raw("block", EXPECTED_BLOCK)
    if bytes(memoryview(raw)[:1]) != b"{":
        if not bytes(raw).removeprefix(b"-").isdigit():
            raise fields.wrong("block", EXPECTED_BLOCK)
        number = fields.integer("block", 0)
        return number, number
    span = read_object(f"{fields.path}.block", raw, ("from", "to"))
    first, last = span.integer("from", 0), span.integer("to", 0)
    if first > last:
        raise span.error("to", f"expected at least {first} (block.from), got {last}")
    if last - first >= MAX_BLOCKS_PER_TASK:
        count = last - first + 1
        raise span.error(
            "to", f"{count} blocks are more than the {MAX_BLOCKS_PER_TASK} that one task may cover"
        )
    return first, last
