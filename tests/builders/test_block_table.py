"""Calls over block tables."""

import json
import threading

import pytest
import trio
import trio.testing

from blockx_worker.builders.block_table import BlockTableBuilder
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BlockStoreError, StepFailed
from tests.builders.helpers import build, calls


class Store:
    """A store of two tables: per block one row of ``b``, as many rows of ``a`` as the block's number."""

    def read_blocks(self, table, first, last, interrupted=lambda: False):
        if table not in ("a", "b"):
            raise BlockStoreError(f'no table "{table}"')
        for block in range(first, last + 1):
            rows = [f'{{"{table}":{block},"i":{i}}}'.encode() for i in range(block if table == "a" else 1)]
            if rows:
                yield block, rows


def config(**fields: object) -> dict[str, object]:
    return {"functionId": "m.f", "block": 1, "triggerSources": ["a"], **fields}


async def refused(fields: dict[str, object], builder: BlockTableBuilder | None = None) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        await build(builder or BlockTableBuilder(Store()), fields)
    return caught.value


async def test_calls_come_by_block_then_source_then_line() -> None:
    result = await build(
        BlockTableBuilder(Store()), config(block={"from": 0, "to": 2}, triggerSources=["b", "a"])
    )
    assert calls(result) == [
        b'[{"b":0,"i":0}]',
        b'[{"b":1,"i":0}]',
        b'[{"a":1,"i":0}]',
        b'[{"b":2,"i":0}]',
        b'[{"a":2,"i":0}]',
        b'[{"a":2,"i":1}]',
    ]
    assert result.blocks == (0, 2)


async def test_one_block_is_a_range_of_one() -> None:
    result = await build(BlockTableBuilder(Store()), config(block=1))
    assert (calls(result), result.blocks) == ([b'[{"a":1,"i":0}]'], (1, 1))


async def test_a_range_without_rows_is_a_task_without_calls() -> None:
    result = await build(BlockTableBuilder(Store()), config(block=0))
    assert (calls(result), result.blocks) == ([], (0, 0))


async def test_rows_per_call_never_mixes_blocks_or_tables() -> None:
    fields = config(block={"from": 1, "to": 3}, triggerSources=["a", "b"], rowsPerCall=2)
    result = await build(BlockTableBuilder(Store()), fields)
    args = [json.loads(text) for text in calls(result)]
    assert [[(("a" if "a" in r else "b"), r["i"]) for r in rows] for (rows,) in args] == [
        [("a", 0)],
        [("b", 0)],
        [("a", 0), ("a", 1)],
        [("b", 0)],
        [("a", 0), ("a", 1)],
        [("a", 2)],
        [("b", 0)],
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": "abc"}, '.block: expected a block number or {"from": N, "to": M}, got "abc"'),
        ({"block": 1.5}, '.block: expected a block number or {"from": N, "to": M}, got 1.5'),
        ({"block": -1}, ".block: expected an integer ≥ 0, got -1"),
        ({"block": 2**63}, ".block: expected an integer ≥ 0, got 9223372036854775808"),
        ({"block": True}, ".block: expected a block number or"),
        ({"block": None}, ".block: is missing: expected a block number or"),
        ({"block": {"from": "abc", "to": 2}}, '.block.from: expected an integer ≥ 0, got "abc"'),
        ({"block": {"from": True, "to": 2}}, ".block.from: expected an integer ≥ 0, got true"),
        ({"block": {"from": 1}}, ".block.to: is missing: expected an integer ≥ 0"),
        ({"block": {"from": 1, "to": 2, "step": 1}}, ".block.step: unknown field: accepted are from, to"),
        ({"block": {"from": 3, "to": 2}}, ".block.to: expected at least 3 (block.from), got 2"),
        ({"block": {"from": 0, "to": 1_000_000}}, ".block.to: 1000001 blocks are more than the 1000000"),
        ({"triggerSources": []}, ".triggerSources: expected a list of at least one table name, got []"),
        ({"triggerSources": "a"}, '.triggerSources: expected a list of at least one table name, got "a"'),
        ({"triggerSources": ["a", 5]}, ".triggerSources[1]: expected a non-empty string, got 5"),
        (
            {"triggerSources": ["a", "b", "a"]},
            '.triggerSources[2]: "a" is named twice (also triggerSources[0])',
        ),
        ({"triggerSources": ["a", "zz"]}, '.triggerSources[1]: no table "zz"'),
        ({"rowsPerCall": 0}, ".rowsPerCall: expected an integer ≥ 1, got 0"),
        ({"rowsPerCall": "1"}, '.rowsPerCall: expected an integer ≥ 1, got "1"'),
        ({"rowsPercall": 1}, ".rowsPercall: unknown field: did you mean rowsPerCall?"),
    ],
)
async def test_a_bad_configuration_names_the_field(fields, message) -> None:
    failed = await refused(config(**fields))
    assert failed.code is TaskFailureCode.BUILDER_FAILED
    assert failed.message.startswith("functionCallConfig" + message)


async def test_an_unknown_function_fails_before_anything_is_read() -> None:
    failed = await refused(config(functionId="m.g", triggerSources=["zz"]))
    assert failed.code is TaskFailureCode.FUNCTION_NOT_FOUND


async def test_a_worker_without_a_store_says_what_to_do() -> None:
    failed = await refused(config(), BlockTableBuilder(None))
    assert failed.message.startswith("this worker has no block store; start it with --blocks DIR")


async def test_more_rows_than_one_task_may_hold_are_refused() -> None:
    failed = await refused(
        config(block={"from": 1, "to": 9}), BlockTableBuilder(Store(), max_table_bytes=100)
    )
    assert "the rows of blocks 1 to 9 are more than 100 bytes" in failed.message


async def test_only_so_many_tasks_scan_at_once() -> None:
    scan = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery, scan:
        nursery.start_soon(lambda: build(BlockTableBuilder(Store()), config(), scan=scan))
        await trio.testing.wait_all_tasks_blocked()
        assert scan.statistics().tasks_waiting == 1


async def test_a_cancelled_scan_stops_reading_and_is_joined() -> None:
    reading, over = threading.Event(), threading.Event()

    class Endless:
        def read_blocks(self, table, first, last, interrupted=lambda: False):
            while not interrupted():
                reading.set()
                yield first, [b"{}"]
            over.set()

    builder = BlockTableBuilder(Endless(), max_table_bytes=2**60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: build(builder, config()))
        await trio.to_thread.run_sync(reading.wait)
        nursery.cancel_scope.cancel()
    assert over.is_set()


async def test_two_real_blocks(ethereum_blocks) -> None:
    fields = config(block={"from": 17173049, "to": 17173050}, triggerSources=["logs", "transactions"])
    args = calls(await build(BlockTableBuilder(FolderBlockStore(ethereum_blocks)), fields))
    assert len(args) == 681 + 298
    first = (ethereum_blocks / "logs.jsonl").read_bytes().split(b"\n", 1)[0]
    assert args[0] == b"[" + first + b"]"
