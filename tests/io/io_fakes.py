"""A back end whose answers the test gives, and short ways to ask."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from blockx_worker.io.admission import Admission, QueueLimits
from blockx_worker.io.port import BackendPort
from blockx_worker.io.scope import IoScopes
from blockx_worker.ports import IoAnswer, IoError, IoRequest

MIB = 1024 * 1024


class FakeBackend:
    """Answers what ``answer(op, request)`` returns or raises; without one, the request itself, at once.

    Operations that begin with ``write`` may not be shared; other than ``read…`` and ``write…`` it has none.
    """

    def __init__(
        self, name: str = "fake", answer: Callable[[str, bytes], Awaitable[IoAnswer]] | None = None
    ) -> None:
        self.name = name
        self.asked: list[tuple[str, bytes]] = []
        self.cancelled = 0
        self.running = False
        self._answer = answer

    async def request(self, op: str, request: bytes) -> IoAnswer:
        self.asked.append((op, request))
        try:
            await trio.lowlevel.checkpoint()
            if self._answer is not None:
                return await self._answer(op, request)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if not op.startswith(("read", "write")):
            return error("IO_BAD_REQUEST", f"no operation {op[:50]}")
        try:
            value = msgspec.json.decode(request)
        except (ValueError, RecursionError) as bad:
            return error("IO_BAD_REQUEST", str(bad))
        return IoAnswer(result=request) if isinstance(value, dict) else error("IO_BAD_REQUEST", "no object")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.running = True
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self.running = False

    def cacheable(self, op: str) -> bool:
        return not op.startswith("write")


class Held:
    """Answers that come when the test says so: `answer` is for `FakeBackend`, `let_go` opens it for all."""

    def __init__(self, answer: IoAnswer | None = None) -> None:
        self.open = trio.Event()
        self._given = answer

    async def answer(self, op: str, request: bytes) -> IoAnswer:
        await self.open.wait()
        return self._given or IoAnswer(result=request)

    def let_go(self) -> None:
        self.open.set()


def error(kind: str, message: str, *, retryable: bool = False) -> IoAnswer:
    return IoAnswer(error=IoError(kind=kind, message=message, retryable=retryable))


def problem(answer: IoAnswer) -> IoError:
    assert answer.error is not None, answer
    return answer.error


def port(
    backend: Any,
    *,
    places: int = 10,
    queue: int = 100,
    queue_bytes: int = MIB,
    timeout_ms: int = 10_000,
    max_answer_bytes: int = MIB,
) -> BackendPort:
    return BackendPort(
        backend=backend,
        admission=Admission(places, QueueLimits(requests=queue, size=queue_bytes)),
        timeout_ms=timeout_ms,
        max_answer_bytes=max_answer_bytes,
    )


async def start(nursery: trio.Nursery, *ports: BackendPort, cache_bytes: int = MIB, **more: Any) -> IoScopes:
    scopes = IoScopes(ports, cache_bytes=cache_bytes, **more)
    await nursery.start(scopes.run)
    return scopes


def ask(
    number: object = 1,
    *,
    op: str = "read",
    backend: str = "fake",
    budget_ms: int = 0,
    raw: bytes | None = None,
) -> IoRequest:
    text = json.dumps({"n": number}).encode() if raw is None else raw
    return IoRequest(backend=backend, op=op, request=text, budget_ms=budget_ms)


class Asking:
    """Requests under way: `answers` has those that are there, by number."""

    def __init__(self, nursery: trio.Nursery, task: Any) -> None:
        self.answers: dict[object, IoAnswer] = {}
        self.scopes: dict[object, trio.CancelScope] = {}
        self._nursery = nursery
        self._task = task

    async def begin(self, key: object, request: IoRequest) -> None:
        """Start one and wait until nothing moves any more."""

        async def run() -> None:
            with trio.CancelScope() as self.scopes[key]:
                self.answers[key] = await self._task.request(request)

        self._nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()

    async def cancel(self, key: object) -> None:
        self.scopes[key].cancel()
        await trio.testing.wait_all_tasks_blocked()
