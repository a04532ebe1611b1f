"""Executors that die, do not start, talk nonsense, or are full."""

import struct

import msgspec
import pytest
import trio

from blockx_executor.wire.messages import Heartbeat, HeartbeatPayload
from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.model.tasks import TaskState
from blockx_worker.plugins.return_value import ReturnValuePlugin
from tests.shell.harness import call_task, running_worker


def worker(**settings):
    return running_worker([CallListBuilder()], [ReturnValuePlugin()], **settings)


async def test_calls_of_a_killed_executor_run_elsewhere(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "nap", [[1, n] for n in range(20)]))
        await trio.sleep(0.5)
        harness.executors.started[0].process.exit(-9)
        result, outputs = await harness.ended("t")
    assert result.state is TaskState.SUCCEEDED
    assert outputs == list(range(20))


async def test_a_killed_executor_is_replaced(autojump_clock):
    async with worker() as harness:
        harness.executors.started[0].process.exit(-9)
        await trio.sleep(1)
        assert len(harness.executors.living()) == 2
        assert len(harness.door.dispatcher.executors()) == 2


async def test_too_many_restarts_back_off(autojump_clock):
    async with worker(executor_max_restarts=2, executor_backoff_ms=30_000) as harness:
        for _ in range(4):
            for executor in harness.executors.living():
                if executor.executor_id == "exec-0":
                    executor.process.exit(1)
            await trio.sleep(1)
        states = {status.executor_id: status.state for status in harness.api.worker_status().executors}
        assert states["exec-0"] == "BACKOFF"
        result, _ = await harness.run(call_task("t", "double", [[1]]))
        assert result.state is TaskState.SUCCEEDED
        await trio.sleep(31)
        assert len(harness.executors.living()) == 2


async def test_a_spawn_that_fails_is_tried_again(autojump_clock):
    async with worker() as harness:
        harness.executors.refuse.append(OSError("no such interpreter"))
        harness.executors.started[0].process.exit(1)
        await trio.sleep(1)
        assert len(harness.executors.living()) == 2


@pytest.mark.parametrize(
    "bytes_sent",
    [
        struct.pack(">I", 17 * 2**20),
        struct.pack(">I", 3) + b"{]}",
        struct.pack(">I", 22) + b'{"messageType":"What"}',
    ],
    ids=["too long", "not JSON", "unknown type"],
)
async def test_a_frame_that_does_not_parse_costs_one_executor_only(autojump_clock, bytes_sent):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "nap", [[1, n] for n in range(6)]))
        await trio.sleep(0.5)
        first = harness.executors.started[0]
        async with first.sending:
            await first.place.executor_side.send_all(bytes_sent)
        result, outputs = await harness.ended("t")
        assert first.process.exit_code is not None
    assert outputs == list(range(6))
    assert result.state is TaskState.SUCCEEDED


async def test_another_version_is_turned_away(autojump_clock):
    async with worker() as harness:
        original = harness.executors.started[0]
        payload = HeartbeatPayload(
            executor_id="exec-0",
            heartbeat_seq=1,
            pid=1,
            version="0.0.1",
            runnable_count=0,
            inflight_count=0,
            available_contexts=1,
            memory_bytes=1,
        )
        body = msgspec.json.encode(Heartbeat(payload))
        place = harness.executors.make("exec-9")
        original.place = place
        connection = harness.worker.supervisor._aboard["exec-0"]
        attach = harness.worker.supervisor._attacher(connection)
        assert "needs" in attach(payload)
        assert b"0.0.1" in body


async def test_a_silent_executor_is_killed_and_its_calls_run_elsewhere(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "nap", [[15, n] for n in range(2)]))
        await trio.sleep(1)
        first = harness.executors.started[0]

        async def nothing(message):
            await trio.sleep_forever()

        first.send = nothing
        result, outputs = await harness.ended("t")
        assert first.process.exit_code == -9
    assert result.state is TaskState.SUCCEEDED
    assert outputs == [0, 1]


async def test_a_full_outbox_puts_calls_off(autojump_clock):
    async with worker(dispatcher={"outbox_frames": 2}, executor_count=1) as harness:
        result, outputs = await harness.run(call_task("t", "double", [[n] for n in range(50)]))
    assert result.state is TaskState.SUCCEEDED
    assert outputs == [n * 2 for n in range(50)]
    assert result.statistic.attempts >= 50


async def test_a_small_inbox_slows_but_loses_nothing(autojump_clock):
    async with worker(dispatcher={"inbox_frames": 1, "actor_slice_calls": 1}) as harness:
        result, outputs = await harness.run(call_task("t", "double", [[n] for n in range(200)]))
    assert result.state is TaskState.SUCCEEDED
    assert outputs == [n * 2 for n in range(200)]


async def test_arguments_that_fit_no_frame_fail_their_call(autojump_clock):
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", "echo", [["x" * (17 * 2**20)]]))
    assert result.failure.error_kind == "ARGS_TOO_LARGE"
    assert "16777216" in result.failure.message


async def test_stopping_ends_every_process(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
    assert harness.executors.living() == []
