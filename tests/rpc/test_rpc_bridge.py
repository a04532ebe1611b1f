"""The fence between Trio and asyncio: results, errors and cancellation cross it, callback errors do not end the loop."""

from __future__ import annotations

import asyncio

import pytest
import structlog
import trio

from blockx_worker import bridge
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.server import serve
from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import serving, with_official


async def test_results_and_errors_cross_both_ways() -> None:
    async def on_trio(value: int) -> int:
        await trio.lowlevel.checkpoint()
        if value < 0:
            raise ValueError("negative")
        return value + 1

    async def on_asyncio(value: int) -> int:
        await asyncio.sleep(0)
        return 10 * await bridge.call_trio(on_trio, value)

    async with bridge.open_loop():
        assert await bridge.run_asyncio(on_asyncio, 1) == 20
        with pytest.raises(ValueError, match="negative"):
            await bridge.run_asyncio(on_asyncio, -1)


async def test_a_trio_cancellation_reaches_through_asyncio_to_trio() -> None:
    started, cleaned = trio.Event(), trio.Event()

    async def on_trio() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cleaned.set()

    async def on_asyncio() -> None:
        await bridge.call_trio(on_trio)

    async with bridge.open_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(bridge.run_asyncio, on_asyncio)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert cleaned.is_set()


async def test_an_asyncio_cancellation_waits_for_the_clean_up_of_trio() -> None:
    started = trio.Event()
    story: list[str] = []

    async def on_trio() -> None:
        try:
            started.set()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            story.append("trio cleaned up")

    async def on_asyncio() -> None:
        task = asyncio.ensure_future(bridge.call_trio(on_trio))
        await bridge.call_trio(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        story.append("asyncio went on")

    async with bridge.open_loop():
        await bridge.run_asyncio(on_asyncio)
    assert story == ["trio cleaned up", "asyncio went on"]


async def test_without_a_loop_the_error_says_what_to_do() -> None:
    with pytest.raises(
        RuntimeError, match=r"open one around this task with blockx_worker\.bridge\.open_loop"
    ):
        await bridge.run_asyncio(asyncio.sleep, 0)


async def test_an_inner_open_loop_uses_the_outer_one() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async with bridge.open_loop():
        outer = await bridge.run_asyncio(loop)
        async with bridge.open_loop():
            assert await bridge.run_asyncio(loop) is outer
        assert await bridge.run_asyncio(loop) is outer


@pytest.mark.parametrize(
    "error", [ValueError("plain"), ExceptionGroup("of the body", [ValueError(), KeyError()])]
)
async def test_an_error_of_the_body_comes_out_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        async with bridge.open_loop():
            raise error
    assert caught.value is error


async def test_a_cancelled_body_ends_quietly() -> None:
    with trio.move_on_after(0) as scope:
        async with bridge.open_loop():
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_address_that_is_taken_is_an_os_error() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address:
        with pytest.raises(OSError, match="address already in use"):
            await serve(api, RpcConfig(port=int(address.rpartition(":")[2])))


async def test_an_error_in_a_callback_is_counted_and_the_server_still_answers() -> None:
    def fail() -> None:
        raise ZeroDivisionError("in a callback")

    async def schedule() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    before = bridge.statistic.callback_errors
    async with bridge.open_loop(), serving(FakeWorkerApi()) as address:
        with structlog.testing.capture_logs() as logs:
            await bridge.run_asyncio(schedule)
        answer = await with_official(address, lambda client: client.call("GetWorkerStatus"))
    assert answer.status.profile == "block"
    assert bridge.statistic.callback_errors == before + 1
    assert [entry["event"] for entry in logs] == ["asyncio_callback_failed"]
