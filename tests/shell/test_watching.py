"""Watching: cursors, owners and observers, the grace."""

import trio

from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskPhase, TaskState
from blockx_worker.model.watch import TaskNotFound, TaskOutputs, TaskResulted, TaskSnapshotted
from blockx_worker.plugins.return_value import ReturnValuePlugin
from tests.shell.harness import call_task, running_worker


def worker(**settings):
    return running_worker([CallListBuilder()], [ReturnValuePlugin()], **settings)


async def test_a_snapshot_comes_at_once_for_each_id(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        async with harness.api.watch(["t", "nobody", "t"], observe=True) as cursor:
            first, second = await cursor.next()
    assert isinstance(first, TaskSnapshotted)
    assert first.snapshot.task_id == "t"
    assert second == TaskNotFound(task_id="nobody")


async def test_phases_progress_outputs_then_the_result_then_the_end(autojump_clock):
    async with worker(stream_build={"batch_max_rows": 1}) as harness:
        await harness.api.submit_task(call_task("t", "nap", [[1, "a"], [2, "b"], [3, "c"]]))
        events = []
        async with harness.api.watch(["t"], observe=False) as cursor:
            while (news := await cursor.next()) is not None:
                events += news
    phases = [e.snapshot.phase for e in events if isinstance(e, TaskSnapshotted) and e.snapshot.phase]
    assert phases == sorted(phases, key=lambda phase: list(TaskPhase).index(phase))
    assert {TaskPhase.CALLS, TaskPhase.DONE} <= set(phases)
    progress = [e.progress.succeeded for e in events if isinstance(e, TaskSnapshotted) and e.progress]
    assert progress == sorted(progress)
    assert {1, 2} <= set(progress)
    assert b"".join(e.chunk.json_lines for e in events if isinstance(e, TaskOutputs)) == b'"a"\n"b"\n"c"\n'
    assert isinstance(events[-1], TaskResulted)


async def test_an_ended_task_is_watched_from_the_start(autojump_clock):
    async with worker() as harness:
        await harness.run(call_task("t", "double", [[4]]))
        async with harness.api.watch(["t"], observe=False) as cursor:
            kinds = []
            while (news := await cursor.next()) is not None:
                kinds += [type(event) for event in news]
    assert kinds == [TaskSnapshotted, TaskOutputs, TaskResulted]


async def test_the_last_owner_gone_ends_the_task_after_the_grace(autojump_clock):
    async with worker(watch_disconnect_grace_ms=3000) as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        async with harness.api.watch(["t"], observe=False):
            await trio.sleep(10)
        await trio.sleep(2.9)
        assert harness.api.get_task_result("t").snapshot.state is TaskState.RUNNING
        await trio.sleep(0.2)
        result = harness.api.get_task_result("t").snapshot.result
    assert result.state is TaskState.CANCELLED
    assert result.failure.code is TaskFailureCode.WATCH_DISCONNECTED


async def test_a_new_owner_within_the_grace_keeps_the_task(autojump_clock):
    async with worker(watch_disconnect_grace_ms=3000) as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        async with harness.api.watch(["t"], observe=False):
            await trio.sleep(1)
        await trio.sleep(2)
        async with harness.api.watch(["t"], observe=False):
            await trio.sleep(10)
            assert harness.api.get_task_result("t").snapshot.state is TaskState.RUNNING


async def test_an_observer_never_owns(autojump_clock):
    """Neither does its going away end a task, nor does its staying keep one."""
    async with worker(watch_disconnect_grace_ms=3000) as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        async with harness.api.watch(["t"], observe=True):
            await trio.sleep(1)
        await trio.sleep(10)
        assert harness.api.get_task_result("t").snapshot.state is TaskState.RUNNING
        async with harness.api.watch(["t"], observe=True):
            async with harness.api.watch(["t"], observe=False):
                pass
            await trio.sleep(4)
            assert harness.api.get_task_result("t").snapshot.state is TaskState.CANCELLED


async def test_grace_zero_means_never(autojump_clock):
    async with worker(watch_disconnect_grace_ms=0) as harness:
        await harness.api.submit_task(call_task("t", "hang", [[]]))
        async with harness.api.watch(["t"], observe=False):
            pass
        await trio.sleep(100)
        assert harness.api.get_task_result("t").snapshot.state is not TaskState.CANCELLED


async def test_a_forgotten_task_is_reported_to_its_watcher(autojump_clock):
    async with worker(result_retention_ms=1000) as harness:
        await harness.run(call_task("t", "double", [[1]]))
        async with harness.api.watch(["t"], observe=True) as cursor:
            await trio.sleep(5)
            assert await cursor.next() == [TaskNotFound(task_id="t")]
            assert await cursor.next() is None


async def test_a_reader_that_does_not_read_holds_up_nobody(autojump_clock):
    async with worker() as harness:
        await harness.api.submit_task(call_task("t", "nap", [[1, "x" * 1000]]))
        async with harness.api.watch(["t"], observe=True):
            result, outputs = await harness.ended("t")
    assert result.state is TaskState.SUCCEEDED
    assert len(outputs) == 1
