"""Finding workers through a real etcd, choosing among them, and getting a task to its result whatever happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import trio

from blockx_worker.client import CallListCallConfig, ErrorCode, Task, WorkerError, WorkerUnreachable
from blockx_worker.client.core import ClientOptions
from blockx_worker.client.directory import WorkerDirectory
from blockx_worker.client.errors import NoWorker
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure, TaskState
from blockx_worker.registry.value import WorkerValue
from tests.registry.cluster import Cluster, cluster
from tests.support.etcd import EtcdServer, etcd, free_port

__all__ = ["etcd"]

CALLS = CallListCallConfig("demo.double", [[1]])
LARGE = CallListCallConfig("demo.double", [["x" * 1000]])
SHUT_DOWN = {"failure": TaskFailure(code=TaskFailureCode.WORKER_SHUTDOWN, message="the worker was stopped")}


@pytest.fixture(scope="module")
def shared() -> Iterator[EtcdServer]:
    server = EtcdServer()
    yield server
    server.stop()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.originalname}/"


@pytest.fixture
async def pair(shared: EtcdServer, prefix: str) -> AsyncIterator[Cluster]:
    """Workers a, with more room, and b."""
    async with cluster(shared, prefix, a=8, b=4) as made:
        yield made


def task(task_id: str = "t", config: CallListCallConfig = CALLS) -> Task:
    return Task(config, task_id=task_id)


def addresses(workers: Sequence[WorkerValue]) -> set[str]:
    return {worker.address for worker in workers}


# --- knowing ----------------------------------------------------------------------------------------------------


async def test_workers_are_listed_and_followed_as_they_come_change_and_go(shared, prefix):
    async with cluster(shared, prefix, a=8) as made, made.directory() as directory:
        assert addresses(directory.workers) == {made["a"].address}
        b = await made.start("b", free=3)
        await directory.wait_for(lambda workers: len(workers) == 2)
        assert [w.free_slots for w in directory.workers] == [8, 3]
        await made.announce("b", draining=True)
        await directory.wait_for(lambda workers: any(w.draining for w in workers))
        await made.remove("a")
        await directory.wait_for(lambda workers: addresses(workers) == {b.address})


async def test_what_is_no_worker_is_passed_over(shared, prefix):
    async with cluster(shared, prefix, a=8) as made:
        await made.put("note", "remember the milk")
        await made.put("other", '{"address": 5}')
        async with made.directory() as directory:
            assert addresses(directory.workers) == {made["a"].address}
            await made.put("a", "no json any more")
            await directory.wait_for(lambda workers: not workers)


async def test_an_emptied_etcd_whose_revisions_begin_anew_is_listed_again(etcd, prefix):
    """A watch from the old revision would be silent until the new ones have come as far."""
    async with cluster(etcd, prefix, a=8, b=8) as made, made.directory() as directory:
        for _ in range(5):
            await made.announce("a")
        await trio.to_thread.run_sync(etcd.kill)
        etcd.forget()
        await trio.to_thread.run_sync(etcd.start)
        await directory.wait_for(lambda workers: not workers)
        await made.announce("b")
        await directory.wait_for(lambda workers: addresses(workers) == {made["b"].address})


async def test_while_etcd_is_away_the_last_known_workers_are_used(etcd, prefix):
    async with cluster(etcd, prefix, a=8) as made, made.directory() as directory:
        await trio.to_thread.run_sync(etcd.kill)
        result, _ = await directory.run(task())
        assert result.state is TaskState.SUCCEEDED
        await trio.to_thread.run_sync(etcd.start)


async def test_a_dead_endpoint_is_passed_over_and_without_any_the_error_names_them(shared, prefix):
    dead = f"127.0.0.1:{free_port()}"
    async with (
        cluster(shared, prefix, a=8),
        WorkerDirectory.connect([dead, shared.address], prefix) as directory,
    ):
        assert len(directory.workers) == 1
    with pytest.raises(NoWorker, match=f"etcd {dead} under {prefix}: .*refused"):
        async with WorkerDirectory.connect(dead, prefix):
            pass


async def test_a_paused_etcd_is_no_reason_to_hang(etcd, prefix):
    etcd.pause()
    with pytest.raises(NoWorker):
        async with WorkerDirectory.connect(etcd.address, prefix, etcd_timeout_s=0.3):
            pass
    etcd.resume()


# --- choosing ---------------------------------------------------------------------------------------------------


async def test_the_worker_with_most_free_slots_gets_the_task(pair):
    async with pair.directory() as directory:
        result, outputs = await directory.run(task())
    assert (result.state, list(outputs)) == (TaskState.SUCCEEDED, [])
    assert (pair["a"].asked, pair["b"].asked) == (["task t"], [])


async def test_many_tasks_at_once_are_spread_although_the_registry_is_behind(shared, prefix):
    async with cluster(shared, prefix, a=8, b=8) as made:
        async with made.directory() as directory, trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(directory.run, task(f"t{number}"))
        assert sorted(len(made[name].tasks) for name in "ab") == [4, 4]


async def test_a_draining_worker_is_not_asked(pair):
    await pair.announce("a", draining=True)
    async with pair.directory() as directory:
        await directory.run(task())
    assert (pair["a"].asked, pair["b"].asked) == ([], ["task t"])


@pytest.mark.parametrize("state", ["is_full", "is_draining"])
async def test_a_worker_that_refuses_for_now_is_passed_over_with_the_same_task_id(pair, state):
    getattr(pair["a"], state)()
    async with pair.directory() as directory:
        await directory.run(task())
    assert (pair["a"].asked, pair["b"].asked) == (["task t"], ["task t"])


async def test_a_worker_that_cannot_be_reached_is_passed_over_and_asked_last_for_a_while(pair):
    pair["a"].stop.cancel()
    async with pair.directory() as directory:
        for number in range(3):
            await directory.run(task(f"t{number}"))
    assert set(pair["b"].tasks) == {"t0", "t1", "t2"}


async def test_a_wrong_request_is_not_offered_to_others(pair):
    pair["a"].refuse_with = WorkerError(ErrorCode.INVALID_ARGUMENT, "timeout_ms is -1; accepted: …")
    async with pair.directory() as directory:
        with pytest.raises(WorkerError, match="timeout_ms"):
            await directory.run(task())
    assert pair["b"].asked == []


async def test_when_all_are_full_the_refusal_comes_after_a_while(pair):
    pair["a"].is_full()
    pair["b"].is_full()
    async with pair.directory(place_timeout_s=0.2) as directory:
        with pytest.raises(WorkerError) as error:
            await directory.run(task())
    assert error.value.code is ErrorCode.NO_SLOT
    assert len(pair["a"].asked) > 1, "it was tried again"


async def test_a_place_that_becomes_free_meanwhile_is_taken(pair):
    pair["a"].is_full()
    pair["b"].is_full()
    async with pair.directory() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(directory.run, task())
        await pair["b"].was_asked.wait()
        pair["b"].refuse_with = None
    assert "t" in pair["b"].tasks


@pytest.mark.parametrize(
    ("announced", "why"),
    [({"draining": True}, "all 1 workers are draining"), (None, "no worker is registered")],
)
async def test_without_any_worker_to_ask_the_error_says_why(shared, prefix, announced, why):
    async with cluster(shared, prefix, a=8) as made:
        await (made.announce("a", **announced) if announced else made.remove("a"))
        async with made.directory(client=ClientOptions(reconnect_s=0.1)) as directory:
            with pytest.raises(NoWorker, match=why):
                await directory.run(task())


# --- large uploads ----------------------------------------------------------------------------------------------


async def test_before_a_large_upload_a_slot_is_leased_so_that_no_bytes_go_to_a_full_worker(pair):
    pair["a"].is_full()
    async with pair.directory(slot_first_bytes=1000) as directory:
        await directory.run(task("large", LARGE))
        await directory.run(task("small"))
    assert pair["a"].asked == ["slot large", "task small"]
    assert pair["b"].asked == ["slot large", "task large", "task small"]


async def test_a_lease_that_ran_out_during_the_upload_is_asked_for_again(pair):
    uncertain = WorkerError(ErrorCode.SLOT_UNCERTAIN, "the lease of slot-1 is past its end; submit again")
    pair["a"].refuse_uploads_with = [uncertain]
    async with pair.directory(slot_first_bytes=1000) as directory:
        await directory.run(task("t", LARGE))
    assert pair["a"].asked == ["slot t", "task t", "slot t", "task t"]
    assert pair["b"].asked == []


# --- when workers go --------------------------------------------------------------------------------------------


async def test_a_broken_watch_is_made_again_to_the_same_worker_while_it_is_listed(pair):
    a = pair["a"]
    a.ends = "when watched"
    breaks = [WorkerError(ErrorCode.UNAVAILABLE, "the connection broke")]

    def breaks_once() -> None:
        if breaks:
            raise breaks.pop()

    a.when_watched = breaks_once
    async with pair.directory() as directory:
        result, _ = await directory.run(task())
    assert result.state is TaskState.SUCCEEDED
    assert (a.asked, pair["b"].asked) == (["task t", "task t"], [])


async def test_a_lost_worker_keeps_its_task_until_its_key_is_gone_then_another_gets_it(pair):
    """With the same id: should it be alive after all, nothing is written twice."""
    a, b = pair["a"], pair["b"]
    a.ends = "never"
    async with pair.directory() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(directory.run, task())
        await a.attached.wait()
        a.stop.cancel()
        await trio.sleep(0.5)
        assert b.asked == []
        await pair.remove("a")
    assert list(b.tasks) == ["t"]
    assert b.tasks["t"].request.fingerprint == a.tasks["t"].request.fingerprint


async def test_a_worker_that_was_started_again_at_its_address_is_another_one(pair):
    """It cannot be reached, and the key under its address is not the one that the task was given to."""
    a = pair["a"]
    a.ends = "never"
    async with pair.directory() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(directory.run, task())
        await a.attached.wait()
        a.stop.cancel()
        await pair.announce("a", instance="a, started again")
    assert list(pair["b"].tasks) == ["t"]


@pytest.mark.parametrize("ends", ["at once", "when watched"])
async def test_a_task_cut_off_by_the_end_of_its_worker_is_run_by_another(pair, ends):
    a = pair["a"]
    a.ends, a.state, a.result = ends, TaskState.CANCELLED, SHUT_DOWN
    async with pair.directory() as directory:
        result, _ = await directory.run(task())
    assert result.state is TaskState.SUCCEEDED
    assert list(pair["b"].tasks) == ["t"]


async def test_a_failed_or_cancelled_task_is_a_result(pair):
    pair["a"].state = TaskState.CANCELLED
    async with pair.directory() as directory:
        result, _ = await directory.run(task())
    assert result.state is TaskState.CANCELLED
    assert pair["b"].asked == []


async def test_a_drained_worker_no_longer_listed_is_left_even_if_all_others_are_full_for_a_while(pair):
    a, b = pair["a"], pair["b"]
    a.ends = "never"
    async with pair.directory() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(directory.run, task())
        await a.attached.wait()
        b.is_full()
        a.stop.cancel()
        await pair.remove("a")
        await b.was_asked.wait()
        b.refuse_with = None
    assert list(b.tasks) == ["t"]


async def test_a_client_of_one_task_follows_it(pair):
    pair["a"].ends = "never"
    async with pair.directory() as directory:
        client = directory.client()
        with pytest.raises(WorkerUnreachable, match="no worker has the task yet"):
            await client.result("t")
        await client.submit(task())
        assert client.address == pair["a"].address
        assert (await client.status()).profile == "block"
        assert (await client.cancel("t", "enough")).state is TaskState.CANCELLED
        async with client.watch(["t"]) as watch:
            events = [event async for event in watch]
    assert events
    assert pair["a"].cancel_reasons == ["enough"]


async def test_it_works_under_asyncio(pair):
    """In a loop of another thread, where trio-asyncio has nothing to say."""

    async def use() -> TaskState:
        async with pair.directory() as directory:
            await directory.wait_for(lambda workers: len(workers) == 2)
            result, _ = await directory.run(task())
            state: TaskState = result.state
            return state

    def work() -> TaskState:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(use())

    assert await trio.to_thread.run_sync(work) is TaskState.SUCCEEDED
