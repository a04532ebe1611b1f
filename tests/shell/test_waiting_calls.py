"""Calls that wait: back ends within their task, subcalls, errors as answers, ends while waiting."""

import json

import trio

from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.model.tasks import TaskState
from blockx_worker.plugins.return_value import ReturnValuePlugin
from blockx_worker.ports import IoAnswer, IoError
from tests.shell.fakes import FakeIo
from tests.shell.harness import call_task, running_worker


def worker(io=None, **settings):
    return running_worker([CallListBuilder()], [ReturnValuePlugin()], io=io, **settings)


async def answer(op, request):
    await trio.sleep(0.2)
    return IoAnswer(result=json.dumps([op, json.loads(request)["question"]]).encode(), used_ms=200)


async def test_a_call_gets_the_answer_of_its_back_end(autojump_clock):
    io = FakeIo({"oracle": answer})
    async with worker(io) as harness:
        result, outputs = await harness.run(call_task("t", "ask", [["why"], ["who"]]))
    assert outputs == [["ask", "why"], ["ask", "who"]]
    assert result.statistic.io_requests == 2
    assert io.opened == io.closed == ["t"]


async def test_many_calls_wait_at_once_on_one_executor(autojump_clock):
    async with worker(FakeIo({"oracle": answer}), executor_count=1) as harness:
        started = trio.current_time()
        _, outputs = await harness.run(call_task("t", "ask", [[str(n)] for n in range(100)]))
        assert trio.current_time() - started < 1
    assert outputs == [["ask", str(n)] for n in range(100)]


async def test_an_error_of_a_back_end_is_raised_in_the_call(autojump_clock):
    async def refuse(op, request):
        return IoAnswer(error=IoError(kind="RPC_ERROR", message="no such method"))

    async with worker(FakeIo({"oracle": refuse})) as harness:
        result, _ = await harness.run(call_task("t", "ask", [["why"]]))
    assert "RPC_ERROR" in result.failure.message


async def test_a_defect_in_a_back_end_fails_the_call_not_the_worker(autojump_clock):
    async def broken(op, request):
        raise RuntimeError("boom")

    async with worker(FakeIo({"oracle": broken})) as harness:
        result, _ = await harness.run(call_task("t", "ask", [["why"]]))
        assert "IO_BACKEND_FAILED" in result.failure.message
        again, _ = await harness.run(call_task("u", "double", [[1]]))
        assert again.state is TaskState.SUCCEEDED


async def test_a_task_that_ends_ends_its_requests(autojump_clock):
    left = trio.Event()

    async def hang(op, request):
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    io = FakeIo({"oracle": hang})
    async with worker(io) as harness:
        result, _ = await harness.run(call_task("t", "ask", [["why"]], timeout_ms=1000))
        assert result.state is TaskState.TIMED_OUT
        await left.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert io.closed == ["t"]


async def test_subcalls_run_and_their_values_come_back(autojump_clock):
    async with worker() as harness:
        result, outputs = await harness.run(call_task("t", "sum_to", [[3], [0]]))
    assert outputs == [6, 0]
    assert result.statistic.subcalls >= 3
    assert result.statistic.calls_total == 2


async def test_subcalls_go_only_so_deep(autojump_clock):
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", "sum_to", [[20]]))
    assert "SUBCALL_DEPTH" in result.failure.message


async def test_a_subcall_of_an_unknown_function_is_an_error_in_the_parent(autojump_clock):
    async with worker() as harness:
        result, _ = await harness.run(call_task("t", "calls_nothing", [[]]))
    assert "FUNCTION_NOT_FOUND" in result.failure.message
