"""Reads the rows of several block tables side by side and makes calls of them. Blocking: it runs in a thread.

Per row there is no Python code that runs, only C iterators: a Python loop would keep taking the interpreter lock from the
thread that serves the calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from operator import itemgetter

import msgspec

from blockx_worker.builders.table_config import BlockTableConfig
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BlockStore, BlockStoreError, StepFailed

__all__ = ["read_calls"]

_one_row = b"[%b]".__mod__
_block = itemgetter(0)


def read_calls(
    store: BlockStore, config: BlockTableConfig, interrupted: Callable[[], bool]
) -> Generator[tuple[int, list[msgspec.Raw]], None, None]:
    """Yield (block, argument list of each call) in order of block and source, never without calls.

    All tables are opened before the first block comes. Close the iterator when it is not read to its end. StepFailed
    names the table, and whatever else the store says.
    """
    with ExitStack() as stack:
        sources = [
            stack.enter_context(closing(_of_source(store, index, config, interrupted)))
            for index in range(len(config.sources))
        ]
        for block, rows in heapq.merge(*sources, key=_block):
            yield block, _arguments(rows, config.rows_per_call)


def _of_source(
    store: BlockStore, index: int, config: BlockTableConfig, interrupted: Callable[[], bool]
) -> Generator[tuple[int, list[bytes]], None, None]:
    try:
        yield from store.read_blocks(config.sources[index], config.first, config.last, interrupted)
    except BlockStoreError as error:
        message = f"functionCallConfig.triggerSources[{index}]: {error}"
        raise StepFailed(TaskFailureCode.BUILDER_FAILED, message) from error


def _arguments(rows: list[bytes], rows_per_call: int | None) -> list[msgspec.Raw]:
    """The JSON text of the argument list of each call."""
    if rows_per_call is None:
        return list(map(msgspec.Raw, map(_one_row, rows)))
    groups = (rows[i : i + rows_per_call] for i in range(0, len(rows), rows_per_call))
    return [msgspec.Raw(b"[[%b]]" % b",".join(group)) for group in groups]
