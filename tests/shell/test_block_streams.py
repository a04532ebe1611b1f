"""Table tasks over ranges of blocks, through a whole worker on fakes."""

from __future__ import annotations

import json

import trio
import trio.testing

from blockx_worker.builders.block_table import BlockTableBuilder
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, TaskRequest, TaskState, TypedConfig
from blockx_worker.plugins.return_value import ReturnValuePlugin
from blockx_worker.ports import BlockStoreError
from tests.shell.fakes import FakeIo
from tests.shell.harness import running_worker


class Store:
    """Three rows a block, but block 5 of the table ``bad`` cannot be read."""

    def __init__(self) -> None:
        self.read = 0
        self.open = 0

    def read_blocks(self, table, first, last, interrupted=lambda: False):
        self.open += 1
        try:
            for block in range(first, last + 1):
                if table == "bad" and block == 5:
                    raise BlockStoreError("bad/5.jsonl, line 2: not JSON")
                self.read += 1
                yield block, [b'{"block":%d,"i":%d}' % (block, i) for i in range(3)]
        finally:
            self.open -= 1


def table_task(function: str, last: int, table: str = "t", **fields) -> TaskRequest:
    config = {
        "functionId": f"functions.{function}",
        "block": {"from": 0, "to": last},
        "triggerSources": [table],
    }
    return TaskRequest(
        task_id="t-1",
        function_call_config=TypedConfig("BlockTableCallConfig", json.dumps(config).encode()),
        result_handler=TypedConfig("ReturnValueResultHandler", b"{}"),
        **{"timeout_ms": 60_000, **fields},
    )


def worker(store: Store, *, io: FakeIo | None = None, **changes):
    stream = {"batch_max_rows": 8, **changes}
    return running_worker([BlockTableBuilder(store)], [ReturnValuePlugin()], io=io, stream_build=stream)


async def silence(*_):
    await trio.sleep_forever()


async def test_all_rows_of_a_range_come_once_and_in_order(autojump_clock) -> None:
    store = Store()
    async with worker(store) as harness:
        result, outputs = await harness.run(table_task("echo", 99))
        assert result.state is TaskState.SUCCEEDED
        assert (result.statistic.calls_total, result.statistic.calls_succeeded) == (300, 300)
        assert [(row["block"], row["i"]) for row in outputs] == [(b, i) for b in range(100) for i in range(3)]
    assert store.open == 0


async def test_a_stream_gives_the_same_as_a_list(autojump_clock) -> None:
    results = []
    for enabled in (True, False):
        async with worker(Store(), enabled=enabled) as harness:
            results.append(await harness.run(table_task("echo", 9)))
    (streamed, streamed_outputs), (listed, listed_outputs) = results
    assert (streamed.state, streamed_outputs) == (listed.state, listed_outputs)


async def test_no_more_is_read_than_the_task_may_have_outstanding(autojump_clock) -> None:
    """Two batches of eight rows, and the block behind each."""
    store = Store()
    async with worker(store, io=FakeIo({"oracle": silence})) as harness:
        await harness.api.submit_task(table_task("ask", 999))
        await trio.testing.wait_all_tasks_blocked()
        assert store.read == 6
        harness.api.cancel_task("t-1", "enough")
        result, _ = await harness.ended("t-1")
        assert result.state is TaskState.CANCELLED
        await trio.testing.wait_all_tasks_blocked()
        assert store.open == 0


async def test_a_row_that_cannot_be_read_in_the_middle_fails_the_task_and_is_named(autojump_clock) -> None:
    store = Store()
    async with worker(store) as harness:
        result, _ = await harness.run(table_task("echo", 99, "bad"))
        assert (result.state, result.failure.code) == (TaskState.FAILED, TaskFailureCode.BUILDER_FAILED)
        assert result.failure.message == "functionCallConfig.triggerSources[0]: bad/5.jsonl, line 2: not JSON"
        assert (
            result.statistic.calls_total
            == result.statistic.calls_succeeded + result.statistic.calls_cancelled
        )
    assert (store.open, store.read) == (0, 5)


async def test_a_failed_call_ends_the_reading(autojump_clock) -> None:
    store = Store()
    async with worker(store) as harness:
        result, _ = await harness.run(
            table_task("fail", 999, call_failure_policy=CallFailurePolicy.FAST_FAIL)
        )
        assert (result.state, result.failure.code) == (TaskState.FAILED, TaskFailureCode.CALLS_FAILED)
    assert store.open == 0
    assert store.read < 10
