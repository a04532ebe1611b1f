"""The phases of one task, each a function that works and returns its outcome.

They decide nothing: an outcome goes to the core, and the core orders what comes next. Here are the named boundaries
where an unexpected exception of a builder or writer is caught, logged and turned into a failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from blockx_worker.builders.registry import BuilderRegistry
from blockx_worker.core.events import PhaseOutcome
from blockx_worker.dispatch.commands import CallsStatistic, ConvergeTaskCalls
from blockx_worker.dispatch.events import (
    CallBatchProduced,
    CallProductionEnded,
    DispatchEvent,
    TaskCallsStarted,
)
from blockx_worker.dispatch.source import StreamSource
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, TaskFailure
from blockx_worker.orchestrator.actor import DispatchActor
from blockx_worker.orchestrator.outputs import OutputStore
from blockx_worker.orchestrator.runtime import TaskRuntime
from blockx_worker.orchestrator.streams import Production, WriteQueue
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.ports import (
    BatchWriter,
    BuilderContext,
    BuildResult,
    Clock,
    CommitGate,
    FunctionView,
    StepFailed,
    StreamingWriterPlugin,
    Threads,
    WriterContext,
    WriterPlugin,
    WriteStopped,
)
from blockx_worker.telemetry.log import get_logger

__all__ = ["Admission", "PhaseConfig", "Phases", "measured"]

log = get_logger(__name__)


class Admission:
    """How many tasks may be in a stage at once. A stage is a fair queue: first come, first served."""

    def __init__(self, *, builder: int, scan: int, executor: int, plugin: int) -> None:
        self.stages = {
            "builder": trio.CapacityLimiter(builder),
            "scan": trio.CapacityLimiter(scan),
            "executor": trio.CapacityLimiter(executor),
            "plugin": trio.CapacityLimiter(plugin),
        }

    @asynccontextmanager
    async def enter(self, stage: str, runtime: TaskRuntime) -> AsyncIterator[None]:
        """Wait for a place in a stage; the wait counts as the task's queue time."""
        asked = trio.current_time()
        async with self.stages[stage]:
            runtime.times.queue_ms += _ms_since(asked)
            yield

    def scan(self) -> AbstractAsyncContextManager[None]:
        """A place for reading block tables."""
        return self.stages["scan"]

    def use(self) -> dict[str, tuple[int, int, int]]:
        """(In use, waiting, limit) of each stage."""
        return {
            name: (limiter.borrowed_tokens, limiter.statistics().tasks_waiting, int(limiter.total_tokens))
            for name, limiter in self.stages.items()
        }


@attrs.frozen(kw_only=True)
class PhaseConfig:
    """Limits of the phases; bytes unless the name says otherwise."""

    output_segment_bytes: int
    max_collected_output_bytes: int
    batch_max_rows: int
    batch_max_args_bytes: int
    max_outstanding_batches: int
    streaming: bool


class Phases:
    """Runs phases with the builders, plugins and admission of one worker."""

    def __init__(
        self,
        config: PhaseConfig,
        *,
        builders: BuilderRegistry,
        plugins: PluginRegistry,
        admission: Admission,
        threads: Threads,
        clock: Clock,
    ) -> None:
        self._config = config
        self._builders = builders
        self._plugins = plugins
        self._admission = admission
        self._threads = threads
        self._clock = clock

    async def build(self, runtime: TaskRuntime, view: FunctionView) -> PhaseOutcome:
        """Find builder and plugin, check their configurations, make the calls."""
        async with self._admission.enter("builder", runtime):
            started = trio.current_time()
            outcome = await _guard(
                lambda: self._build(runtime, view), TaskFailureCode.BUILDER_FAILED, runtime
            )
            runtime.times.build_ms = _ms_since(started)
            return outcome

    async def _build(self, runtime: TaskRuntime, view: FunctionView) -> PhaseOutcome:
        request = runtime.request
        handler = request.result_handler
        plugin = self._plugins.get(handler.type) if handler else None
        builder = self._builders.get(request.function_call_config.type)
        context = BuilderContext(
            task_id=request.task_id,
            view=view,
            threads=self._threads,
            scan=self._admission.scan(),
            batch_max_rows=self._config.batch_max_rows,
            batch_max_args_bytes=self._config.batch_max_args_bytes,
            streaming=self._config.streaming,
        )
        built = await builder.build(context, request.function_call_config.config)
        runtime.built, runtime.blocks = built, built.blocks
        if plugin is not None and handler is not None:
            _check_plugin(lambda: plugin.check(handler.config, built.blocks))
            runtime.plugin = plugin
            if _writes_meanwhile(runtime, built, plugin):
                runtime.writes = WriteQueue(self._config.max_outstanding_batches)
            else:
                runtime.outputs = OutputStore(self._config.output_segment_bytes)
        return PhaseOutcome()

    async def calls(self, runtime: TaskRuntime, actor: DispatchActor, gate: CommitGate) -> PhaseOutcome:
        """Hand the calls to the dispatcher and wait until they have converged, and all their batches are written."""
        async with self._admission.enter("executor", runtime):
            started = trio.current_time()
            outcome = await self._run_calls(runtime, actor, gate)
            runtime.times.call_ms = _ms_since(started)
        runtime.built = None  # the argument lists are of no more use
        return outcome

    async def _run_calls(self, runtime: TaskRuntime, actor: DispatchActor, gate: CommitGate) -> PhaseOutcome:
        built, request = runtime.built, runtime.request
        assert built is not None
        writing: trio.Event | None = None
        async with trio.open_nursery() as nursery:
            if built.stream is not None:
                runtime.production = Production(built.stream, runtime.writes)
                nursery.start_soon(_produce, runtime.production, request.task_id, actor.post)
            if runtime.writes is not None:
                runtime.batch_writer = self._open_writer(runtime, gate)
                writing = await nursery.start(
                    self._write_batches, runtime, runtime.writes, runtime.batch_writer
                )
            # The end of the task must find its calls, or they would run for nobody: they begin at once, not through the
            # inbox, and not after an end that came while admission was taken (that checkpoint is shielded).
            await trio.lowlevel.checkpoint_if_cancelled()
            actor.decide_now(self._calls_started(runtime, built))
            await runtime.calls_over.wait()
            if runtime.writes is not None and writing is not None:
                runtime.writes.close(drain=runtime.write_failure is None and _calls_succeeded(runtime))
                await writing.wait()
            nursery.cancel_scope.cancel()
        return await self._settled(runtime)

    async def _settled(self, runtime: TaskRuntime) -> PhaseOutcome:
        """The outcome of the calls, or of the writer beside them."""
        if runtime.calls_result is not None and _too_many_bytes(runtime.calls_result):
            runtime.outputs = None  # those settled before go as well
        outcome = _calls_outcome(runtime, runtime.calls_result) if runtime.calls_result else PhaseOutcome()
        failure = runtime.write_failure or outcome.failure
        if failure is None or runtime.batch_writer is None:
            return outcome
        written = await runtime.batch_writer.abort()
        message = f"{failure.message}; {written}" if written else failure.message
        return attrs.evolve(outcome, failure=attrs.evolve(failure, message=message))

    def _open_writer(self, runtime: TaskRuntime, gate: CommitGate) -> BatchWriter:
        plugin, handler = runtime.plugin, runtime.request.result_handler
        assert isinstance(plugin, StreamingWriterPlugin)
        assert handler is not None
        return plugin.open(self._writer_context(runtime, gate), handler.config)

    async def _write_batches(
        self,
        runtime: TaskRuntime,
        writes: WriteQueue,
        writer: BatchWriter,
        *,
        task_status: trio.TaskStatus[trio.Event],
    ) -> None:
        """Write until the queue is closed; a failure ends the calls phase. No transaction is ever left open."""

        async def write() -> PhaseOutcome:
            await writes.run(writer, self._admission.stages["plugin"])
            return PhaseOutcome()

        over = trio.Event()
        task_status.started(over)
        try:
            outcome = await _guard(write, TaskFailureCode.PLUGIN_FAILED, runtime)
            runtime.write_failure = outcome.failure
            if outcome.failure is not None:
                runtime.calls_over.set()
        except trio.Cancelled:  # the task was ended from outside
            with trio.CancelScope(shield=True):
                await writer.abort()
            raise
        finally:
            over.set()

    def _calls_started(self, runtime: TaskRuntime, built: BuildResult) -> TaskCallsStarted:
        request = runtime.request
        source = built.source if built.stream is None else StreamSource(built.stream.function)
        assert source is not None
        return TaskCallsStarted(
            task_id=request.task_id,
            instance_id=request.instance_id,
            source=source,
            failure_policy=request.call_failure_policy,
            retry_policy=request.call_retry_policy,
            call_budget_ms=request.call_budget_ms,
            max_output_bytes=self._config.max_collected_output_bytes,
        )

    async def write(self, runtime: TaskRuntime, gate: CommitGate) -> PhaseOutcome:
        """Run the writer on the outputs; without a result handler there is nothing to do."""
        if runtime.plugin is None:
            return self._written(runtime, b"")
        async with self._admission.enter("plugin", runtime):
            started = trio.current_time()
            outcome = await _guard(
                lambda: self._write(runtime, gate, started), TaskFailureCode.PLUGIN_FAILED, runtime
            )
            runtime.times.write_ms = _ms_since(started)
            return outcome

    async def _write(self, runtime: TaskRuntime, gate: CommitGate, started: float) -> PhaseOutcome:
        plugin, handler = runtime.plugin, runtime.request.result_handler
        assert plugin is not None
        assert handler is not None
        if runtime.batch_writer is not None:
            plugin_results = await runtime.batch_writer.finish()
        else:
            assert runtime.outputs is not None
            plugin_results = await plugin.write(
                self._writer_context(runtime, gate), handler.config, runtime.outputs
            )
        runtime.times.write_ms = _ms_since(started)
        return self._written(runtime, plugin_results)

    def _writer_context(self, runtime: TaskRuntime, gate: CommitGate) -> WriterContext:
        return WriterContext(
            task_id=runtime.request.task_id,
            blocks=runtime.blocks,
            threads=self._threads,
            gate=gate,
            wall_ms=self._clock.wall_ms(),
        )

    def _written(self, runtime: TaskRuntime, plugin_results: bytes) -> PhaseOutcome:
        assert runtime.calls_result is not None
        return attrs.evolve(_calls_outcome(runtime, runtime.calls_result), plugin_results=plugin_results)


def _writes_meanwhile(runtime: TaskRuntime, built: BuildResult, plugin: WriterPlugin) -> bool:
    """Whether batches are written as they settle: not where one failed call must keep every row out (COLLECT_ALL)."""
    return (
        built.stream is not None
        and isinstance(plugin, StreamingWriterPlugin)
        and runtime.request.call_failure_policy is CallFailurePolicy.FAST_FAIL
    )


def _calls_succeeded(runtime: TaskRuntime) -> bool:
    return runtime.calls_result is not None and runtime.calls_result.failure is None


async def _produce(production: Production, task_id: str, post: Callable[[DispatchEvent], None]) -> None:
    """Make the batches of a task; the end, or what went wrong, is a fact for the dispatcher."""
    failure: TaskFailure | None = None
    try:
        await production.run(lambda batch: post(CallBatchProduced(task_id=task_id, batch=batch)))
    except StepFailed as failed:
        failure = TaskFailure(code=failed.code, message=failed.message)
    except Exception as error:
        log.exception("phase_defect", task_id=task_id, code=TaskFailureCode.BUILDER_FAILED)
        message = f"internal error ({type(error).__name__}: {error}); the worker's log has the traceback"
        failure = TaskFailure(code=TaskFailureCode.BUILDER_FAILED, message=message)
    post(CallProductionEnded(task_id=task_id, failure=failure))


def measured(runtime: TaskRuntime, calls: CallsStatistic) -> PhaseOutcome:
    """What a task has cost and collected so far."""
    kept = runtime.outputs if runtime.plugin is not None and runtime.plugin.keeps_outputs else None
    return PhaseOutcome(
        statistic=runtime.statistic(calls),
        output_count=kept.count if kept else 0,
        output_bytes=kept.output_bytes if kept else 0,
        retained_bytes=kept.retained_bytes if kept else 0,
    )


def _too_many_bytes(result: ConvergeTaskCalls) -> bool:
    return result.failure is not None and result.failure.code is TaskFailureCode.OUTPUT_BYTES_EXCEEDED


def _calls_outcome(runtime: TaskRuntime, result: ConvergeTaskCalls) -> PhaseOutcome:
    """The dispatcher's result as the core's outcome."""
    return attrs.evolve(
        measured(runtime, result.statistic),
        failure=result.failure,
        failed_calls=result.failed_calls,
        failed_calls_omitted=result.failed_calls_omitted,
    )


async def _guard(
    work: Callable[[], Awaitable[PhaseOutcome]], code: TaskFailureCode, runtime: TaskRuntime
) -> PhaseOutcome:
    """Turn what a builder or writer raises into an outcome."""
    try:
        return await work()
    except StepFailed as failed:
        return PhaseOutcome(failure=TaskFailure(code=failed.code, message=failed.message))
    except WriteStopped:  # its task has ended: the core drops this outcome
        return PhaseOutcome(failure=TaskFailure(code=code, message="the writer was refused leave to commit"))
    except Exception as error:
        log.exception("phase_defect", task_id=runtime.request.task_id, code=code)
        message = f"internal error ({type(error).__name__}: {error}); the worker's log has the traceback"
        return PhaseOutcome(failure=TaskFailure(code=code, message=message))


def _check_plugin(check: Callable[[], None]) -> None:
    """A defect in a plugin's check is the plugin's failure, not the builder's."""
    try:
        check()
    except StepFailed:
        raise
    except Exception as error:
        log.exception("plugin_check_defect")
        raise StepFailed(
            TaskFailureCode.PLUGIN_FAILED, f"internal error ({type(error).__name__}: {error})"
        ) from error


def _ms_since(started: float) -> int:
    return round((trio.current_time() - started) * 1000)
