"""A deadline, cancel or drain against a writer's commit: rows and reported state always agree."""

import pytest
import trio

from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.core.events import DrainExpired, DrainStarted
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskState
from tests.shell.harness import call_task, running_worker


class SlowWriter:
    """Writes in rounds of (prepare, commit); each takes as many seconds as it is told. `rows` are what it committed."""

    type = "SlowWriter"
    keeps_outputs = False

    def __init__(self, *rounds):
        self.rounds = rounds
        self.rows = []
        self.rolled_back = False

    def check(self, config, blocks):
        pass

    async def write(self, context, config, outputs):
        for number, (prepare_s, commit_s) in enumerate(self.rounds):
            final = number == len(self.rounds) - 1
            with trio.CancelScope(shield=True):  # like a thread: it notices the end at its gate
                await trio.sleep(prepare_s)
                if not context.gate.start(final=final):
                    self.rolled_back = True
                    break
                await trio.sleep(commit_s)
                self.rows.append(number)
                if not final:
                    context.gate.ended()
        await trio.lowlevel.checkpoint()
        return b"{}"


def worker(writer, **settings):
    return running_worker([CallListBuilder()], [writer], **settings)


def task(**fields):
    return call_task("t", "double", [[1]], handler="SlowWriter", **fields)


@pytest.mark.parametrize("timeout_ms", [900, 999])
async def test_before_the_commit_the_deadline_wins(autojump_clock, timeout_ms):
    writer = SlowWriter((1, 1))
    async with worker(writer) as harness:
        result, _ = await harness.run(task(timeout_ms=timeout_ms))
        await trio.sleep(5)
    assert result.state is TaskState.TIMED_OUT
    assert writer.rows == []
    assert writer.rolled_back


@pytest.mark.parametrize("timeout_ms", [1100, 1999])
async def test_during_the_final_commit_the_outcome_wins(autojump_clock, timeout_ms):
    writer = SlowWriter((1, 1))
    async with worker(writer) as harness:
        result, _ = await harness.run(task(timeout_ms=timeout_ms))
    assert result.state is TaskState.SUCCEEDED
    assert writer.rows == [0]


async def test_between_two_commits_the_deadline_wins(autojump_clock):
    writer = SlowWriter((1, 1), (1, 1))
    async with worker(writer) as harness:
        result, _ = await harness.run(task(timeout_ms=2500))
        await trio.sleep(5)
    assert result.state is TaskState.TIMED_OUT
    assert writer.rows == [0]


async def test_during_a_commit_that_is_not_the_last_the_end_waits_for_it(autojump_clock):
    writer = SlowWriter((1, 1), (1, 1))
    async with worker(writer) as harness:
        await harness.api.submit_task(task(timeout_ms=1500))
        await trio.sleep(1.8)
        assert harness.api.get_task_result("t").snapshot.state is TaskState.RUNNING
        result, _ = await harness.ended("t")
        await trio.sleep(5)
    assert result.state is TaskState.TIMED_OUT
    assert writer.rows == [0]
    assert "waited for" in result.failure.message


async def test_cancel_and_drain_wait_for_a_commit_too(autojump_clock):
    writer = SlowWriter((1, 3))
    async with worker(writer) as harness:
        await harness.api.submit_task(task())
        await trio.sleep(2)
        assert harness.api.cancel_task("t", "").state is TaskState.RUNNING
        harness.worker.orchestrator.decide(DrainStarted())
        harness.worker.orchestrator.decide(DrainExpired())
        assert not harness.worker.orchestrator.drained.is_set()
        result, _ = await harness.ended("t")
    assert result.state is TaskState.SUCCEEDED
    assert writer.rows == [0]


async def test_a_commit_that_never_returns_is_bounded(autojump_clock):
    writer = SlowWriter((0, 3600))
    async with worker(writer, writer_commit_timeout_ms=5000) as harness:
        await harness.api.submit_task(task(timeout_ms=1000))
        await trio.sleep(5.1)
        result = harness.api.get_task_result("t").snapshot.result
    assert result.failure.code is TaskFailureCode.PLUGIN_FAILED
    assert "may or may not" in result.failure.message


async def test_a_writer_with_a_defect_fails_the_task_only(autojump_clock):
    class Broken(SlowWriter):
        async def write(self, context, config, outputs):
            raise RuntimeError("boom")

    async with worker(Broken()) as harness:
        result, _ = await harness.run(task())
        assert result.failure.code is TaskFailureCode.PLUGIN_FAILED
        assert "boom" in result.failure.message
