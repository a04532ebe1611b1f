"""The JSON-RPC back end against a real server over real connections."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import trio

from blockx_worker.config.io_settings import IoSettings, JsonRpcSettings
from blockx_worker.config.settings import Settings
from blockx_worker.io.make import make_io
from blockx_worker.ports import IoAnswer, IoRequest, TaskIo
from blockx_worker.surroundings import WorkerThreads
from tests.io.io_fakes import problem
from tests.support.jsonrpc_server import JsonRpcServer, RpcFailure


@pytest.fixture
def server():
    with JsonRpcServer() as running:
        yield running


async def open_task(nursery: trio.Nursery, *servers: JsonRpcServer, **rpc: Any) -> TaskIo:
    settings = JsonRpcSettings(endpoints=[s.url for s in servers], **rpc)
    io = make_io(Settings(io=IoSettings(rpc=settings)), WorkerThreads(), {}, jitter=lambda: 0.0)
    await nursery.start(io.run)
    return io.open_task("t")


async def call(task: TaskIo, *params: Any, method: str = "f", op: str = "call") -> IoAnswer:
    text = json.dumps({"method": method, "params": params}).encode()
    return await task.request(IoRequest(backend="rpc", op=op, request=text))


async def calls(task: TaskIo, numbers: range) -> dict[int, Any]:
    answers: dict[int, Any] = {}

    async def one(number: int) -> None:
        answer = await call(task, number)
        answers[number] = answer.error or json.loads(answer.result or b"")["params"]

    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(one, number)
    return answers


def right(numbers: range) -> dict[int, list[int]]:
    return {n: [n] for n in numbers}


async def wait_for(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, 10)


async def test_five_hundred_slow_requests_run_together_over_a_few_connections(nursery, server):
    server.delay_s = 0.2
    task = await open_task(nursery, server)
    assert await calls(task, range(500)) == right(range(500))
    assert sum(server.posts) == 500
    assert len(server.posts) < 20


async def test_identical_requests_of_a_task_reach_the_server_once(nursery, server):
    server.delay_s = 0.05
    task = await open_task(nursery, server)
    async with trio.open_nursery() as asking:
        for number in range(300):
            asking.start_soon(call, task, number % 10)
    await calls(task, range(10))
    assert set(server.calls.values()) == {1}
    assert task.requests == 10


async def test_a_server_that_restarts_in_the_middle_loses_nothing(nursery):
    """Connections are cut with requests aboard; the server comes back on the same port."""
    under_way, down = threading.Event(), threading.Event()

    def answer(method: str, params: Any) -> Any:
        if params[0] == 250 and not under_way.is_set():
            under_way.set()
            down.wait(10)
        return {"params": params}

    with JsonRpcServer(answer) as server:
        task = await open_task(nursery, server, max_batch=20, max_connections=4)

        async def restart() -> None:
            await wait_for(under_way)
            await trio.to_thread.run_sync(server.stop)
            down.set()
            await trio.to_thread.run_sync(server.start)

        async with trio.open_nursery() as restarting:
            restarting.start_soon(restart)
            assert await calls(task, range(500)) == right(range(500))
        assert server.calls["f", "[250]"] == 2


async def test_a_server_that_is_not_there_yet_is_waited_for(nursery):
    with JsonRpcServer() as server:
        server.stop()
        task = await open_task(nursery, server)
        async with trio.open_nursery() as asking:

            async def first() -> None:
                assert (await call(task, 1)).error is None

            asking.start_soon(first)
            await trio.to_thread.run_sync(server.start)


async def test_the_work_goes_on_at_the_other_endpoint_when_one_dies(nursery, server):
    with JsonRpcServer() as other:
        task = await open_task(nursery, server, other, max_batch=10)
        assert await calls(task, range(100)) == right(range(100))
        assert min(len(server.posts), len(other.posts)) > 0
        other.stop()
        assert await calls(task, range(100, 200)) == right(range(100, 200))


async def test_busy_and_broken_responses_are_tried_again(nursery, server):
    server.script = [
        lambda body: (429, {"retry-after": "0"}, b"slow down"),
        lambda body: (503, {}, b""),
        lambda body: None,
        lambda body: (200, {}, b"<html>"),
    ]
    task = await open_task(nursery, server, backoff_ms=1)
    assert await calls(task, range(5)) == right(range(5))


async def test_without_batches_each_request_goes_alone(nursery, server):
    server.takes_batches = False
    task = await open_task(nursery, server, max_batch=16)
    assert await calls(task, range(50)) == right(range(50))


async def test_errors_of_the_server_come_with_code_and_message(nursery):
    def answer(method: str, params: Any) -> Any:
        if params == [2]:
            raise RpcFailure(3, "execution reverted", "0x1234")
        return {"params": params}

    with JsonRpcServer(answer) as server:
        task = await open_task(nursery, server)
        answers = await calls(task, range(4))
        assert [n for n in answers if answers[n] != [n]] == [2]
        assert answers[2].message == 'f: error 3: execution reverted (data "0x1234")'


async def test_256_bit_integers_survive(nursery, server):
    task = await open_task(nursery, server)
    big = 2**256 - 1
    assert (await call(task, big)).result == b'{"method": "f", "params": [%d]}' % big


async def test_a_response_above_the_limit_is_read_no_further(nursery):
    with JsonRpcServer(lambda method, params: "x" * 5_000_000) as server:
        task = await open_task(nursery, server, max_response_bytes=100_000)
        assert problem(await call(task, 1)).kind == "IO_ANSWER_TOO_LARGE"
        server.answer = lambda method, params: "short"
        assert (await call(task, 2)).result == b'"short"'


async def test_what_is_sent_is_plain_json_uncompressed(nursery, server):
    task = await open_task(nursery, server)
    await call(task, 1)
    (headers,) = server.headers
    assert (headers["content-type"], headers["accept-encoding"]) == ("application/json", "identity")


async def test_proxy_variables_are_not_read(nursery, server, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    task = await open_task(nursery, server)
    assert (await call(task, 1)).error is None


async def test_a_task_that_ends_cuts_its_requests(nursery, server):
    server.delay_s = 0.5
    task = await open_task(nursery, server)
    with trio.move_on_after(0.1):
        await call(task, 1)
    await task.aclose()
    assert problem(await call(task, 2)).kind == "IO_CLOSED"
