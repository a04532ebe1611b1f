"""Submit a task and own it until it ends, through broken connections and restarted workers.

After a break the same task is submitted again, which is safe: a worker answers a known task_id with the task as it
stands, and one that was restarted runs it again. Outputs seen before the break are dropped, since another run may give
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from blockx_worker.client.core import TaskCore
from blockx_worker.client.errors import TlsFailed, WorkerUnreachable
from blockx_worker.client.outputs import LineJoiner, Outputs
from blockx_worker.client.task import Task
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import TaskResult
from blockx_worker.model.watch import TaskNotFound, TaskOutputs, TaskResulted, TaskSnapshotted, WatchEvent
from blockx_worker.ports import SubmitReply

__all__ = ["OnEvent", "Outcome", "run"]

OnEvent = Callable[[WatchEvent], None]
Outcome = tuple[TaskResult, Outputs]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


async def run(core: TaskCore, task: Task, on_event: OnEvent | None = None) -> Outcome:
    """The result and outputs of ``task``; WorkerUnreachable when the worker was away for ``reconnect_s``."""
    clock = asyncio.get_running_loop().time
    lost_since, pause_s = clock(), _FIRST_PAUSE_S
    while True:
        attempt = _Attempt(core, task, on_event or _ignore)
        try:
            return await attempt.run()
        except TlsFailed:
            raise
        except WorkerUnreachable:
            if attempt.accepted:
                lost_since, pause_s = clock(), _FIRST_PAUSE_S
            if clock() - lost_since >= core.options.reconnect_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@attrs.define
class _Attempt:
    """One submit and watch; ``accepted`` once the worker has answered."""

    _core: TaskCore
    _task: Task
    _on_event: OnEvent
    accepted: bool = False

    async def run(self) -> Outcome:
        reply = await self._core.submit(self._task, self._core.options.run_wait_ms)
        self.accepted = True
        if reply.snapshot.result is not None:
            return reply.snapshot.result, await self._outputs(reply)
        try:
            outcome = await self._watch()
        except WorkerError as error:
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            raise WorkerUnreachable(
                self._core.address, error.message
            ) from None  # it shuts down; another may come
        if outcome is None:
            raise WorkerUnreachable(
                self._core.address, f"the worker does not know task {self._task.task_id} any more"
            )
        return outcome

    async def _watch(self) -> Outcome | None:
        """None if the worker does not know the task."""
        joiner, lines = LineJoiner(), list[bytes]()
        async with self._core.watch([self._task.task_id]) as watch:
            while (event := await watch.next()) is not None:
                self._on_event(event)
                match event:
                    case TaskOutputs(chunk=chunk):
                        lines += joiner.feed(chunk.json_lines)
                    case TaskResulted(result=result):
                        return result, Outputs(lines)
                    case TaskNotFound() | TaskSnapshotted():
                        pass
        return None

    async def _outputs(self, reply: SubmitReply) -> Outputs:
        if reply.outputs is not None:
            return Outputs(LineJoiner().feed(reply.outputs))
        joiner, lines, offset, end = LineJoiner(), list[bytes](), 0, 1
        while offset < end:
            page = await self._core.result(self._task.task_id, offset)
            if page.chunk is not None:
                lines += joiner.feed(page.chunk.json_lines)
            offset, end = page.next_offset, page.output_bytes
        return Outputs(lines)


def _ignore(_event: WatchEvent) -> None:
    pass
