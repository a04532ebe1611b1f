"""Long calls: how they end when the client goes, falls silent or does not read, and when the server stops."""

from __future__ import annotations

import threading

import grpc
import pytest
import trio

from blockx_worker.client import WorkerClient
from blockx_worker.model.watch import TaskSnapshotted
from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import Official, Proxy, message, serving, status_of, with_official

CONFIG = {"type": "CallListCallConfig"}
MIB = 2**20
KEEPALIVE = {"keepalive_time_s": 0.2, "keepalive_timeout_s": 1.0}  # slack for a busy machine


async def test_a_deadline_of_a_watching_client_detaches_it() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)

    def use(client: Official) -> None:
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            list(client.call("WatchTasks", task_ids=["t1"], _timeout=0.2))

    async with serving(api) as address:
        await with_official(address, use)
        await api.detached.wait()
    assert api.watchers == []


async def test_cancelling_a_waiting_submit_cancels_the_wait() -> None:
    api = FakeWorkerApi()

    def use(client: Official) -> None:
        request = message("SubmitTaskRequest", task_id="t1", function_call_config=CONFIG, wait_ms=60_000)
        call = client.method("SubmitTask").future(request)
        trio.from_thread.run(api.submitted.wait)
        call.cancel()
        trio.from_thread.run(api.wait_cancelled.wait)

    async with serving(api) as address:
        await with_official(address, use)


async def test_cancelling_a_watch_detaches_it_and_says_whether_it_owned() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)

    def use(client: Official) -> None:
        call = client.call("WatchTasks", task_ids=["t1"], observe=True)
        assert next(call).WhichOneof("event") == "snapshot"
        assert api.watchers == [(("t1",), True)]
        call.cancel()
        trio.from_thread.run(api.detached.wait)

    async with serving(api) as address:
        await with_official(address, use)


async def test_the_death_of_a_client_detaches_its_watch() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    async with serving(api) as address, trio.open_nursery() as nursery:
        proxy = Proxy(address)
        through = await nursery.start(proxy.run)
        nursery.start_soon(_watch_until_lost, through)
        await api.attached.wait()
        proxy.cut()
        await api.detached.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("outputs", [b"", b"1" * (20 * MIB) + b"\n"], ids=["quiet", "with unsent outputs"])
async def test_a_client_that_falls_silent_is_noticed(outputs: bytes) -> None:
    """Also when bytes for it are still unsent, which a gentle close would wait for without end."""
    api = FakeWorkerApi()
    api.add("t1", end=False, outputs=outputs)
    async with serving(api, **KEEPALIVE) as address, trio.open_nursery() as nursery:
        proxy = Proxy(address)
        through = await nursery.start(proxy.run)
        seen = trio.Event()
        nursery.start_soon(_watch_until_lost, through, seen)
        await seen.wait()
        proxy.freeze()
        await api.detached.wait()
        nursery.cancel_scope.cancel()


async def test_a_quiet_but_living_client_stays() -> None:
    api = FakeWorkerApi()
    task = api.add("t1", end=False)
    async with (
        serving(api, **KEEPALIVE) as address,
        WorkerClient.connect(address) as client,
        client.watch(["t1"]) as watch,
    ):
        assert isinstance(await anext(watch), TaskSnapshotted)
        await trio.sleep(1)  # many pings; only the real clock makes them
        assert not api.detached.is_set()
        api.end("t1")
        assert isinstance(await anext(watch), TaskSnapshotted)
    assert task.ended


async def test_a_watcher_that_does_not_read_costs_nothing_while_another_client_reads_all() -> None:
    """Its cursor stands still after the flow-control window, and 20 MB go out in pages beside it."""
    api = FakeWorkerApi()
    api.add("t1", outputs=(b'"' + b"x" * 997 + b'"\n') * 20_000)

    def use(client: Official) -> None:
        idle = client.call("WatchTasks", task_ids=["t1"], _timeout=30)
        trio.from_thread.run(api.attached.wait)
        with Official(address) as reader:
            pieces, offset = [], 0
            while True:
                page = reader.call("GetTaskResult", task_id="t1", output_offset=offset)
                pieces.append(page.outputs.json_lines)
                offset = page.next_offset
                if offset >= page.output_bytes:
                    break
        assert b"".join(pieces) == api.tasks["t1"].outputs
        assert max(map(len, pieces)) == MIB
        assert api.cursors[0].calls < 12
        events = list(idle)
        assert b"".join(event.outputs.json_lines for event in events) == api.tasks["t1"].outputs

    async with serving(api) as address:
        await with_official(address, use)


async def test_stopping_answers_running_calls_and_closes_connections() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    statuses: list[tuple[grpc.StatusCode, str]] = []
    watching = threading.Event()

    def use(client: Official) -> None:
        call = client.call("WatchTasks", task_ids=["t1"], _timeout=30)
        next(call)
        watching.set()
        statuses.append(status_of(lambda: list(call)))
        statuses.append(status_of(lambda: client.call("GetWorkerStatus")))

    async with trio.open_nursery() as users:
        async with serving(api) as address:
            users.start_soon(with_official, address, use)
            await trio.to_thread.run_sync(watching.wait)
        assert api.detached.is_set()
    assert statuses[0] == (
        grpc.StatusCode.UNAVAILABLE,
        "UNAVAILABLE: the worker is shutting down; submit to another one",
    )
    assert statuses[1][0] is grpc.StatusCode.UNAVAILABLE


async def test_stopping_does_not_wait_for_a_client_that_takes_nothing() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False, outputs=b"1" * (20 * MIB) + b"\n")
    async with trio.open_nursery() as nursery:
        async with serving(api, close_timeout_s=0.1) as address:
            proxy = Proxy(address)
            through = await nursery.start(proxy.run)
            seen = trio.Event()
            nursery.start_soon(_watch_until_lost, through, seen)
            await seen.wait()
            proxy.freeze()
        nursery.cancel_scope.cancel()
    assert api.watchers == []


async def _watch_until_lost(address: str, seen: trio.Event | None = None) -> None:
    try:
        async with WorkerClient.connect(address) as client, client.watch(["t1"]) as watch:
            async for _ in watch:
                if seen is not None:
                    seen.set()
    except Exception:  # noqa: BLE001  # the connection is taken away; how it looks here is not the point
        pass
