"""What a client may send: size, compression and form are judged before anything else."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import Official, message, serving, status_of, with_official


def submit(size: int) -> Any:
    config = {"type": "X", "config": b'{"a":"' + b"1" * size + b'"}'}
    return message("SubmitTaskRequest", task_id="t1", function_call_config=config)


def raw(client: Official, body: bytes, method: str = "SubmitTask") -> Any:
    """Send bytes as they are as the request message."""
    call = client.channel.unary_unary(f"/blockx.worker.v1.WorkerService/{method}", bytes, bytes)
    return call(body, timeout=10)


async def test_a_request_over_the_limit_is_refused_at_its_header() -> None:
    def use(client: Official) -> None:
        call = client.method("SubmitTask")
        status, text = status_of(lambda: call(submit(3_000_000), timeout=10))
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text.startswith(
            "REQUEST_TOO_LARGE: the request has 3000025 bytes, the worker takes at most 2000000 "
        )
        for _ in range(10):  # the same connection goes on, its window is not used up
            status_of(lambda: call(submit(3_000_000), timeout=10))
        assert call(submit(1_500_000), timeout=10).task.task_id == "t1"

    async with serving(FakeWorkerApi(), max_request_bytes=2_000_000) as address:
        await with_official(address, use)


async def test_the_limit_itself_is_accepted() -> None:
    size = len(submit(1000).SerializeToString())

    def use(client: Official) -> None:
        assert client.method("SubmitTask")(submit(1000), timeout=10).task.task_id == "t1"
        assert status_of(lambda: client.method("SubmitTask")(submit(1001), timeout=10))[0]

    async with serving(FakeWorkerApi(), max_request_bytes=size) as address:
        await with_official(address, use)


async def test_a_large_request_below_the_limit_arrives() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address:
        await with_official(
            address, lambda client: client.method("SubmitTask")(submit(32 * 2**20), timeout=15)
        )
    assert len(api.tasks["t1"].request.function_call_config.config) == 32 * 2**20 + 8


async def test_a_compressed_request_is_unimplemented_and_says_so() -> None:
    def use(client: Official) -> tuple[grpc.StatusCode, str]:
        call = client.method("SubmitTask")
        return status_of(lambda: call(submit(10_000), timeout=10, compression=grpc.Compression.Gzip))

    async with serving(FakeWorkerApi()) as address:
        status, text = await with_official(address, use)
    assert status is grpc.StatusCode.UNIMPLEMENTED
    assert "compressed requests are not supported" in text


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x05ab",  # a text shorter than it says
        b"\xff\xff\xff",
        b"\x0a\x02\xff\xff",  # not UTF-8
        b"\x48" + b"\xff" * 11,  # a number without end
        b"\x22\x05abcde",  # a sub-message that is none
        b"\x00\x01",
    ],
)
async def test_a_broken_body_is_an_invalid_argument(body: bytes) -> None:
    async with serving(FakeWorkerApi()) as address:
        status, text = await with_official(address, lambda client: status_of(lambda: raw(client, body)))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("INVALID_ARGUMENT: the request body is not a valid protobuf message")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"\x08\x01", "task_id"),  # a number where text belongs
        (b"\x0a\x01t\x22\x03\x0a\x01X\x32\x01a", "timeout_ms"),  # text where a number belongs
        (b"\x0a\x01t\x22\x03\x0a\x01X\x3a\x01a", "call_failure_policy"),
        (b"\x0a\x01t\x20\x01", "function_call_config"),
    ],
)
async def test_a_value_of_the_wrong_wire_type_names_the_field(body: bytes, field: str) -> None:
    async with serving(FakeWorkerApi()) as address:
        status, text = await with_official(address, lambda client: status_of(lambda: raw(client, body)))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"INVALID_ARGUMENT: {field}")


async def test_a_request_without_a_message_is_an_invalid_argument() -> None:
    def use(client: Official) -> tuple[grpc.StatusCode, str]:
        call = client.channel.stream_unary("/blockx.worker.v1.WorkerService/SubmitTask", bytes, bytes)
        return status_of(lambda: call(iter(()), timeout=10))

    async with serving(FakeWorkerApi()) as address:
        status, text = await with_official(address, use)
    assert (status, text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_ARGUMENT: the request ended without a message; send one",
    )


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving(FakeWorkerApi()) as address:
        status, _ = await with_official(
            address, lambda client: status_of(lambda: raw(client, b"", method="MakeCoffee"))
        )
    assert status is grpc.StatusCode.UNIMPLEMENTED
