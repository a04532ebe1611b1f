"""The client for programs without an event loop: each call runs the asyncio core in the calling thread.

Not for use inside a running Trio or asyncio loop, which it would block; there it refuses and says what to use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import sniffio

from blockx_worker.client import run
from blockx_worker.client.core import ClientOptions, Core, CoreWatch
from blockx_worker.client.outputs import LineJoiner, Outputs, decode_line
from blockx_worker.client.task import Task
from blockx_worker.model.tasks import TaskResult, TaskSnapshot
from blockx_worker.model.watch import ResultPage, WatchEvent, WorkerStatus
from blockx_worker.ports import SubmitReply

__all__ = ["BlockingWatch", "BlockingWorkerClient"]

T = TypeVar("T")


class BlockingWorkerClient:
    """A worker as seen from blocking code; the methods are those of `WorkerClient`. For one thread at a time."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        _refuse_inside_a_loop()
        # a plain loop, whatever policy the program (or trio-asyncio) has set
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        try:
            self._core = self._runner.run(_open(address, options))
        except BaseException:
            self._runner.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._core.__aexit__(None, None, None))
        self._runner.close()

    def request_slot(self, task_id: str, ttl_ms: int = 0) -> TaskSnapshot:
        """Lease a slot for a task that is submitted within ``ttl_ms`` (0: the worker's default)."""
        return self._runner.run(self._core.request_slot(task_id, ttl_ms))

    def submit(self, task: Task, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end."""
        return self._runner.run(self._core.submit(task, wait_ms))

    def run(
        self, task: Task, on_event: Callable[[WatchEvent], None] | None = None
    ) -> tuple[TaskResult, Outputs]:
        """Submit a task and own it until it ends: its result and outputs."""
        return self._runner.run(run.run(self._core, task, on_event))

    def watch(self, task_ids: Sequence[str], *, observe: bool = False) -> BlockingWatch:
        """Watch tasks: an iterator of events, to be closed by ``with`` or `BlockingWatch.close`."""
        return BlockingWatch(self._core.watch(task_ids, observe=observe), self._runner.run)

    def result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""
        return self._runner.run(self._core.result(task_id, output_offset))

    def output_pages(self, task_id: str) -> Iterator[bytes]:
        """The outputs so far as pieces of JSON lines; a line may span pieces."""
        offset, end = 0, 1
        while offset < end:
            page = self.result(task_id, offset)
            if page.chunk is not None:
                yield page.chunk.json_lines
            offset, end = page.next_offset, page.output_bytes

    def outputs(self, task_id: str) -> Iterator[Any]:
        """The values of the outputs so far, in call order."""
        joiner = LineJoiner()
        for piece in self.output_pages(task_id):
            yield from map(decode_line, joiner.feed(piece))

    def cancel(self, task_id: str, reason: str = "") -> TaskSnapshot:
        """Cancel a task, or give a leased slot back."""
        return self._runner.run(self._core.cancel(task_id, reason))

    def status(self) -> WorkerStatus:
        """The worker as it stands."""
        return self._runner.run(self._core.status())


class BlockingWatch:
    """Events of watched tasks, as an iterator that ends when all of them have ended."""

    def __init__(self, core: CoreWatch, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._core = core
        self._run = run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent:
        event: WatchEvent | None = self._run(self._core.next())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Leave; the worker hears of it at once."""
        self._run(self._core.close())


async def _open(address: str, options: ClientOptions) -> Core:
    return await Core(address, options).__aenter__()


def _refuse_inside_a_loop() -> None:
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return
    raise RuntimeError(
        f"the blocking client would block the running {library} loop; use 'async with WorkerClient.connect(...)' here"
    )
