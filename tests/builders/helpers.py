"""A context for builders, and a look at what they built."""

import json
from contextlib import aclosing
from typing import Any

import trio

from blockx_worker.dispatch.source import CallBatch, CallSource
from blockx_worker.functions import StaticFunctionProvider
from blockx_worker.ports import BuilderContext, BuildResult, CallBuilder, CallStream
from tests.plugins.helpers import TrioThreads

FUNCTIONS = StaticFunctionProvider({"m": "def f(x): ..."})


def builder_context(**changes: Any) -> BuilderContext:
    fields: dict[str, Any] = {
        "task_id": "task-1",
        "view": FUNCTIONS.current(),
        "threads": TrioThreads(),
        "scan": trio.CapacityLimiter(1),
        "batch_max_rows": 8192,
        "batch_max_args_bytes": 32 * 1024 * 1024,
    }
    return BuilderContext(**{**fields, **changes})


async def build(builder: CallBuilder, config: object, **changes: Any) -> BuildResult:
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    return await builder.build(builder_context(**changes), text)


def source_of(result: BuildResult) -> CallSource:
    """The list that was built."""
    assert result.stream is None
    assert result.source is not None
    return result.source


def stream_of(result: BuildResult) -> CallStream:
    """The stream that was built."""
    assert result.source is None
    assert result.stream is not None
    return result.stream


def calls(result: BuildResult) -> list[bytes]:
    """The argument lists of all calls, in order."""
    source = source_of(result)
    found: list[bytes] = []
    while (batch := source.next_batch()) is not None:
        assert batch.first_index == len(found)
        found.extend(map(bytes, batch.args))
    assert source.total == len(found)
    return found


def first_batch(result: BuildResult) -> CallBatch:
    batch = source_of(result).next_batch()
    assert batch is not None
    return batch


async def batches(result: BuildResult) -> list[CallBatch]:
    """All batches of a stream."""
    async with aclosing(stream_of(result).batches()) as stream:
        return [batch async for batch in stream]
