"""A fake worker behind the real gRPC server, in a thread of its own, so that commands can be run as users run them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import attrs
import trio

from blockx_worker.model.tasks import TaskRequest, TaskState
from blockx_worker.ports import SubmitReply
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.server import serve
from tests.rpc.fakes import FakeCursor, FakeWorkerApi


class ScriptedWorker(FakeWorkerApi):
    """Ends each submitted task as the test says: at once, under its first watcher, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.state = TaskState.SUCCEEDED
        self.outputs = b""
        self.result: dict[str, Any] = {}
        self.ends: Literal["at once", "when watched", "never"] = "at once"
        self.when_watched: Callable[[], object] = lambda: None

    @property
    def request(self) -> TaskRequest:
        [task] = self.tasks.values()
        return task.request

    async def submit_task(self, request: TaskRequest, wait_ms: int = 0) -> SubmitReply:
        known = request.task_id in self.tasks
        await super().submit_task(request)
        if not known:
            self.tasks[request.task_id].outputs = self.outputs
        if self.ends == "at once":
            self.finish(request.task_id)
        return await super().submit_task(request)

    def finish(self, task_id: str) -> None:
        if not self.tasks[task_id].ended:
            self.end(task_id, self.state, **self.result)

    @asynccontextmanager
    async def watch(self, task_ids: Sequence[str], *, observe: bool) -> AsyncIterator[FakeCursor]:
        async with super().watch(task_ids, observe=observe) as cursor:
            self.when_watched()
            if self.ends == "when watched":
                for task_id in set(task_ids) & set(self.tasks):
                    self.finish(task_id)
            yield cursor


@attrs.define
class RunningWorker:
    address: str
    api: ScriptedWorker
    token: trio.lowlevel.TrioToken

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on the worker's thread."""
        return trio.from_thread.run_sync(function, *args, trio_token=self.token)


@contextmanager
def running(**config: Any) -> Iterator[RunningWorker]:
    """``config``: fields of `RpcConfig`."""
    started: list[RunningWorker] = []
    ready = threading.Event()
    stop = trio.CancelScope()

    async def main() -> None:
        api = ScriptedWorker()
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve, api, RpcConfig(host="127.0.0.1", port=0, **config))
            started.append(RunningWorker(address, api, trio.lowlevel.current_trio_token()))
            ready.set()
            with stop:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield started[0]
    started[0].call(stop.cancel)
    thread.join(10)
    assert not thread.is_alive()
