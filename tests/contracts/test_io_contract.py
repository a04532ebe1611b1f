"""What every back end keeps to, the fake of the tests included: asked directly, and through the IO of a task."""

from __future__ import annotations

import json
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.testing

from blockx_worker.config.io_settings import JsonRpcSettings
from blockx_worker.io.blockdb import BlockDbBackend, BlockDbLimits
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.io.rpc_make import make_rpc
from blockx_worker.ports import IoAnswer, IoBackend, IoRequest
from blockx_worker.surroundings import WorkerThreads
from tests.io.io_fakes import FakeBackend, port, start


@attrs.frozen
class Subject:
    """A back end that runs, and a request that it answers with `value`."""

    backend: IoBackend
    op: str
    request: bytes
    value: Any


def fake(folder) -> Subject:
    return Subject(FakeBackend(), "read", b'{"n":1}', {"n": 1})


def blockdb(folder) -> Subject:
    (folder / "logs.jsonl").write_text('{"block_number": 1}\n')
    limits = BlockDbLimits(max_blocks=10, max_answer_bytes=10_000, sidecar_bytes=1000)
    backend = BlockDbBackend("fake", FolderBlockStore(folder), WorkerThreads(), limits)
    return Subject(backend, "rows", b'{"table":"logs","block":1}', [{"block_number": 1}])


def sidecar(folder) -> Subject:
    subject = blockdb(folder)
    limits = BlockDbLimits(max_blocks=10, max_answer_bytes=10_000, sidecar_bytes=0)
    backend = BlockDbBackend("fake", FolderBlockStore(folder), WorkerThreads(), limits)
    return attrs.evolve(subject, backend=backend)


def rpc(folder) -> Subject:
    async def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        answers = [
            {"id": c["id"], "result": c["params"]} for c in (body if isinstance(body, list) else [body])
        ]
        return httpx.Response(200, json=answers if isinstance(body, list) else answers[0])

    settings = JsonRpcSettings(endpoints=["http://a"])
    backend = make_rpc("fake", settings, lambda: 0.0, httpx.MockTransport(handle))
    return Subject(backend, "call", b'{"method":"f","params":[1]}', [1])


@pytest.fixture(params=[fake, blockdb, sidecar, rpc])
def made(request, tmp_path) -> Subject:
    """A back end that does not run yet."""
    subject: Subject = request.param(tmp_path)
    return subject


@pytest.fixture
async def subject(made, nursery) -> Subject:
    await nursery.start(made.backend.run)
    running: Subject = made
    return running


def value(answer: IoAnswer) -> Any:
    assert answer.error is None
    text = answer.result if answer.sidecar is None else answer.sidecar
    return json.loads(text or b"")


async def test_a_request_is_answered_with_result_or_sidecar(subject):
    answer = await subject.backend.request(subject.op, subject.request)
    assert value(answer) == subject.value
    assert (answer.result is None) != (answer.sidecar is None)


async def test_an_unknown_operation_is_an_error_in_the_answer(subject):
    for op in ("", "nonsense", "x" * 10_000):
        error = (await subject.backend.request(op, subject.request)).error
        assert (error.kind, error.retryable) == ("IO_BAD_REQUEST", False)
        assert len(error.message) < 500


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b"null", b'{"a":', b"\xff", b"[" * 100_000])
async def test_what_is_no_request_is_an_error_in_the_answer(subject, text):
    error = (await subject.backend.request(subject.op, text)).error
    assert (error.kind, error.retryable) == ("IO_BAD_REQUEST", False)
    assert len(error.message) < 500


async def test_equal_requests_have_equal_answers(subject):
    answers = [await subject.backend.request(subject.op, subject.request) for _ in range(2)]
    assert answers[0] == answers[1]


async def test_requests_may_come_all_at_once(subject):
    answers = []

    async def one() -> None:
        answers.append(value(await subject.backend.request(subject.op, subject.request)))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one)
    assert answers == [subject.value] * 50


async def test_a_cancelled_request_leaves_the_next_one_alone(subject):
    with trio.CancelScope() as scope:
        scope.cancel()
        await subject.backend.request(subject.op, subject.request)
    assert scope.cancelled_caught
    assert value(await subject.backend.request(subject.op, subject.request)) == subject.value


async def test_whether_an_answer_may_be_shared_is_said_for_any_operation(subject):
    assert subject.backend.cacheable(subject.op) is True
    assert subject.backend.cacheable("nonsense") in (True, False)


async def test_it_runs_until_it_is_cancelled(made):
    async with trio.open_nursery() as nursery:
        await nursery.start(made.backend.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_through_the_io_of_a_task_the_answer_is_the_same_and_the_second_is_free(made, nursery):
    task = (await start(nursery, port(made.backend))).open_task("t")
    request = IoRequest(backend="fake", op=made.op, request=made.request)
    first, second = [await task.request(request) for _ in range(2)]
    assert value(first) == value(second) == made.value
    assert (second.used_ms, task.requests) == (0, 1)
