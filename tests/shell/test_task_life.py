"""From submit to result on fakes: outputs, failures, deadlines, cancels, drain, retention."""

import pytest
import trio

from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.core.events import DrainExpired, DrainStarted
from blockx_worker.model.errors import ErrorCode, TaskFailureCode, WorkerError
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskPhase, TaskState
from blockx_worker.plugins.return_value import ReturnValuePlugin
from tests.shell.harness import call_task, running_worker


def worker(**settings):
    return running_worker([CallListBuilder()], [ReturnValuePlugin()], **settings)


async def test_outputs_come_in_call_order(autojump_clock):
    async with worker() as harness:
        result, outputs = await harness.run(call_task("t", "nap", [[0.3, "a"], [0.1, "b"], [0.2, "c"]]))
    assert result.state is TaskState.SUCCEEDED
    assert outputs == ["a", "b", "c"]
    assert result.statistic.calls_succeeded == 3
    assert result.statistic.call_ms >= 300


async def test_a_small_task_is_one_round_trip(autojump_clock):
    async with worker() as harness:
        reply = await harness.api.submit_task(call_task("t", "double", [[1], [2]]), wait_ms=5000)
        assert reply.snapshot.state is TaskState.SUCCEEDED
        assert reply.outputs == b"2\n4\n"
        again = await harness.api.submit_task(call_task("t", "double", [[1], [2]]))
        assert again.outputs == b"2\n4\n"


async def test_outputs_too_large_for_the_answer_are_left_to_be_read(autojump_clock):
    async with worker(rpc={"output_segment_bytes": 1024}) as harness:
        reply = await harness.api.submit_task(call_task("t", "echo", [["x" * 2000]]), wait_ms=5000)
        assert reply.outputs is None
        assert reply.snapshot.result.output_bytes == 2003
        page = harness.api.get_task_result("t", 0)
        assert len(page.chunk.json_lines) == 1024
        assert page.chunk.count == 0
        page = harness.api.get_task_result("t", page.next_offset)
        assert (page.chunk.count, page.next_offset) == (1, 2003)


async def test_an_empty_call_list_succeeds(autojump_clock):
    async with worker() as harness:
        result, outputs = await harness.run(call_task("t", "double", []))
    assert (result.state, outputs) == (TaskState.SUCCEEDED, [])


async def test_a_failing_call_fails_the_task_and_says_which(autojump_clock):
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", "fail", [[7]]))
    assert result.state is TaskState.FAILED
    assert result.failure.code is TaskFailureCode.CALLS_FAILED
    assert result.failure.call_id == "t/0"
    assert result.failure.function_id == "functions.fail"
    assert result.failure.args_preview == "[7]"
    assert "no luck" in result.failure.message


async def test_collect_all_keeps_positions(autojump_clock):
    request = call_task("t", "odd_fails", [[0], [1], [2]], call_failure_policy=CallFailurePolicy.COLLECT_ALL)
    async with worker() as harness:
        result, outputs = await harness.run(request)
    assert result.state is TaskState.FAILED
    assert outputs == [0, None, 2]
    assert [call.index for call in result.failed_calls] == [1]


async def test_a_deadline_cancels_what_runs(autojump_clock):
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", "hang", [[]], timeout_ms=2000))
        assert result.state is TaskState.TIMED_OUT
        assert result.failure.code is TaskFailureCode.TASK_TIMED_OUT
        await trio.testing.wait_all_tasks_blocked()
        assert [e.cancelled for e in harness.executors.started if e.cancelled] == [["t/0"]]
        assert all(view.inflight == 0 for view in harness.door.dispatcher.executors())
        assert harness.worker.orchestrator.runtimes == {}


async def test_cancel_is_answered_with_the_new_state_and_is_idempotent(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        await trio.sleep(0.1)
        snapshot = harness.api.cancel_task("t", "not needed")
        assert snapshot.state is TaskState.CANCELLED
        assert "not needed" in snapshot.result.failure.message
        assert harness.api.cancel_task("t", "again") == snapshot
        with pytest.raises(WorkerError) as refused:
            harness.api.cancel_task("nobody", "")
        assert refused.value.code is ErrorCode.NOT_FOUND


async def test_a_task_that_is_cancelled_as_its_calls_begin_leaves_nothing_behind(autojump_clock):
    """Whatever else happens in the very moment, no call runs for a task that has ended."""
    async with worker() as harness:
        for number in range(50):
            await harness.api.submit_task(call_task(f"t{number}", "hang", [[]]))
            for _ in range(number % 10):
                await trio.lowlevel.checkpoint()
            harness.api.cancel_task(f"t{number}", "")
        await trio.sleep(5)
        assert all(harness.door.dispatcher.statistic(f"t{number}") is None for number in range(50))
        assert all(view.inflight == 0 for view in harness.door.dispatcher.executors())
        assert harness.worker.orchestrator.runtimes == {}
        assert harness.api.worker_status().dropped == {}


async def test_a_cancelled_task_tells_what_it_cost(autojump_clock):
    """The statistic counts the calls that were done before the end."""
    async with worker(dispatcher={"task_max_inflight_calls": 2}) as harness:
        await harness.api.submit_task(call_task("t", "nap", [[0, 1], [0, 2], [999, 3], [999, 4]]))
        await trio.sleep(1)
        result = harness.api.cancel_task("t", "").result
    assert result.statistic.calls_succeeded == 2
    assert result.statistic.calls_cancelled == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"handler": "NoSuchHandler"}, TaskFailureCode.PLUGIN_NOT_FOUND),
        ({"config": b'{"x": 1}'}, TaskFailureCode.PLUGIN_FAILED),
        ({"function": "nothing"}, TaskFailureCode.FUNCTION_NOT_FOUND),
    ],
)
async def test_bad_configurations_fail_before_any_call_runs(autojump_clock, change, code):
    fields = {"function": "double", **change}
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", args_list=[[1]], **fields))
    assert result.state is TaskState.FAILED
    assert result.failure.code is code
    assert result.statistic.attempts == 0


async def test_drain_lets_tasks_finish_and_refuses_new_ones(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("slow", "nap", [[3, "done"]]))
        assert harness.api.serving
        harness.worker.orchestrator.decide(DrainStarted())
        assert not harness.api.serving
        with pytest.raises(WorkerError) as refused:
            await harness.api.submit_task(call_task("new", "double", [[1]]))
        assert refused.value.code is ErrorCode.UNAVAILABLE
        again = await harness.api.submit_task(call_task("slow", "nap", [[3, "done"]]))
        assert again.snapshot.phase is not TaskPhase.DONE
        await harness.worker.orchestrator.drained.wait()
        assert harness.api.get_task_result("slow").snapshot.state is TaskState.SUCCEEDED


async def test_what_outlives_the_drain_is_cancelled(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        harness.worker.orchestrator.decide(DrainStarted())
        await trio.sleep(1)
        harness.worker.orchestrator.decide(DrainExpired())
        result = harness.api.get_task_result("t").snapshot.result
        assert result.failure.code is TaskFailureCode.WORKER_SHUTDOWN
        assert harness.worker.orchestrator.drained.is_set()


async def test_results_are_forgotten_by_time_and_count(autojump_clock):
    async with worker(result_retention_ms=5000, result_retention_count=2) as harness:
        for name in ("a", "b", "c"):
            await harness.run(call_task(name, "double", [[1]]))
        assert set(harness.worker.orchestrator.outputs) == {"b", "c"}
        await trio.sleep(6)
        assert harness.worker.orchestrator.outputs == {}
        with pytest.raises(WorkerError) as refused:
            harness.api.get_task_result("c")
        assert refused.value.code is ErrorCode.NOT_FOUND


async def test_results_are_forgotten_by_bytes(autojump_clock):
    async with worker(result_retention_bytes=100_000) as harness:
        for name in ("a", "b", "c"):
            await harness.run(call_task(name, "echo", [["x" * 40_000]]))
        assert set(harness.worker.orchestrator.outputs) == {"b", "c"}


async def test_max_collected_output_bytes(autojump_clock):
    async with worker(dispatcher={"max_collected_output_bytes": 1000}) as harness:
        result, _ = await harness.run(call_task("t", "echo", [["x" * 600], ["y" * 600]]))
    assert result.failure.code is TaskFailureCode.OUTPUT_BYTES_EXCEEDED


async def test_retries_until_attempts_are_used_up(autojump_clock):
    async with worker() as harness:
        request = call_task(
            "t", "hang", [[]], call_retry_policy=CallRetryPolicy(max_attempts=2, base_backoff_ms=10)
        )
        await harness.api.submit_task(request)
        for _ in range(2):
            await trio.sleep(0.2)
            busy = next(e for e in harness.executors.living() if e.calls)
            busy.die_running(busy.calls["t/0"], 11)
        result, _ = await harness.ended("t")
    assert result.failure.error_kind == "EXECUTOR_LOST"
    assert result.statistic.attempts == 2


async def test_output_offset_out_of_range_is_refused(autojump_clock):
    async with worker() as harness:
        await harness.run(call_task("t", "double", [[1]]))
        with pytest.raises(WorkerError, match="output_offset: expected 0 to 2"):
            harness.api.get_task_result("t", 3)


async def test_admission_runs_stages_one_after_another(autojump_clock):
    """With one place in the calls stage two tasks run one after the other; the second one's wait is queue time."""
    async with worker(admission={"executor_task_slots": 1}) as harness:
        await harness.api.submit_task(call_task("a", "nap", [[1, "a"]]))
        await trio.testing.wait_all_tasks_blocked()
        await harness.api.submit_task(call_task("b", "nap", [[1, "b"]]))
        await trio.sleep(0.5)
        assert harness.api.worker_status().admission["executor"] == (1, 1, 1)
        result, _ = await harness.ended("b")
    assert result.statistic.queue_ms == pytest.approx(1000, abs=20)
