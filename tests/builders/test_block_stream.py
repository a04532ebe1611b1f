"""Calls over the block tables of a range, made while earlier ones run."""

import json
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from blockx_worker.builders.block_stream import BatchCutter
from blockx_worker.builders.block_table import BlockTableBuilder
from blockx_worker.dispatch.source import CallBatch
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BuildResult, StepFailed
from tests.builders.helpers import batches, build, calls, stream_of


class Store:
    """A store of one table ``t``: so many rows for each block; it counts the blocks that were asked for."""

    def __init__(self, rows: dict[int, int]) -> None:
        self.rows = rows
        self.read: list[int] = []
        self.closed = threading.Event()

    def read_blocks(self, table, first, last, interrupted=lambda: False):
        try:
            for block in range(first, last + 1):
                if self.rows.get(block):
                    self.read.append(block)
                    yield block, [b'{"b":%d,"i":%d}' % (block, i) for i in range(self.rows[block])]
        finally:
            self.closed.set()


async def stream(
    store: Any, first: int, last: int, *, rows_per_call: int | None = None, **context: Any
) -> BuildResult:
    config: dict[str, Any] = {
        "functionId": "m.f",
        "block": {"from": first, "to": last},
        "triggerSources": ["t"],
    }
    if rows_per_call is not None:
        config["rowsPerCall"] = rows_per_call
    return await build(BlockTableBuilder(store), config, streaming=True, **context)


def summary(batch: CallBatch) -> tuple[int, int, int | None]:
    return batch.first_index, len(batch.args), batch.blocks_done


async def test_a_range_is_a_stream_and_one_block_a_list() -> None:
    store = Store({1: 2, 2: 1})
    ranged = await stream(store, 1, 2)
    assert (ranged.source, ranged.blocks, store.read) == (None, (1, 2), [])
    assert stream_of(ranged).function.function_id == "m.f"
    single = await stream(store, 1, 1)
    assert (single.stream, single.blocks) == (None, (1, 1))
    assert len(calls(single)) == 2


async def test_a_worker_that_does_not_stream_makes_the_same_calls_as_a_list() -> None:
    rows = {1: 2, 2: 3, 5: 1}
    config = {"functionId": "m.f", "block": {"from": 0, "to": 5}, "triggerSources": ["t"]}
    listed = calls(await build(BlockTableBuilder(Store(rows)), config, streaming=False))
    streamed = await batches(await stream(Store(rows), 0, 5))
    assert [bytes(raw) for batch in streamed for raw in batch.args] == listed


async def test_batches_are_bounded_by_rows_and_say_which_blocks_are_done() -> None:
    result = await stream(Store({1: 2, 2: 1, 5: 4}), 0, 9, batch_max_rows=3)
    assert [summary(batch) for batch in await batches(result)] == [(0, 3, 4), (3, 3, 4), (6, 1, 9)]


async def test_batches_are_bounded_by_bytes_but_have_at_least_one_call() -> None:
    """A row has 15 bytes, its argument list 17."""
    result = await stream(Store({1: 3, 2: 2}), 1, 2, batch_max_args_bytes=40)
    assert [summary(batch) for batch in await batches(result)] == [(0, 2, 0), (2, 2, 1), (4, 1, 2)]
    result = await stream(Store({1: 3}), 1, 2, batch_max_args_bytes=1)
    assert [summary(batch) for batch in await batches(result)] == [(0, 1, 0), (1, 1, 0), (2, 1, 2)]


async def test_a_range_without_rows_is_a_stream_without_batches() -> None:
    assert await batches(await stream(Store({}), 0, 9)) == []


async def test_rows_of_one_block_and_table_share_a_call() -> None:
    result = await stream(Store({1: 3, 2: 1, 3: 2}), 1, 3, rows_per_call=2, batch_max_rows=2)
    found = await batches(result)
    assert [summary(batch) for batch in found] == [(0, 2, 1), (2, 2, 3)]
    args = [json.loads(bytes(raw)) for batch in found for raw in batch.args]
    assert [[row["i"] for row in rows] for (rows,) in args] == [[0, 1], [2], [0], [0, 1]]


class Recorded:
    """The calls of blocks as a store would give them: names of the calls instead of argument lists."""

    def __init__(self, blocks: list[tuple[int, list[bytes]]]) -> None:
        self.blocks = blocks
        self.handed = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.handed == len(self.blocks):
            raise StopIteration
        self.handed += 1
        return self.blocks[self.handed - 1]


@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 9), min_size=1, max_size=5)), max_size=8
    ),
    max_rows=st.integers(1, 6),
    max_bytes=st.integers(1, 30),
)
def test_every_cut_keeps_order_and_bounds_and_tells_the_truth_about_blocks(
    sizes, max_rows, max_bytes
) -> None:
    """``sizes``: how many blocks further, and the size of each call. Two tables may have calls of one block."""
    block, blocks = 3, []
    for step, lengths in sizes:
        block += step
        blocks.append((block, [b"x" * length for length in lengths]))
    every = [(b, call) for b, part in blocks for call in part]
    cutter = BatchCutter(
        Recorded(blocks), last_block=99, max_rows=max_rows, max_bytes=max_bytes, max_block_bytes=10_000
    )
    cut: list[tuple[int, bytes]] = []
    while (batch := cutter.cut()) is not None:
        assert batch.first_index == len(cut)
        assert 1 <= len(batch.args) <= max_rows
        assert len(batch.args) == 1 or sum(map(len, batch.args)) <= max_bytes
        cut += [(every[batch.first_index + i][0], raw) for i, raw in enumerate(batch.args)]
        rest = every[len(cut) :]
        assert batch.blocks_done == (rest[0][0] - 1 if rest else 99)
    assert cut == every


async def test_no_more_is_read_than_the_next_batch_and_one_block() -> None:
    store = Store(dict.fromkeys(range(100), 10))
    result = await stream(store, 0, 99, batch_max_rows=20)
    async with aclosing(stream_of(result).batches()) as found:
        for count in range(1, 5):
            await anext(found)
            assert len(store.read) == 2 * count + 1
    assert store.closed.is_set()


async def test_a_task_scans_only_while_it_reads() -> None:
    scan = trio.CapacityLimiter(1)
    result = await stream(Store({1: 1, 2: 1}), 1, 2, scan=scan, batch_max_rows=1)
    async with aclosing(stream_of(result).batches()) as found, scan, trio.open_nursery() as nursery:
        nursery.start_soon(anext, found)
        await trio.testing.wait_all_tasks_blocked()
        assert scan.statistics().tasks_waiting == 1
        nursery.cancel_scope.cancel()
    assert scan.borrowed_tokens == 0
    result = await stream(Store({1: 1, 2: 1}), 1, 2, scan=scan, batch_max_rows=1)
    async with aclosing(stream_of(result).batches()) as found:
        await anext(found)
        assert scan.borrowed_tokens == 0


async def test_a_cancelled_stream_stops_reading_and_closes_the_store() -> None:
    reading, closed = threading.Event(), threading.Event()

    class Endless:
        def read_blocks(self, table, first, last, interrupted=lambda: False):
            try:
                while not interrupted():
                    reading.set()
                    yield first, [b"{}"]
            finally:
                closed.set()

    result = await stream(Endless(), 0, 9, batch_max_rows=10**12)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batches, result)
        await trio.to_thread.run_sync(reading.wait)
        nursery.cancel_scope.cancel()
    assert closed.is_set()


# --- what can be wrong ------------------------------------------------------------------------------------------


async def until_failure(result: BuildResult) -> tuple[list[CallBatch], StepFailed]:
    """The batches before the failure, and the failure."""
    found: list[CallBatch] = []

    async def collect() -> None:
        async with aclosing(stream_of(result).batches()) as stream:
            while (batch := await anext(stream, None)) is not None:
                found.append(batch)

    with pytest.raises(StepFailed) as caught:
        await collect()
    assert caught.value.code is TaskFailureCode.BUILDER_FAILED
    return found, caught.value


def table(folder: Path, rows: dict[int, int]) -> FolderBlockStore:
    """One file a block."""
    (folder / "t").mkdir()
    for block, count in rows.items():
        (folder / "t" / f"{block}.jsonl").write_text(f'{{"block_number": {block}}}\n' * count)
    return FolderBlockStore(folder)


async def test_a_bad_line_in_the_middle_ends_the_stream_and_is_named(tmp_path) -> None:
    store = table(tmp_path, dict.fromkeys(range(5), 2))
    (tmp_path / "t" / "3.jsonl").write_text('{"block_number": 3}\n{"block_number": "x"}\n')
    found, failed = await until_failure(await stream(store, 0, 4, batch_max_rows=2))
    assert [batch.blocks_done for batch in found] == [0, 1]
    assert failed.message.startswith(f"functionCallConfig.triggerSources[0]: {tmp_path}/t/3.jsonl, line 2: ")


async def test_a_table_that_vanishes_ends_the_stream(tmp_path) -> None:
    result = await stream(table(tmp_path, dict.fromkeys(range(5), 2)), 0, 4, batch_max_rows=2)
    async with aclosing(stream_of(result).batches()) as found:
        await anext(found)
        (tmp_path / "t").rename(tmp_path / "away")
        with pytest.raises(
            StepFailed, match=r"the file of block 2 in .*/t was removed while the table was read"
        ):
            await anext(found)


async def test_an_unknown_table_or_block_is_told_before_the_first_batch(tmp_path) -> None:
    store = table(tmp_path, {0: 1, 1: 1, 3: 1})
    found, failed = await until_failure(await stream(store, 0, 3))
    assert (found, "block 2 is not in" in failed.message) == ([], True)
    config = {"functionId": "m.f", "block": {"from": 0, "to": 1}, "triggerSources": ["t", "zz"]}
    found, failed = await until_failure(await build(BlockTableBuilder(store), config, streaming=True))
    assert found == []
    assert failed.message.startswith('functionCallConfig.triggerSources[1]: no table "zz"')


async def test_a_block_that_is_too_large_is_named() -> None:
    config = {"functionId": "m.f", "block": {"from": 1, "to": 3}, "triggerSources": ["t"]}
    builder = BlockTableBuilder(Store({1: 5, 2: 50, 3: 5}), max_table_bytes=100)
    _, failed = await until_failure(await build(builder, config, streaming=True))
    assert failed.message.startswith("functionCallConfig.block: the rows of block 2 in one table have ")
    assert "more than the 100 that are read at once" in failed.message


async def test_the_function_is_looked_up_before_anything_is_read() -> None:
    config = {"functionId": "m.g", "block": {"from": 1, "to": 3}, "triggerSources": ["t"]}
    with pytest.raises(StepFailed) as caught:
        await build(BlockTableBuilder(Store({})), config, streaming=True)
    assert caught.value.code is TaskFailureCode.FUNCTION_NOT_FOUND


async def test_a_stream_may_cover_more_blocks_than_a_list_and_not_any_number() -> None:
    assert (await stream(Store({}), 0, 10**9 - 1)).stream is not None
    with pytest.raises(
        StepFailed, match="1000000001 blocks are more than the 1000000000 that one task may cover"
    ):
        await stream(Store({}), 0, 10**9)


async def test_two_real_blocks_stream_as_they_list(ethereum_blocks) -> None:
    config = {
        "functionId": "m.f",
        "block": {"from": 17173049, "to": 17173050},
        "triggerSources": ["logs", "transactions"],
    }
    builder = BlockTableBuilder(FolderBlockStore(ethereum_blocks))
    listed = calls(await build(builder, config))
    found = await batches(await build(builder, config, streaming=True, batch_max_rows=100))
    assert [bytes(raw) for batch in found for raw in batch.args] == listed
    assert [batch.blocks_done for batch in found][-1] == 17173050
    assert {batch.blocks_done for batch in found} == {17173048, 17173049, 17173050}
