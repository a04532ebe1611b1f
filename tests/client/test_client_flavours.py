"""`WorkerClient` under Trio, under asyncio and in blocking programs, against a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from blockx_worker.client import (
    BlockingWorkerClient,
    CallListCallConfig,
    ErrorCode,
    RequestFailed,
    Task,
    WorkerClient,
    WorkerError,
    WorkerUnreachable,
)
from blockx_worker.model.tasks import TaskState
from blockx_worker.model.watch import TaskNotFound, TaskOutputs, TaskResulted, TaskSnapshotted, WatchEvent
from tests.rpc.fakes import PAGE_BYTES, FakeWorkerApi
from tests.rpc.serving import Proxy, serving

BIG = 2**256 - 1
CALLS = CallListCallConfig("demo.double", [[1], [BIG]])


def lines_of(size: int) -> bytes:
    """Outputs whose lines do not end where pages do."""
    return (b'"' + b"x" * 700_000 + b'"\n') * (size // 700_000)


async def in_asyncio(use: Callable[[], Awaitable[Any]]) -> None:
    """Run in an asyncio loop of another thread."""

    def work() -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(use())  # type: ignore[arg-type]  # every use is a coroutine function

    await trio.to_thread.run_sync(work)


async def use_everything(client: WorkerClient) -> None:
    """Each method once; the same under Trio and asyncio."""
    assert (await client.status()).profile == "block"
    assert (await client.request_slot("t9", 50)).lease_remaining_ms == 50
    task = Task(CALLS, task_id="t1", labels={"team": "data"})
    assert (await client.submit(task)).snapshot.state is TaskState.RUNNING
    assert (await client.cancel("t1", "enough")).state is TaskState.CANCELLED
    assert (await client.result("done")).output_bytes > PAGE_BYTES
    values = [value async for value in client.outputs("done")]
    assert values == ["x" * 700_000] * 4
    async with client.watch(["done", "nope"], observe=True) as watch:
        kinds = [type(event) async for event in watch]
    assert kinds[0] is TaskSnapshotted
    assert kinds[1:] == [TaskOutputs] * 3 + [TaskResulted, TaskNotFound]
    with pytest.raises(WorkerError, match="NOT_FOUND: no task 'nope' here; submit it") as caught:
        await client.result("nope")
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(WorkerError, match="INVALID_ARGUMENT: task_ids is"):
        await anext(client.watch([]))


async def test_everything_under_trio() -> None:
    api = FakeWorkerApi()
    api.add("done", outputs=lines_of(3 * 10**6))
    async with serving(api) as address, WorkerClient.connect(address) as client:
        assert client.address == address
        await use_everything(client)
    assert api.tasks["t1"].request.labels == {"team": "data"}
    assert api.cancel_reasons == ["enough"]


async def test_everything_under_asyncio() -> None:
    api = FakeWorkerApi()
    api.add("done", outputs=lines_of(3 * 10**6))
    async with serving(api) as address:

        async def use() -> None:
            async with WorkerClient.connect(address) as client:
                await use_everything(client)

        await in_asyncio(use)


async def test_everything_blocking() -> None:
    api = FakeWorkerApi()
    api.add("done", outputs=lines_of(3 * 10**6))

    def use(client: BlockingWorkerClient) -> None:
        assert client.status().profile == "block"
        assert client.request_slot("t9").state is TaskState.ALLOCATED
        assert client.submit(Task(CALLS, task_id="t1")).snapshot.state is TaskState.RUNNING
        assert client.cancel("t1").state is TaskState.CANCELLED
        assert client.run(Task(CALLS, task_id="t1"))[0].state is TaskState.CANCELLED
        assert list(client.outputs("done")) == ["x" * 700_000] * 4
        with client.watch(["done"]) as watch:
            assert isinstance(next(watch), TaskSnapshotted)
        assert [type(event) for event in client.watch(["nope"])] == [TaskNotFound]
        with pytest.raises(WorkerError, match="NOT_FOUND"):
            client.result("nope")

    def work(address: str) -> None:
        with WorkerClient.connect(address) as client:
            use(client)

    async with serving(api) as address:
        await trio.to_thread.run_sync(work, address)
        await api.detached.wait()


async def test_the_blocking_client_refuses_to_block_a_loop() -> None:
    with (
        pytest.raises(RuntimeError, match="would block the running trio loop"),
        WorkerClient.connect("127.0.0.1:1"),
    ):
        pass


def test_asyncio_programs_are_not_touched_by_trio_asyncio() -> None:
    code = (
        "import sys, asyncio, blockx_worker.client as c\n"
        "async def main():\n"
        "    try:\n"
        "        async with c.WorkerClient.connect('127.0.0.1:1'): pass\n"
        "    except c.WorkerUnreachable: print('unreachable')\n"
        "asyncio.run(main())\n"
        "assert 'trio_asyncio' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "unreachable\n"), done.stderr


async def test_run_gives_result_and_outputs_with_exact_integers() -> None:
    api = FakeWorkerApi()
    seen: list[WatchEvent] = []

    async def finish() -> None:
        await api.attached.wait()
        api.tasks["t1"].outputs = b"2\n%d\n-%d\n" % (BIG, 10**4299)
        api.end("t1")

    async with (
        serving(api) as address,
        WorkerClient.connect(address, run_wait_ms=0) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(finish)
        result, outputs = await client.run(Task(CALLS, task_id="t1"), seen.append)
    assert api.tasks["t1"].request.function_call_config.config == (
        b'{"functionId":"demo.double","argsList":[[1],[%d]]}' % BIG
    )
    assert result.state is TaskState.SUCCEEDED
    assert list(outputs) == [2, BIG, -(10**4299)]
    assert outputs.lines[0] == b"2"
    assert list(outputs[:1]) == [2]
    assert type(seen[-1]) is TaskResulted
    assert api.watchers == []


async def test_run_of_a_short_task_is_one_round_trip() -> None:
    api = FakeWorkerApi()

    async def finish() -> None:
        await api.submitted.wait()
        api.tasks["t1"].outputs = b"2\n3\n"
        api.end("t1")

    async with (
        serving(api) as address,
        WorkerClient.connect(address, run_wait_ms=60_000) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(finish)
        _, outputs = await client.run(Task(CALLS, task_id="t1"))
    assert list(outputs) == [2, 3]
    assert api.cursors == []


async def test_run_reads_large_outputs_of_an_ended_task_in_pages() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address, WorkerClient.connect(address) as client:
        await client.submit(Task(CALLS, task_id="t1"))
        api.tasks["t1"].outputs = lines_of(3 * 10**6)
        api.end("t1")
        _, outputs = await client.run(Task(CALLS, task_id="t1"))
    assert list(outputs) == ["x" * 700_000] * 4


async def test_run_comes_back_after_a_broken_connection() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address, trio.open_nursery() as nursery:
        proxy = Proxy(address)
        through = await nursery.start(proxy.run)

        async def disturb() -> None:
            await api.attached.wait()
            api.attached = trio.Event()
            proxy.cut()
            await api.attached.wait()
            api.tasks["t1"].outputs = b"1\n2\n"
            api.end("t1")

        nursery.start_soon(disturb)
        async with WorkerClient.connect(through, run_wait_ms=0) as client:
            result, outputs = await client.run(Task(CALLS, task_id="t1"))
        assert (result.state, list(outputs)) == (TaskState.SUCCEEDED, [1, 2])
        nursery.cancel_scope.cancel()


async def test_run_submits_again_to_a_worker_that_forgot_the_task() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address, WorkerClient.connect(address, run_wait_ms=0) as client:
        api.forget_after_submit = True
        async with trio.open_nursery() as nursery:

            async def finish() -> None:
                await api.attached.wait()
                api.forget_after_submit = False
                api.attached = trio.Event()
                await api.attached.wait()
                api.end("t1")

            nursery.start_soon(finish)
            result, _ = await client.run(Task(CALLS, task_id="t1"))
    assert result.state is TaskState.SUCCEEDED


async def test_run_gives_up_when_no_worker_comes_back() -> None:
    api = FakeWorkerApi()

    async def use(address: str) -> None:
        async with WorkerClient.connect(address, run_wait_ms=0, reconnect_s=0.3) as client:
            with pytest.raises(WorkerUnreachable, match=address):
                await client.run(Task(CALLS, task_id="t1"))

    async with trio.open_nursery() as nursery, serving(api) as address:
        nursery.start_soon(use, address)
        await api.attached.wait()


async def test_cancelling_run_detaches_at_once() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address, WorkerClient.connect(address, run_wait_ms=0) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run, Task(CALLS, task_id="t1"))
            await api.attached.wait()
            nursery.cancel_scope.cancel()
        await api.detached.wait()
        assert (await client.status()).running_tasks == 1  # the connection goes on


async def test_a_cancelled_watch_says_that_it_cannot_go_on() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    async with serving(api) as address, WorkerClient.connect(address) as client:
        watch = client.watch(["t1"])
        await anext(watch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.__anext__)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await api.detached.wait()
        with pytest.raises(RuntimeError, match="open another one"):
            await anext(watch)


async def test_breaking_out_of_a_watch_detaches_it() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    async with serving(api) as address, WorkerClient.connect(address) as client:
        async with client.watch(["t1"]) as watch:
            async for _ in watch:
                break
        await api.detached.wait()


async def test_an_unreachable_worker_is_named() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    await listeners[0].aclose()
    with pytest.raises(WorkerUnreachable, match=f"no worker reachable at {address}: "):
        async with WorkerClient.connect(address):
            pass


@pytest.mark.parametrize("address", ["", "localhost", "host:port", "host:0", "host:70000"])
async def test_a_bad_address_says_what_is_accepted(address: str) -> None:
    with pytest.raises(ValueError, match="accepted: host:port"):
        async with WorkerClient.connect(address):
            pass


async def test_a_peer_that_never_answers_is_unreachable() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, _ignore, listeners)
        with pytest.raises(WorkerUnreachable, match=address):
            async with WorkerClient.connect(address, request_timeout_s=0.1) as client:
                await client.status()
        nursery.cancel_scope.cancel()


async def test_a_defect_of_the_worker_is_a_failed_request() -> None:
    api = FakeWorkerApi()
    api.refuse_with = ZeroDivisionError()
    async with serving(api) as address, WorkerClient.connect(address) as client:
        with pytest.raises(RequestFailed, match="INTERNAL: internal error; see the worker's log"):
            await client.status()


async def test_a_request_over_the_limit_is_refused_by_name() -> None:
    task = Task(CallListCallConfig("a.b", b'[["' + b"x" * 10_000_000 + b'"]]'))
    async with (
        serving(FakeWorkerApi(), max_request_bytes=1_000_000) as address,
        WorkerClient.connect(address) as client,
    ):
        with pytest.raises(WorkerError, match=r"REQUEST_TOO_LARGE: .* 1000000 "):
            await client.submit(task)
        assert (await client.status()).profile == "block"


async def test_a_blocking_client_ends_with_its_thread_while_a_watch_is_open() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    opened = threading.Event()

    def work(address: str) -> None:
        with WorkerClient.connect(address) as client:
            next(client.watch(["t1"]))
            opened.set()

    async with serving(api) as address:
        await trio.to_thread.run_sync(work, address)
        await api.detached.wait()
    assert opened.is_set()


async def _ignore(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass
