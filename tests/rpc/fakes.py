"""An in-memory `WorkerApi`: tasks that a test moves on by hand, with the outputs that it gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import (
    ENDED_STATES,
    TaskPhase,
    TaskRequest,
    TaskResult,
    TaskSnapshot,
    TaskState,
    TypedConfig,
)
from blockx_worker.model.watch import (
    ExecutorStatus,
    OutputChunk,
    ResultPage,
    TaskNotFound,
    TaskOutputs,
    TaskProgress,
    TaskResulted,
    TaskSnapshotted,
    WatchEvent,
    WorkerStatus,
)
from blockx_worker.ports import SubmitReply

PAGE_BYTES = 2**20
_NO_CONFIG = TypedConfig("CallListCallConfig")


@attrs.define
class FakeTask:
    """One task; `version` rises with each change, and `changed` wakes those who wait for it."""

    request: TaskRequest
    snapshot: TaskSnapshot
    outputs: bytes = b""
    changed: trio.Event = attrs.field(factory=trio.Event)

    def change(self, **changes: Any) -> None:
        self.snapshot = attrs.evolve(self.snapshot, **changes)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    @property
    def ended(self) -> bool:
        return self.snapshot.state in ENDED_STATES

    def page(self, offset: int) -> OutputChunk | None:
        piece = self.outputs[offset : offset + PAGE_BYTES]
        if not piece:
            return None
        return OutputChunk(
            offset=offset,
            first_index=self.outputs.count(b"\n", 0, offset),
            count=piece.count(b"\n"),
            json_lines=piece,
        )


@attrs.define
class FakeCursor:
    """Snapshots first, then outputs, then the result, of each task."""

    tasks: dict[str, FakeTask | None]
    calls: int = 0
    _seen: dict[str, TaskSnapshot] = attrs.field(factory=dict)
    _offsets: dict[str, int] = attrs.field(factory=dict)
    _done: set[str] = attrs.field(factory=set)

    async def next(self) -> Sequence[WatchEvent] | None:
        self.calls += 1
        await trio.lowlevel.checkpoint()
        while len(self._done) < len(self.tasks):
            if events := self._news():
                return events
            async with trio.open_nursery() as nursery:
                for task in self.tasks.values():
                    if task is not None and not task.ended:
                        nursery.start_soon(_wait_then_cancel, task.changed, nursery.cancel_scope)
        return None

    def _news(self) -> list[WatchEvent]:
        for task_id, task in self.tasks.items():
            if task_id in self._done:
                continue
            if task is None:
                self._done.add(task_id)
                return [TaskNotFound(task_id=task_id)]
            if self._seen.get(task_id) is not task.snapshot:
                self._seen[task_id] = task.snapshot
                return [TaskSnapshotted(snapshot=task.snapshot, progress=TaskProgress(total=2, succeeded=1))]
            if chunk := task.page(self._offsets.get(task_id, 0)):
                self._offsets[task_id] = chunk.offset + len(chunk.json_lines)
                return [TaskOutputs(task_id=task_id, chunk=chunk)]
            if task.snapshot.result is not None:
                self._done.add(task_id)
                return [TaskResulted(task_id=task_id, result=task.snapshot.result)]
        return []


async def _wait_then_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class FakeWorkerApi:
    """Implements `blockx_worker.ports.WorkerApi`."""

    def __init__(self, *, slots: int = 8) -> None:
        self.slots = slots
        self.tasks: dict[str, FakeTask] = {}
        self.is_serving = True
        self.refuse_with: Exception | None = None
        self.forget_after_submit = False
        self.wait_cancelled = trio.Event()
        self.cancel_reasons: list[str] = []
        self.watchers: list[tuple[tuple[str, ...], bool]] = []
        self.cursors: list[FakeCursor] = []
        self.submitted = trio.Event()
        self.attached = trio.Event()
        self.detached = trio.Event()

    @property
    def serving(self) -> bool:
        return self.is_serving

    def add(self, task_id: str, *, outputs: bytes = b"", end: bool = True) -> FakeTask:
        """A task that a test needs to be there already."""
        task = self._new(TaskRequest(task_id=task_id, timeout_ms=1000, function_call_config=_NO_CONFIG))
        task.outputs = outputs
        if end:
            self.end(task_id)
        return task

    def end(self, task_id: str, state: TaskState = TaskState.SUCCEEDED, **result: Any) -> None:
        """End a task."""
        task = self.tasks[task_id]
        task.change(
            state=state,
            phase=TaskPhase.DONE,
            result=TaskResult(
                task_id=task_id,
                state=state,
                output_count=task.outputs.count(b"\n"),
                output_bytes=len(task.outputs),
                **result,
            ),
        )

    def request_task_slot(self, task_id: str, ttl_ms: int) -> TaskSnapshot:
        self._maybe_refuse()
        if len(self.tasks) >= self.slots:
            raise WorkerError(ErrorCode.NO_SLOT, f"all {self.slots} slots are taken; try again later")
        return TaskSnapshot(
            task_id=task_id, slot_id="slot-1", state=TaskState.ALLOCATED, lease_remaining_ms=ttl_ms or 30_000
        )

    async def submit_task(self, request: TaskRequest, wait_ms: int = 0) -> SubmitReply:
        self._maybe_refuse()
        task = self.tasks.get(request.task_id) or self._new(request)
        if task.request.fingerprint != request.fingerprint:
            raise WorkerError(ErrorCode.TASK_ID_CONFLICT, f"task {request.task_id!r} is another request")
        self.submitted.set()
        with trio.move_on_after(wait_ms / 1000):
            try:
                while wait_ms and not task.ended:
                    await task.changed.wait()
            except trio.Cancelled:
                self.wait_cancelled.set()
                raise
        await trio.lowlevel.checkpoint()
        if self.forget_after_submit:
            del self.tasks[request.task_id]
        fits = task.ended and len(task.outputs) <= PAGE_BYTES
        return SubmitReply(snapshot=task.snapshot, outputs=task.outputs if fits else None)

    def get_task_result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        self._maybe_refuse()
        task = self._find(task_id)
        chunk = task.page(output_offset)
        size = 0 if chunk is None else len(chunk.json_lines)
        return ResultPage(
            snapshot=task.snapshot,
            chunk=chunk,
            next_offset=output_offset + size,
            output_bytes=len(task.outputs),
        )

    @asynccontextmanager
    async def watch(self, task_ids: Sequence[str], *, observe: bool) -> AsyncIterator[FakeCursor]:
        self._maybe_refuse()
        cursor = FakeCursor({task_id: self.tasks.get(task_id) for task_id in task_ids})
        self.cursors.append(cursor)
        watcher = (tuple(task_ids), observe)
        self.watchers.append(watcher)
        self.attached.set()
        try:
            yield cursor
        finally:
            self.watchers.remove(watcher)
            self.detached.set()

    def cancel_task(self, task_id: str, reason: str) -> TaskSnapshot:
        self._maybe_refuse()
        task = self._find(task_id)
        self.cancel_reasons.append(reason)
        self.end(task_id, TaskState.CANCELLED)
        return task.snapshot

    def worker_status(self) -> WorkerStatus:
        self._maybe_refuse()
        return WorkerStatus(
            version="0.1.0",
            profile="block",
            address="127.0.0.1:7420",
            uptime_ms=5,
            draining=False,
            task_slots=self.slots,
            reserved_slots=0,
            running_tasks=len(self.tasks),
            retained_results=0,
            retained_bytes=0,
            function_epoch=1,
            functions=2,
            calls_done=3,
            executors=(ExecutorStatus(executor_id="exec-0", state="RUNNING", pid=17),),
            tasks=tuple(task.snapshot for task in self.tasks.values()),
            admission={"builder": (1, 2, 4)},
            dropped={"TASK_ENDED": 6},
        )

    def _new(self, request: TaskRequest) -> FakeTask:
        snapshot = TaskSnapshot(
            task_id=request.task_id, slot_id="slot-1", state=TaskState.RUNNING, phase=TaskPhase.CALLS
        )
        task = self.tasks[request.task_id] = FakeTask(request, snapshot)
        return task

    def _find(self, task_id: str) -> FakeTask:
        if task_id not in self.tasks:
            raise WorkerError(ErrorCode.NOT_FOUND, f"no task {task_id!r} here; submit it")
        return self.tasks[task_id]

    def _maybe_refuse(self) -> None:
        if self.refuse_with is not None:
            raise self.refuse_with
