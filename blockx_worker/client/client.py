"""`WorkerClient` for Trio and asyncio programs.

Which of the two runs is found out when the client is entered. Under Trio the asyncio side runs on a loop of
`blockx_worker.bridge`, the one around the caller or one of its own; under asyncio nothing is in between, and
trio-asyncio is not even imported, because importing it changes asyncio's loop policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeAlias

import attrs
import sniffio

from blockx_worker.client import run
from blockx_worker.client.blocking import BlockingWorkerClient
from blockx_worker.client.core import ClientOptions, Core, EventStream, TaskCore
from blockx_worker.client.outputs import LineJoiner, Outputs, decode_line
from blockx_worker.client.task import Task
from blockx_worker.model.tasks import TaskResult, TaskSnapshot
from blockx_worker.model.watch import ResultPage, WatchEvent, WorkerStatus
from blockx_worker.ports import SubmitReply

__all__ = ["Connection", "Flavour", "Watch", "WorkerClient", "enter_flavour"]

_Run: TypeAlias = Callable[..., Awaitable[Any]]


@attrs.frozen
class Flavour:
    """How a coroutine of the core is run; ``clean_up`` also when the caller is being cancelled."""

    run: _Run
    clean_up: _Run


class Connection:
    """What `WorkerClient.connect` returns: enter it with ``async with`` or, in a blocking program, with ``with``."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self._stack = AsyncExitStack()
        self._blocking: BlockingWorkerClient | None = None

    async def __aenter__(self) -> WorkerClient:
        async with AsyncExitStack() as stack:
            flavour = await enter_flavour(stack)
            core: Core = await flavour.run(self._open)
            stack.push_async_callback(flavour.clean_up, core.__aexit__, None, None, None)
            self._stack = stack.pop_all()
        return WorkerClient(core, flavour)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    def __enter__(self) -> BlockingWorkerClient:
        self._blocking = BlockingWorkerClient(self._address, self._options)
        return self._blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._blocking is not None:
            self._blocking.close()

    async def _open(self) -> Core:
        return await Core(self._address, self._options).__aenter__()


class WorkerClient:
    """A worker as seen from Trio or asyncio. Refusals raise `WorkerError`, a lost worker `WorkerUnreachable`."""

    def __init__(self, core: TaskCore, flavour: Flavour) -> None:
        self._core = core
        self._flavour = flavour
        self._run = flavour.run

    @staticmethod
    def connect(address: str, **options: Any) -> Connection:
        """A connection to the worker at ``host:port``; ``options`` are the fields of `ClientOptions`."""
        return Connection(address, ClientOptions(**options))

    @property
    def address(self) -> str:
        """The worker's address."""
        return self._core.address

    async def request_slot(self, task_id: str, ttl_ms: int = 0) -> TaskSnapshot:
        """Lease a slot for a task that is submitted within ``ttl_ms`` (0: the worker's default)."""
        snapshot: TaskSnapshot = await self._run(self._core.request_slot, task_id, ttl_ms)
        return snapshot

    async def submit(self, task: Task, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end."""
        reply: SubmitReply = await self._run(self._core.submit, task, wait_ms)
        return reply

    async def run(
        self, task: Task, on_event: Callable[[WatchEvent], None] | None = None
    ) -> tuple[TaskResult, Outputs]:
        """Submit a task and own it until it ends: its result and outputs.

        ``on_event`` sees what happens meanwhile. A broken connection is made again, with the same task. A task that
        fails is a result, not an exception.
        """
        outcome: tuple[TaskResult, Outputs] = await self._run(run.run, self._core, task, on_event)
        return outcome

    def watch(self, task_ids: Sequence[str], *, observe: bool = False) -> Watch:
        """Watch tasks: an async iterator of events, to be closed by ``async with`` or `Watch.aclose`.

        Without ``observe`` the watch owns the tasks: they are cancelled some time after their last owner has gone.
        """
        return Watch(self._core.watch(task_ids, observe=observe), self._flavour)

    async def result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""
        page: ResultPage = await self._run(self._core.result, task_id, output_offset)
        return page

    async def output_pages(self, task_id: str) -> AsyncIterator[bytes]:
        """The outputs so far as pieces of JSON lines; a line may span pieces."""
        offset, end = 0, 1
        while offset < end:
            page = await self.result(task_id, offset)
            if page.chunk is not None:
                yield page.chunk.json_lines
            offset, end = page.next_offset, page.output_bytes

    async def outputs(self, task_id: str) -> AsyncIterator[Any]:
        """The values of the outputs so far, in call order."""
        joiner = LineJoiner()
        async for piece in self.output_pages(task_id):
            for line in joiner.feed(piece):
                yield decode_line(line)

    async def cancel(self, task_id: str, reason: str = "") -> TaskSnapshot:
        """Cancel a task, or give a leased slot back."""
        snapshot: TaskSnapshot = await self._run(self._core.cancel, task_id, reason)
        return snapshot

    async def status(self) -> WorkerStatus:
        """The worker as it stands."""
        status: WorkerStatus = await self._run(self._core.status)
        return status


class Watch:
    """Events of watched tasks, as an async iterator that ends when all of them have ended."""

    def __init__(self, core: EventStream, flavour: Flavour) -> None:
        self._core = core
        self._flavour = flavour

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        event: WatchEvent | None = await self._flavour.run(self._core.next)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Leave; the worker hears of it at once."""
        await self._flavour.clean_up(self._core.close)


async def enter_flavour(stack: AsyncExitStack) -> Flavour:
    """The flavour for the library that runs; what it needs is entered into ``stack``."""
    if sniffio.current_async_library() != "trio":
        return Flavour(_directly, _directly)
    from blockx_worker import bridge  # noqa: PLC0415  # see above: not for asyncio programs

    await stack.enter_async_context(bridge.open_loop())
    return Flavour(bridge.run_asyncio, bridge.clean_up_asyncio)


async def _directly(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await function(*args)
