"""`WorkerDirectory`: a whole cluster of workers, found through etcd, as one that takes tasks. For Trio and asyncio.

async with WorkerDirectory.connect("127.0.0.1:2379", "/blockx/workers/block/") as directory:
    result, outputs = await directory.run(Task(CallListCallConfig("demo.double", [[1], [2]])))

Imported from here and not from `blockx_worker.client`: the messages of etcd come with libraries that take a while to load.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import attrs

from blockx_worker.client import run
from blockx_worker.client.choice import Chooser
from blockx_worker.client.client import Flavour, WorkerClient, enter_flavour
from blockx_worker.client.core import ClientOptions, Core
from blockx_worker.client.errors import NoWorker, WorkerUnreachable
from blockx_worker.client.members import Members
from blockx_worker.client.outputs import Outputs
from blockx_worker.client.route import Route
from blockx_worker.client.task import Task
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import TaskResult
from blockx_worker.model.watch import WatchEvent
from blockx_worker.registry.etcd import EtcdAccess
from blockx_worker.registry.value import WorkerValue

__all__ = ["DirectoryOptions", "WorkerDirectory"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0


@attrs.frozen(kw_only=True)
class DirectoryOptions:
    """How a directory behaves; times are seconds.

    ``slot_first_bytes``: before an upload of this size or more a slot is leased. ``place_timeout_s``: how long `run`
    waits for room while all workers are full. ``client``: for the connections to the workers. ``rank`` breaks ties.
    """

    access: EtcdAccess = attrs.field(factory=EtcdAccess)
    etcd_timeout_s: float = 3.0
    slot_first_bytes: int = 1024 * 1024
    place_timeout_s: float = 30.0
    client: ClientOptions = attrs.field(factory=ClientOptions)
    rank: Callable[[], float] = random.random


class DirectoryCore:
    """The directory itself, in asyncio; the flavours run its coroutines."""

    def __init__(self, endpoints: Sequence[str], prefix: str, options: DirectoryOptions) -> None:
        self._where = f"etcd {','.join(endpoints)} under {prefix}"
        self._options = options
        self._chooser = Chooser(options.rank)
        self._cores: dict[str, Core] = {}
        self._following: asyncio.Task[None] | None = None
        self.members = Members(endpoints, prefix, options.access, options.etcd_timeout_s)
        self._endpoints = len(endpoints)

    async def __aenter__(self) -> Self:
        """Wait for the first list, or until every endpoint has failed."""
        self._following = asyncio.create_task(self.members.follow())
        try:
            async with asyncio.timeout(self._options.etcd_timeout_s * (self._endpoints + 1)):
                await self.members.wait_for(self._listed_or_failed)
        except BaseException as error:
            await self.__aexit__(None, None, None)
            if isinstance(error, TimeoutError):
                raise self.nobody("") from None
            raise
        if not self.members.listed:
            await self.__aexit__(None, None, None)
            raise self.nobody("")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        for core in self._cores.values():
            await core.__aexit__(None, None, None)

    def _listed_or_failed(self) -> bool:
        return self.members.listed or self.members.failures >= self._endpoints

    async def run(
        self, task: Task, on_event: Callable[[WatchEvent], None] | None
    ) -> tuple[TaskResult, Outputs]:
        """See `WorkerDirectory.run`."""
        clock = asyncio.get_running_loop().time
        route, until_s, pause_s = Route(self), clock() + self._options.place_timeout_s, FIRST_PAUSE_S
        while True:
            try:
                return await run.run(route, task, on_event)
            except WorkerError as error:
                if error.code is not ErrorCode.NO_SLOT or clock() >= until_s:
                    raise
            await asyncio.sleep(pause_s * (1 + self._options.rank()) / 2)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    # --- for routes ----------------------------------------------------------------------------------------------

    @property
    def options(self) -> ClientOptions:
        """How clients of the workers behave."""
        return self._options.client

    @property
    def slot_first_bytes(self) -> int:
        """From this size of an upload on a slot is leased first."""
        return self._options.slot_first_bytes

    def candidates(self) -> list[WorkerValue]:
        """Workers to ask, best first."""
        return self._chooser.in_order(self.members.workers, _now_s())

    def lists(self, worker: WorkerValue) -> bool:
        """Whether the registry has this worker."""
        return any(
            (known.address, known.instance) == (worker.address, worker.instance)
            for known in self.members.workers
        )

    def nobody(self, detail: str) -> NoWorker:
        """The error that says so, and why."""
        known = len(self.members.workers)
        draining = sum(worker.draining for worker in self.members.workers)
        if not detail and not self.members.listed:
            detail = self.members.problem or "etcd did not answer in time"
        elif not detail:
            detail = (
                f"all {known} workers are draining"
                if known and draining == known
                else "no worker is registered"
            )
        return NoWorker(self._where, detail)

    async def connected(self, worker: WorkerValue) -> Core:
        """A connection to a worker, shared by all routes; WorkerUnreachable if there is none to be had."""
        core = self._cores.get(worker.address)
        try:
            if core is None:
                core = self._cores[worker.address] = Core(worker.address, self._options.client)
            await core.connect()
        except (WorkerUnreachable, ValueError) as error:
            self._chooser.unreachable(worker, _now_s())
            raise WorkerUnreachable(worker.address, getattr(error, "detail", str(error))) from None
        return core

    def note_offered(self, worker: WorkerValue) -> None:
        """The worker is about to be asked to take a task."""
        self._chooser.offered(worker, _now_s())


class WorkerDirectory:
    """The workers under one prefix, followed as they come and go."""

    def __init__(self, core: DirectoryCore, flavour: Flavour) -> None:
        self._core = core
        self._flavour = flavour

    @staticmethod
    def connect(endpoints: str | Sequence[str], prefix: str, **options: Any) -> DirectoryConnection:
        """Follow the workers whose keys begin with ``prefix``; to be entered with ``async with``.

        ``endpoints``: members of etcd, as a list or a text with commas. ``options`` are the fields of
        `DirectoryOptions`. Entering raises NoWorker if etcd cannot be reached.
        """
        listed = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
        return DirectoryConnection(
            [endpoint.strip() for endpoint in listed], prefix, DirectoryOptions(**options)
        )

    @property
    def workers(self) -> tuple[WorkerValue, ...]:
        """The workers as last heard of, draining ones too."""
        return self._core.members.workers

    async def wait_for(self, condition: Callable[[Sequence[WorkerValue]], bool]) -> None:
        """Wait until the workers satisfy the condition."""
        members = self._core.members
        await self._flavour.run(members.wait_for, lambda: condition(members.workers))

    async def run(
        self, task: Task, on_event: Callable[[WatchEvent], None] | None = None
    ) -> tuple[TaskResult, Outputs]:
        """Run a task on the worker with most room and own it until it ends: its result and outputs.

        Through full, draining, lost and stopped workers, always with the same task id; see `blockx_worker.client.route`.
        A task that fails is a result, not an exception. WorkerError(NO_SLOT) when all workers stay full, NoWorker when
        none can be reached for ``client.reconnect_s``.
        """
        outcome: tuple[TaskResult, Outputs] = await self._flavour.run(self._core.run, task, on_event)
        return outcome

    def client(self) -> WorkerClient:
        """A client for one task: its first `WorkerClient.submit` chooses the worker that the other methods talk to."""
        return WorkerClient(Route(self._core), self._flavour)


class DirectoryConnection:
    """What `WorkerDirectory.connect` returns: enter it with ``async with``, under Trio or asyncio."""

    def __init__(self, endpoints: Sequence[str], prefix: str, options: DirectoryOptions) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self._options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> WorkerDirectory:
        async with AsyncExitStack() as stack:
            flavour = await enter_flavour(stack)
            core: DirectoryCore = await flavour.run(self._open)
            stack.push_async_callback(flavour.clean_up, core.__aexit__, None, None, None)
            self._stack = stack.pop_all()
        return WorkerDirectory(core, flavour)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    async def _open(self) -> DirectoryCore:
        return await DirectoryCore(self._endpoints, self._prefix, self._options).__aenter__()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
