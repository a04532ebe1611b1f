"""One task's way through a cluster: it looks like one worker (`TaskCore`) and is whichever has the task.

The rules, which keep a task from running twice for nothing and from getting lost:

* A worker that refuses for want of room, drains, or cannot be connected to has not got the task: the next is asked, with
  the same task id.
* A worker that may have got the task is its *home*, also if the connection broke before it answered. A broken connection
  is made again to the home, as long as the registry lists it.
* A home that is gone from the registry, that no longer takes the task, or that was stopped before the task had ended is
  left, and the task is submitted elsewhere, still with the same id. Should the old one be alive after all, the ledger and
  the block locks of the writers see to it that nothing is written twice.
* Before a large upload a slot is leased, so that bytes do not travel to a full worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

import attrs

from blockx_worker.client.core import ClientOptions, Core, CoreWatch, EventStream
from blockx_worker.client.errors import NoWorker, RequestFailed, WorkerUnreachable
from blockx_worker.client.task import EncodedConfig, Task
from blockx_worker.model.errors import ErrorCode, TaskFailureCode, WorkerError
from blockx_worker.model.tasks import TaskResult, TaskSnapshot
from blockx_worker.model.watch import ResultPage, TaskResulted, WatchEvent, WorkerStatus
from blockx_worker.ports import SubmitReply
from blockx_worker.registry.value import WorkerValue

__all__ = ["Route", "Workers"]

T = TypeVar("T")

MAX_UPLOADS = 3
"""A lease may run out during an upload; then slot and upload once more."""

_NO_ROOM = "RESOURCE_EXHAUSTED"


class Workers(Protocol):
    """What a route asks of the directory."""

    @property
    def options(self) -> ClientOptions:
        """How clients of the workers behave."""

    @property
    def slot_first_bytes(self) -> int:
        """From this size of an upload on a slot is leased first."""

    def candidates(self) -> list[WorkerValue]:
        """Workers to ask, best first."""

    def lists(self, worker: WorkerValue) -> bool:
        """Whether the registry has this worker: the same start of it at the same address."""

    def nobody(self, detail: str) -> NoWorker:
        """The error that says that no worker takes a task, with ``detail`` or with what is wrong with the registry."""

    async def connected(self, worker: WorkerValue) -> Core:
        """A connection to a worker; WorkerUnreachable if there is none to be had."""

    def note_offered(self, worker: WorkerValue) -> None:
        """The worker is about to be asked to take a task."""


@attrs.frozen
class _Home:
    worker: WorkerValue
    core: Core


class Route:
    """The way of one task; not to be used for another."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._home: _Home | None = None
        self._left: set[str] = set()  # instances

    @property
    def address(self) -> str:
        """The address of the worker that has the task; empty before there is one."""
        return self._home.worker.address if self._home else ""

    @property
    def options(self) -> ClientOptions:
        """How the client behaves."""
        return self._workers.options

    async def request_slot(self, task_id: str, ttl_ms: int = 0) -> TaskSnapshot:
        """Lease a slot where the task is, or where there is room."""

        async def ask(core: Core) -> TaskSnapshot:
            return await core.request_slot(task_id, ttl_ms)

        return await (ask(self._home.core) if self._home else self._ask_in_turn(ask))

    async def submit(self, task: Task, wait_ms: int = 0) -> SubmitReply:
        """Submit to the worker that has the task, or to one that takes it; wait up to ``wait_ms`` for the end."""
        task = _encoded(task)  # once, however often it travels

        async def ask(core: Core) -> SubmitReply:
            return await self._upload(core, task, wait_ms)

        reply = await self._ask_home(self._home, ask) if self._home else None
        if reply is None:
            reply = await self._ask_in_turn(ask)
        self.check(reply.snapshot.result)
        return reply

    async def result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""
        return await self._at_home().result(task_id, output_offset)

    async def cancel(self, task_id: str, reason: str = "") -> TaskSnapshot:
        """Cancel the task, or give its slot back."""
        return await self._at_home().cancel(task_id, reason)

    async def status(self) -> WorkerStatus:
        """The worker that has the task."""
        return await self._at_home().status()

    def watch(self, task_ids: Sequence[str], *, observe: bool = False) -> EventStream:
        """Watch the task where it is."""
        core = self._at_home()
        return _RouteWatch(self, core.watch(task_ids, observe=observe))

    def check(self, result: TaskResult | None) -> None:
        """A task that ended only because its worker was stopped has not ended: WorkerUnreachable, and it goes elsewhere."""
        if (
            result is None
            or result.failure is None
            or result.failure.code is not TaskFailureCode.WORKER_SHUTDOWN
        ):
            return
        address = self.address
        self._leave()
        raise WorkerUnreachable(address, "the worker was stopped before the task had ended")

    # --- choosing ------------------------------------------------------------------------------------------------

    async def _ask_home(self, home: _Home, ask: Callable[[Core], Awaitable[T]]) -> T | None:
        """None: the task has no home any more."""
        try:
            return await ask(home.core)
        except WorkerUnreachable:
            if self._workers.lists(home.worker):
                raise  # it may come back; if not, its lease will say so
        except (WorkerError, RequestFailed) as error:
            if not _goes_elsewhere(error):
                raise
        self._leave()
        return None

    async def _ask_in_turn(self, ask: Callable[[Core], Awaitable[T]]) -> T:
        refusal: WorkerError | RequestFailed | None = None
        details: list[str] = []
        for worker in self._workers.candidates():
            if worker.instance in self._left:
                continue
            self._workers.note_offered(worker)  # at once, so that tasks that choose meanwhile know of it
            try:
                core = await self._workers.connected(worker)
            except WorkerUnreachable as error:
                details.append(str(error))
                continue
            self._home = _Home(worker, core)
            try:
                return await ask(core)
            except (WorkerError, RequestFailed) as error:
                self._home = None
                if not _goes_elsewhere(error):
                    raise
                refusal = error
        raise self._refused(refusal, details)

    def _refused(self, refusal: WorkerError | RequestFailed | None, details: list[str]) -> Exception:
        """A task on the move is not refused for want of room: its owner tries again, as after a broken connection."""
        if refusal is None or self._left or _is_draining(refusal):
            return self._workers.nobody(str(refusal or "; ".join(details)))
        return refusal

    async def _upload(self, core: Core, task: Task, wait_ms: int) -> SubmitReply:
        slot_first = _upload_bytes(task) >= self._workers.slot_first_bytes
        for attempt in range(1, MAX_UPLOADS + 1):
            if slot_first:
                await core.request_slot(task.task_id)
            try:
                return await core.submit(task, wait_ms)
            except WorkerError as error:
                if error.code is not ErrorCode.SLOT_UNCERTAIN or attempt == MAX_UPLOADS:
                    raise
            slot_first = True
        raise AssertionError

    def _at_home(self) -> Core:
        if self._home is None:
            raise self._workers.nobody("no worker has the task yet")
        return self._home.core

    def _leave(self) -> None:
        if self._home is not None:
            self._left.add(self._home.worker.instance)
            self._home = None


class _RouteWatch:
    """A watch at the home; what says that the worker ends is told as the loss of the worker."""

    def __init__(self, route: Route, core: CoreWatch) -> None:
        self._route = route
        self._core = core

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self) -> WatchEvent | None:
        """The next event; None after the last."""
        try:
            event = await self._core.next()
        except WorkerError as error:
            if not _is_draining(error):
                raise
            raise WorkerUnreachable(self._route.address, error.message) from None
        if isinstance(event, TaskResulted):
            self._route.check(event.result)
        return event

    async def close(self) -> None:
        """Leave."""
        await self._core.close()


def _encoded(task: Task) -> Task:
    if isinstance(task.config, EncodedConfig):
        return task
    typed = task.config.to_typed_config()
    return attrs.evolve(task, config=EncodedConfig(typed.type, typed.config))


def _upload_bytes(task: Task) -> int:
    assert isinstance(task.config, EncodedConfig)
    return len(task.config.config)


def _goes_elsewhere(error: WorkerError | RequestFailed) -> bool:
    if isinstance(error, RequestFailed):
        return error.status == _NO_ROOM
    return error.code is ErrorCode.NO_SLOT or _is_draining(error)


def _is_draining(error: WorkerError | RequestFailed) -> bool:
    return isinstance(error, WorkerError) and error.code is ErrorCode.UNAVAILABLE
