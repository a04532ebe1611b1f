"""What the shell holds of one running task. No slot, no phase, no call: those are the machines' alone."""

from __future__ import annotations

import attrs
import trio

from blockx_worker.dispatch.commands import CallsStatistic, ConvergeTaskCalls
from blockx_worker.model.tasks import TaskFailure, TaskRequest, TaskStatistic
from blockx_worker.orchestrator.outputs import OutputStore
from blockx_worker.orchestrator.streams import Production, WriteQueue
from blockx_worker.ports import BatchWriter, BuildResult, FunctionView, TaskIo, WriterPlugin

__all__ = ["PhaseTimes", "TaskRuntime"]


@attrs.define
class PhaseTimes:
    """Where the time of a task went, in core ms; ``queue_ms`` is waiting for admission in all phases."""

    queue_ms: int = 0
    build_ms: int = 0
    call_ms: int = 0
    write_ms: int = 0


@attrs.define(eq=False)
class TaskRuntime:
    """From the acceptance of a task to its end."""

    request: TaskRequest
    slot_id: str
    deadline_ms: int = 0
    view: FunctionView | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    nursery: trio.Nursery | None = None
    grace: trio.CancelScope | None = None
    commit_watch: trio.CancelScope | None = None
    plugin: WriterPlugin | None = None
    built: BuildResult | None = None
    blocks: tuple[int, int] | None = None
    outputs: OutputStore | None = None
    io: TaskIo = attrs.field(init=False)
    production: Production | None = None
    writes: WriteQueue | None = None
    batch_writer: BatchWriter | None = None
    write_failure: TaskFailure | None = None
    calls_over: trio.Event = attrs.field(factory=trio.Event)
    calls_result: ConvergeTaskCalls | None = None
    times: PhaseTimes = attrs.field(factory=PhaseTimes)

    def statistic(self, calls: CallsStatistic) -> TaskStatistic:
        """The books so far."""
        return TaskStatistic(
            calls_total=calls.total,
            calls_succeeded=calls.succeeded,
            calls_failed=calls.failed,
            calls_cancelled=calls.cancelled,
            attempts=calls.attempts,
            retries=calls.retries,
            cache_hits=calls.cache_hits,
            output_bytes=calls.output_bytes,
            executor_ms=calls.run_us // 1000,
            subcalls=calls.subcalls,
            io_requests=calls.io_requests,
            **attrs.asdict(self.times),
        )
