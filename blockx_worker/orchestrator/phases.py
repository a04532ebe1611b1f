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
from blockx_worker.dispatch.events import TaskCallsStarted
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure
from blockx_worker.orchestrator.outputs import OutputStore
from blockx_worker.orchestrator.runtime import TaskRuntime
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.ports import (
    BuilderContext,
    Clock,
    CommitGate,
    FunctionView,
    StepFailed,
    Threads,
    WriterContext,
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
        )
        built = await builder.build(context, request.function_call_config.config)
        runtime.built, runtime.blocks = built, built.blocks
        if plugin is not None and handler is not None:
            _check_plugin(lambda: plugin.check(handler.config, built.blocks))
            runtime.plugin = plugin
            runtime.outputs = OutputStore(self._config.output_segment_bytes)
        return PhaseOutcome()

    async def calls(self, runtime: TaskRuntime, start: Callable[[TaskCallsStarted], None]) -> PhaseOutcome:
        """Hand the calls to the dispatcher and wait until they have converged."""
        async with self._admission.enter("executor", runtime):
            started = trio.current_time()
            start(self._calls_started(runtime))
            await runtime.calls_over.wait()
            runtime.times.call_ms = _ms_since(started)
        assert runtime.calls_result is not None
        runtime.built = None  # the argument lists are of no more use
        if _too_many_bytes(runtime.calls_result) and runtime.outputs is not None:
            runtime.outputs = OutputStore(
                self._config.output_segment_bytes
            )  # those settled before go as well
        return _calls_outcome(runtime, runtime.calls_result)

    def _calls_started(self, runtime: TaskRuntime) -> TaskCallsStarted:
        assert runtime.built is not None
        request = runtime.request
        return TaskCallsStarted(
            task_id=request.task_id,
            instance_id=request.instance_id,
            source=runtime.built.source,
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
        plugin, handler, outputs = runtime.plugin, runtime.request.result_handler, runtime.outputs
        assert plugin is not None
        assert handler is not None
        assert outputs is not None
        context = WriterContext(
            task_id=runtime.request.task_id,
            blocks=runtime.blocks,
            threads=self._threads,
            gate=gate,
            wall_ms=self._clock.wall_ms(),
        )
        plugin_results = await plugin.write(context, handler.config, outputs)
        runtime.times.write_ms = _ms_since(started)
        return self._written(runtime, plugin_results)

    def _written(self, runtime: TaskRuntime, plugin_results: bytes) -> PhaseOutcome:
        assert runtime.calls_result is not None
        return attrs.evolve(_calls_outcome(runtime, runtime.calls_result), plugin_results=plugin_results)


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
