"""The six RPCs without gRPC.

Unary methods decide at once and answer from one of the commands; only waiting and watching take time. Nothing here
knows protobuf, and every refusal is a `WorkerError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import attrs
import trio

from blockx_worker import __version__
from blockx_worker.core.commands import AnswerSnapshot, Refuse, WorkerCommand
from blockx_worker.core.events import (
    CancelTaskRequested,
    SlotRequested,
    SubmitRequested,
    WatchAttached,
    WatchDetached,
)
from blockx_worker.executors.supervisor import ExecutorSupervisor
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import ENDED_STATES, TaskRequest, TaskSnapshot
from blockx_worker.model.watch import ExecutorStatus, OutputChunk, ResultPage, TaskProgress, WorkerStatus
from blockx_worker.orchestrator.orchestrator import Orchestrator
from blockx_worker.orchestrator.outputs import OutputStore
from blockx_worker.orchestrator.phases import Admission
from blockx_worker.orchestrator.watching import Cursor
from blockx_worker.ports import FunctionProvider, SubmitReply

__all__ = ["Api", "ApiConfig"]


@attrs.frozen(kw_only=True)
class ApiConfig:
    """``inline_output_bytes``: outputs up to this size are part of the answer to a waiting submit."""

    profile: str = ""
    progress_interval_ms: int = 250
    inline_output_bytes: int = 1024 * 1024


class Api:
    """Implements `blockx_worker.ports.WorkerApi`."""

    def __init__(
        self,
        config: ApiConfig,
        orchestrator: Orchestrator,
        supervisor: ExecutorSupervisor,
        functions: FunctionProvider,
        admission: Admission,
    ) -> None:
        self.config = config
        self._orchestrator = orchestrator
        self._door = orchestrator.door
        self._supervisor = supervisor
        self._functions = functions
        self._admission = admission
        self._started_s = trio.current_time()
        self.address = ""
        self.on_accepted: Callable[[TaskRequest], None] | None = None  # told of each new task, once

    # --- unary ---------------------------------------------------------------------------------------------------

    def request_task_slot(self, task_id: str, ttl_ms: int) -> TaskSnapshot:
        """Lease a slot; ``ttl_ms`` 0 = default."""
        return _answer(self._orchestrator.decide(SlotRequested(task_id=task_id, ttl_ms=ttl_ms))).snapshot

    async def submit_task(self, request: TaskRequest, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end. A shadow of another worker's task writes nothing."""
        if request.is_shadow:
            request = attrs.evolve(request, result_handler=None)
        answer = _answer(self._orchestrator.decide(SubmitRequested(request=request)))
        if answer.created and self.on_accepted is not None:
            self.on_accepted(request)
        snapshot = answer.snapshot
        if wait_ms > 0 and snapshot.state not in ENDED_STATES:
            snapshot = await self._wait_for_end(request.task_id, wait_ms) or snapshot
        return SubmitReply(snapshot=snapshot, outputs=self._inline_outputs(snapshot))

    def get_task_result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""
        snapshot = self._known(task_id)
        store = self._outputs(task_id)
        size = store.output_bytes if store else 0
        if not 0 <= output_offset <= size:
            message = (
                f"output_offset: expected 0 to {size} (the bytes of output there are), got {output_offset}"
            )
            raise WorkerError(ErrorCode.INVALID_ARGUMENT, message)
        chunk = store.read(output_offset) if store else None
        next_offset = output_offset if chunk is None else output_offset + len(chunk.json_lines)
        return ResultPage(snapshot=snapshot, chunk=chunk, next_offset=next_offset, output_bytes=size)

    def cancel_task(self, task_id: str, reason: str) -> TaskSnapshot:
        """Cancel a task, or give a leased slot back; idempotent."""
        return _answer(
            self._orchestrator.decide(CancelTaskRequested(task_id=task_id, reason=reason))
        ).snapshot

    def worker_status(self) -> WorkerStatus:
        """The worker as it stands."""
        now_ms = self._door.now_ms()
        counts = self._door.worker.counts(now_ms)
        view = self._functions.current()
        active = [self._door.worker.snapshot(task_id, now_ms) for task_id in self._door.worker.active_tasks()]
        return WorkerStatus(
            version=__version__,
            profile=self.config.profile,
            address=self.address,
            uptime_ms=round((trio.current_time() - self._started_s) * 1000),
            draining=counts.draining,
            task_slots=counts.slots,
            reserved_slots=counts.allocated,
            running_tasks=counts.running,
            retained_results=counts.retained_results,
            retained_bytes=counts.retained_bytes,
            function_epoch=view.epoch,
            functions=len(view.function_ids),
            calls_done=self._door.dispatcher.calls_done,
            executors=self._executors(),
            tasks=tuple(snapshot for snapshot in active if snapshot is not None),
            admission=self._admission.use(),
            dropped=dict(sorted(self._orchestrator.dropped.items())),
        )

    @property
    def serving(self) -> bool:
        """False while no executor is attached or the worker drains."""
        counts = self._door.worker.counts(self._door.now_ms())
        return self._door.dispatcher.has_attached_executor and not counts.draining

    # --- watching ------------------------------------------------------------------------------------------------

    def watch(self, task_ids: Sequence[str], *, observe: bool) -> AbstractAsyncContextManager[Cursor]:
        """Watch tasks; leaving the context detaches."""
        return self._watch(tuple(dict.fromkeys(task_ids)), observe=observe)

    @asynccontextmanager
    async def _watch(self, task_ids: Sequence[str], *, observe: bool) -> AsyncIterator[Cursor]:
        owned = () if observe else tuple(filter(self._door.worker.is_active, task_ids))
        with self._owning(owned), self._orchestrator.hub.subscribe(task_ids) as subscription:
            yield Cursor(self, subscription, task_ids, self.config.progress_interval_ms)

    @contextmanager
    def _owning(self, task_ids: Sequence[str]) -> Iterator[None]:
        for task_id in task_ids:
            self._orchestrator.decide(WatchAttached(task_id=task_id))
        try:
            yield
        finally:
            # who watched an ended task is no news
            for task_id in filter(self._door.worker.is_active, task_ids):
                self._orchestrator.decide(WatchDetached(task_id=task_id))

    def version_of(self, task_id: str) -> int:
        """Rises with every visible change of a task."""
        return self._door.worker.version_of(task_id)

    def snapshot_of(self, task_id: str) -> TaskSnapshot | None:
        """The task now."""
        return self._door.worker.snapshot(task_id, self._door.now_ms())

    def progress_of(self, task_id: str) -> TaskProgress | None:
        """How far its calls are."""
        return self._door.dispatcher.progress(task_id)

    def outputs_of(self, task_id: str, offset: int) -> OutputChunk | None:
        """The next piece of its outputs."""
        store = self._outputs(task_id)
        return store.read(offset) if store else None

    # --- helpers -------------------------------------------------------------------------------------------------

    def _known(self, task_id: str) -> TaskSnapshot:
        snapshot = self.snapshot_of(task_id)
        if snapshot is None:
            message = f"task {task_id!r} is not known here: it was never submitted to this worker or its result is no longer kept"
            raise WorkerError(ErrorCode.NOT_FOUND, message)
        return snapshot

    def _outputs(self, task_id: str) -> OutputStore | None:
        """Outputs that clients may read: those of a plugin that keeps them."""
        runtime = self._orchestrator.runtimes.get(task_id)
        if runtime is None:
            return self._orchestrator.outputs.get(task_id)
        return runtime.outputs if runtime.plugin is not None and runtime.plugin.keeps_outputs else None

    def _inline_outputs(self, snapshot: TaskSnapshot) -> bytes | None:
        if snapshot.state not in ENDED_STATES:
            return None
        store = self._outputs(snapshot.task_id)
        if store is None:
            return b""
        return store.joined() if store.output_bytes <= self.config.inline_output_bytes else None

    async def _wait_for_end(self, task_id: str, wait_ms: int) -> TaskSnapshot | None:
        with self._orchestrator.hub.subscribe([task_id]) as subscription, trio.move_on_after(wait_ms / 1000):
            while (snapshot := self.snapshot_of(task_id)) is not None and snapshot.state not in ENDED_STATES:
                await subscription.wait(float("inf"))
        return self.snapshot_of(task_id)

    def _executors(self) -> tuple[ExecutorStatus, ...]:
        attached = {view.executor_id: view for view in self._door.dispatcher.executors()}
        statuses = []
        for slot in self._door.pool.slots():
            executor_id = f"exec-{slot.slot}"
            view = attached.get(executor_id)
            statuses.append(
                ExecutorStatus(
                    executor_id=executor_id,
                    state=slot.state,
                    pid=self._supervisor.pid_of(executor_id),
                    inflight=view.inflight if view else 0,
                    runnable=view.runnable if view else 0,
                    memory_bytes=view.memory_bytes if view else 0,
                    running_call_id=view.running_call_id if view else "",
                )
            )
        return tuple(statuses)


def _answer(commands: Sequence[WorkerCommand]) -> AnswerSnapshot:
    for command in commands:
        if isinstance(command, AnswerSnapshot):
            return command
        if isinstance(command, Refuse):
            raise WorkerError(command.code, command.message)
    raise AssertionError(f"the core gave no answer: {commands}")
