"""Talking to one worker from a command: errors become exit codes, and a task is seen through to its result."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, TypeVar

import attrs
import click
import trio

from blockx_worker.cli.cluster import ClusterDestination
from blockx_worker.cli.credentials import client_credentials
from blockx_worker.cli.errors import CommandFailed, Interrupted, Unreachable
from blockx_worker.cli.outputs import OutputSpool
from blockx_worker.cli.progress import ProgressView
from blockx_worker.client import RequestFailed, Task, TlsFailed, WorkerClient, WorkerError, WorkerUnreachable
from blockx_worker.model.tasks import TaskResult
from blockx_worker.model.watch import TaskNotFound, TaskOutputs, TaskResulted, TaskSnapshotted

__all__ = ["copy_outputs", "see_through", "talk"]

T = TypeVar("T")

RECONNECT_S = 30.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SHORT_TASK_MS = 200  # a task that ends so soon needs no watch


def talk(address: str | ClusterDestination, work: Callable[[WorkerClient], Awaitable[T]]) -> T:
    """Connect to a worker or through a registry, do the work, and turn what goes wrong into a message and an exit code."""
    credentials = client_credentials()
    try:
        return trio.run(_connected, address, credentials, work)
    except Exception as group:  # noqa: BLE001 - nurseries wrap what happens in groups; what is unknown is raised again
        error = _only(group)
        if isinstance(error, WorkerError):
            raise CommandFailed(f"refused by {address}: {error.message} ({error.code})") from None
        if isinstance(error, TlsFailed):
            raise CommandFailed(f"cannot connect to {address}: {error.detail}") from None
        if isinstance(error, WorkerUnreachable):
            raise _unreachable(address, error) from None
        if isinstance(error, RequestFailed):
            raise CommandFailed(f"{address} failed to answer: {error}; its log says more") from None
        raise error from None


def _unreachable(address: str | ClusterDestination, error: WorkerUnreachable) -> Unreachable:
    if isinstance(address, str):
        return Unreachable.at(address, error.detail)
    return Unreachable(
        f"{error}\nAre workers running with that etcd and prefix? `blockx config` shows theirs."
    )


async def see_through(
    client: WorkerClient, task: Task, spool: OutputSpool, view: ProgressView
) -> TaskResult | None:
    """Submit a task, own it until it ends, and return its result.

    Ctrl-C cancels the task and waits for it; a second one leaves at once, with None.
    """
    result: TaskResult | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_signal, client, task.task_id, nursery.cancel_scope)
        result = await _Delivery(client, task, spool, view).run()
        nursery.cancel_scope.cancel()
    return result


async def copy_outputs(client: WorkerClient, task_id: str, spool: OutputSpool) -> None:
    """Read all outputs of a task that has ended."""
    async for piece in client.output_pages(task_id):
        spool.write(piece)


async def _connected(
    address: str | ClusterDestination,
    credentials: dict[str, Any],
    work: Callable[[WorkerClient], Awaitable[T]],
) -> T:
    """Ctrl-C is a signal to be received: as an exception it would strike the asyncio side in the middle of its work."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_leave_on_signal, nursery.cancel_scope)
        async with _connection(address, credentials) as client:
            outcome = await work(client)
        nursery.cancel_scope.cancel()
        return outcome
    raise Interrupted


def _connection(
    address: str | ClusterDestination, credentials: dict[str, Any]
) -> AbstractAsyncContextManager[WorkerClient]:
    if isinstance(address, str):
        return WorkerClient.connect(address, **credentials)
    return address.connect(credentials)


async def _leave_on_signal(leave: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            leave.cancel()


@attrs.define
class _Delivery:
    """One task on its way to its result, over as many connections as it takes."""

    client: WorkerClient
    task: Task
    spool: OutputSpool
    view: ProgressView
    accepted: bool = False
    lost: bool = False
    last_news: float = 0.0

    async def run(self) -> TaskResult:
        """Submit and follow; once accepted, a broken connection is made again until there was no news for long.

        Submitting again is safe: the worker answers a known id with the task as it stands. A worker that was started
        anew runs the task again, once.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self._once()
            except WorkerUnreachable:
                if not self.accepted or trio.current_time() > self.last_news + RECONNECT_S:
                    raise
            self.spool.restart()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _once(self) -> TaskResult:
        reply = await self.client.submit(self.task, SHORT_TASK_MS)
        if not self.accepted:
            self.accepted, self.last_news = True, trio.current_time()
        result = reply.snapshot.result
        if result is None:
            return await self._watch()
        if reply.outputs is not None:
            self.spool.write(reply.outputs)
        else:
            await copy_outputs(self.client, self.task.task_id, self.spool)
        return result

    async def _watch(self) -> TaskResult:
        async with self.client.watch([self.task.task_id]) as watch:
            async for event in watch:
                match event:
                    case TaskSnapshotted(snapshot=snapshot, progress=progress):
                        self.view.update(snapshot, progress)
                    case TaskOutputs(chunk=chunk):
                        self.spool.write(chunk.json_lines)
                    case TaskResulted(result=result):
                        return result
                    case TaskNotFound():
                        break
                self.last_news = trio.current_time()
        return self._gone()

    def _gone(self) -> NoReturn:
        if self.lost:
            raise CommandFailed(
                f"the worker forgets task {self.task.task_id} before its result can be read; give it a longer "
                "result_retention_ms, result_retention_count or result_retention_bytes"
            )
        self.lost = True
        raise WorkerUnreachable(self.client.address, f"the worker no longer knows task {self.task.task_id}")


async def _cancel_on_signal(
    client: WorkerClient, task_id: str, leave: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async with trio.open_nursery() as nursery:
            first = True
            async for _ in signals:
                if not first:
                    leave.cancel()
                    return
                first = False
                click.echo(f"cancelling task {task_id}; once more leaves at once", err=True)
                nursery.start_soon(_cancel, client, task_id, leave)


async def _cancel(client: WorkerClient, task_id: str, leave: trio.CancelScope) -> None:
    """Ask for the end; the result comes by the watch. Without a worker that knows the task there is none to wait for."""
    try:
        await client.cancel(task_id, "interrupted at the command line")
    except (WorkerError, WorkerUnreachable, RequestFailed):
        leave.cancel()


def _only(error: Exception) -> Exception:
    """The one exception inside the groups that nurseries wrap around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
