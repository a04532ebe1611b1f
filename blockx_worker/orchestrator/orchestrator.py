"""Joins the machines with the world: carries out what they order, for tasks and for calls.

Everything here runs on the Trio thread. `WorkerCommands` and `CallCommands` are total over the commands and decide
nothing. The order when a task ends: slot freed (in the core) → running calls cancelled and dispatch state dropped →
runtime record dropped and its nursery cancelled → ``task_finished`` logged → watchers told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol, assert_never

import attrs
import msgspec
import trio

from blockx_executor.wire.messages import CallWaiting, FromExecutor, ResumeCall, ToExecutor
from blockx_worker.core.commands import (
    AnswerSnapshot,
    ArmTaskDeadline,
    ArmWatchGrace,
    CommitGranted,
    ConvergeTask,
    DisarmWatchGrace,
    Dropped,
    ForgetResult,
    PrepareTaskActivation,
    PublishTask,
    Refuse,
    StartBuilderPhase,
    StartCallPhase,
    StartWriterPhase,
    WorkerCommand,
)
from blockx_worker.core.events import (
    CancelTaskRequested,
    DrainExpired,
    PhaseOutcome,
    TaskActivationFailed,
    TaskActivationPrepared,
    TaskMeasured,
    TaskPhaseFinished,
    TaskTimedOut,
    WatchGraceExpired,
    WorkerEvent,
    WriterCommitEnded,
    WriterCommitStarted,
)
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
    BatchSettled,
    CancelCalls,
    ConvergeTaskCalls,
    DispatchCalls,
    DispatchCommand,
    DispatchDropped,
    GrantProduction,
    KillExecutor,
    RecycleExecutor,
    ResumeCalls,
    ServeCallIo,
    StopCallProduction,
)
from blockx_worker.dispatch.events import CallsFinished, DispatchEvent, DispatchRefused, TaskCallsDropped
from blockx_worker.executors.connection import ExecutorConnection
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure, TaskPhase, TaskResult
from blockx_worker.orchestrator.actor import DispatchActor
from blockx_worker.orchestrator.door import Door
from blockx_worker.orchestrator.outputs import OutputStore
from blockx_worker.orchestrator.phases import Phases, measured
from blockx_worker.orchestrator.runtime import TaskRuntime
from blockx_worker.orchestrator.timers import RetryTimer
from blockx_worker.orchestrator.waits import WaitDesk
from blockx_worker.orchestrator.watching import Hub
from blockx_worker.pool.commands import PoolCommand
from blockx_worker.pool.events import PoolEvent
from blockx_worker.ports import FunctionProvider, IoProvider, StepFailed, Threads
from blockx_worker.telemetry.log import get_logger

__all__ = ["ExecutorLinks", "Orchestrator", "OrchestratorConfig"]

log = get_logger(__name__)


class ExecutorLinks(Protocol):
    """The live executors."""

    def connection(self, executor_id: str) -> ExecutorConnection | None:
        """The connection of an executor, None when it has none."""

    def kill(self, executor_id: str, reason: str) -> None:
        """Kill its process."""

    def recycle(self, executor_id: str, reason: str) -> None:
        """End its process, on which nothing runs, so that another one is started."""


@attrs.frozen(kw_only=True)
class OrchestratorConfig:
    """Limits of the orchestrator; milliseconds unless the name says otherwise."""

    actor_slice_calls: int = 128
    inbox_frames: int = 1024
    writer_commit_timeout_ms: int = 30_000


class Orchestrator:
    """See the module's text. `run` opens the nursery that all tasks live in."""

    def __init__(
        self,
        config: OrchestratorConfig,
        door: Door,
        phases: Phases,
        *,
        functions: FunctionProvider,
        io: IoProvider,
        threads: Threads,
    ) -> None:
        self.door = door
        self.hub = Hub()
        self.runtimes: dict[str, TaskRuntime] = {}
        self.outputs: dict[str, OutputStore] = {}
        self.dropped: Counter[str] = Counter()
        self.links: ExecutorLinks
        self.drained = trio.Event()
        self._config = config
        self._phases = phases
        self._functions = functions
        self._io = io
        self._threads = threads
        self._nursery: trio.Nursery
        self.actor = DispatchActor(
            door, self, slice_calls=config.actor_slice_calls, inbox_frames=config.inbox_frames
        )
        self.retries = RetryTimer(self.actor.post)
        self._waits = WaitDesk(self)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the actor, the retry timer and all tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.actor.run)
            await nursery.start(self.retries.run)
            task_status.started()

    # --- slots and tasks -----------------------------------------------------------------------------------------

    def decide(self, event: WorkerEvent) -> list[WorkerCommand]:
        """Let the core decide, carry out the commands, and return them for the answer among them."""
        for task_id in self._may_end(event):
            self._measure(task_id)
        commands = self.door.decide(event)
        for command in commands:
            self._carry_out(command)
        if self.door.worker.drained:
            self.drained.set()
        return commands

    def _carry_out(self, command: WorkerCommand) -> None:  # noqa: C901, PLR0912 - one arm per command
        match command:
            case AnswerSnapshot() | Refuse() | CommitGranted():
                pass  # answers: whoever asked reads them
            case PrepareTaskActivation():
                self.runtimes[command.task_id] = runtime = TaskRuntime(command.request, command.slot_id)
                self._nursery.start_soon(self._run_task, runtime)
            case ArmTaskDeadline():
                self.runtimes[command.task_id].deadline_ms = command.deadline_ms
            case StartBuilderPhase():
                self._start(command.task_id, self._build)
            case StartCallPhase():
                self._start(command.task_id, self._call)
            case StartWriterPhase():
                self._start(command.task_id, self._write)
            case PublishTask():
                self.hub.notify(command.task_id)
            case ConvergeTask():
                self._converge(command.task_id, command.result)
            case ArmWatchGrace():
                self._arm_grace(command)
            case DisarmWatchGrace():
                self._disarm_grace(command.task_id)
            case ForgetResult():
                self.outputs.pop(command.task_id, None)
                self.hub.notify(command.task_id)
            case Dropped():
                self.dropped[f"{command.event}: {command.reason}"] += 1
                log.debug(
                    "event_dropped", task_id=command.task_id, dropped=command.event, reason=command.reason
                )
            case _:
                assert_never(command)

    def _may_end(self, event: WorkerEvent) -> Sequence[str]:
        """Tasks that ``event`` may end from outside, whatever the core makes of it."""
        match event:
            case TaskTimedOut() | CancelTaskRequested() | WatchGraceExpired():
                return [event.task_id]
            case DrainExpired():
                return list(self.runtimes)
            case _:
                return []

    def _measure(self, task_id: str) -> None:
        """Tell the core what the task has cost; calls that are neither done nor failed will be cancelled."""
        runtime = self.runtimes.get(task_id)
        calls = self.door.dispatcher.statistic(task_id)
        if runtime is not None and calls is not None:
            cut_off = msgspec.structs.replace(calls, cancelled=calls.total - calls.succeeded - calls.failed)
            self.door.decide(TaskMeasured(task_id=task_id, outcome=measured(runtime, cut_off)))

    def _start(self, task_id: str, phase: _PhaseTask) -> None:
        runtime = self.runtimes[task_id]
        assert runtime.nursery is not None
        runtime.nursery.start_soon(phase, runtime)

    async def _run_task(self, runtime: TaskRuntime) -> None:
        """The task's nursery: open until `ConvergeTask` cancels it."""
        if runtime.scope.cancel_called:
            return  # it ended before it began
        with runtime.scope:
            async with trio.open_nursery() as runtime.nursery:
                runtime.nursery.start_soon(self._deadline, runtime)
                self._activate(runtime)
        if runtime.view is not None:
            with trio.CancelScope(shield=True):
                await runtime.io.aclose()

    def _activate(self, runtime: TaskRuntime) -> None:
        task_id = runtime.request.task_id
        try:
            runtime.view = self._functions.current()
            runtime.io = self._io.open_task(task_id)
        except StepFailed as failed:
            self.decide(TaskActivationFailed(task_id=task_id, code=failed.code, message=failed.message))
        except Exception as error:
            log.exception("activation_failed", task_id=task_id)
            message = f"the functions cannot be read: {error}"
            self.decide(
                TaskActivationFailed(task_id=task_id, code=TaskFailureCode.ACTIVATION_FAILED, message=message)
            )
        else:
            self.decide(
                TaskActivationPrepared(task_id=task_id, slot_id=runtime.slot_id, epoch=runtime.view.epoch)
            )

    async def _deadline(self, runtime: TaskRuntime) -> None:
        """Only posts the fact; a commit under way may put the end off."""
        await trio.sleep_until(runtime.deadline_ms / 1000)
        self.decide(TaskTimedOut(task_id=runtime.request.task_id))
        await trio.sleep_forever()

    async def _build(self, runtime: TaskRuntime) -> None:
        assert runtime.view is not None
        self._finish(runtime, TaskPhase.BUILDER, await self._phases.build(runtime, runtime.view))

    async def _call(self, runtime: TaskRuntime) -> None:
        gate = _Gate(self, self._threads, runtime)
        self._finish(runtime, TaskPhase.CALLS, await self._phases.calls(runtime, self.actor, gate))

    async def _write(self, runtime: TaskRuntime) -> None:
        gate = _Gate(self, self._threads, runtime)
        self._finish(runtime, TaskPhase.PLUGIN, await self._phases.write(runtime, gate))

    def _finish(self, runtime: TaskRuntime, phase: TaskPhase, outcome: PhaseOutcome) -> None:
        self.decide(TaskPhaseFinished(task_id=runtime.request.task_id, phase=phase, outcome=outcome))

    def _converge(self, task_id: str, result: TaskResult) -> None:
        if self.door.dispatcher.statistic(task_id) is not None:  # else it ended before its calls began
            self.actor.decide_now(TaskCallsDropped(task_id=task_id, reason=_why(result)))
        runtime = self.runtimes.pop(task_id, None)
        if runtime is not None:
            if runtime.outputs is not None and runtime.plugin is not None and runtime.plugin.keeps_outputs:
                self.outputs[task_id] = runtime.outputs
            runtime.scope.cancel()
        _log_finished(runtime, result)
        self.hub.notify(task_id)

    def _arm_grace(self, command: ArmWatchGrace) -> None:
        runtime = self.runtimes[command.task_id]
        if runtime.nursery is None:
            return  # not running yet: the tick finds a grace that passes before it does
        runtime.grace = trio.CancelScope()
        runtime.nursery.start_soon(self._grace, command, runtime.grace)

    async def _grace(self, command: ArmWatchGrace, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_until(command.deadline_ms / 1000)
            self.decide(WatchGraceExpired(task_id=command.task_id))

    def _disarm_grace(self, task_id: str) -> None:
        runtime = self.runtimes.get(task_id)
        if runtime is not None and runtime.grace is not None:
            runtime.grace.cancel()
            runtime.grace = None

    # --- commits -------------------------------------------------------------------------------------------------

    def commit_started(self, runtime: TaskRuntime, *, final: bool, written: str) -> bool:
        """Ask the core whether the writer may commit; a commit that never returns is bounded here."""
        task_id = runtime.request.task_id
        if self.runtimes.get(task_id) is not runtime:
            return False  # a writer that outlived its task, whose id may be in use again
        commands = self.decide(WriterCommitStarted(task_id=task_id, final=final))
        granted = any(isinstance(command, CommitGranted) for command in commands)
        if granted:
            assert runtime.nursery is not None
            runtime.commit_watch = trio.CancelScope()
            runtime.nursery.start_soon(self._watch_commit, runtime, runtime.commit_watch, written)
        return granted

    def commit_ended(self, runtime: TaskRuntime, *, written: str) -> None:
        """A commit that was not the last one returned."""
        if runtime.commit_watch is not None:
            runtime.commit_watch.cancel()
        if self.runtimes.get(runtime.request.task_id) is runtime:
            self.decide(WriterCommitEnded(task_id=runtime.request.task_id, written=written))

    async def _watch_commit(self, runtime: TaskRuntime, scope: trio.CancelScope, written: str) -> None:
        with scope:
            await trio.sleep(self._config.writer_commit_timeout_ms / 1000)
            message = (
                f"the commit did not return within {self._config.writer_commit_timeout_ms} ms: its rows may or may "
                "not be there; look before you submit the task again"
            )
            message = f"{message}; {written}" if written else message
            failure = TaskFailure(code=TaskFailureCode.PLUGIN_FAILED, message=message)
            self._finish(runtime, TaskPhase.PLUGIN, PhaseOutcome(failure=failure))

    # --- calls ---------------------------------------------------------------------------------------------------

    def carry_out(self, commands: Sequence[DispatchCommand]) -> None:  # noqa: C901, PLR0912 - one arm per command
        """Carry out what the dispatcher orders, in order."""
        for command in commands:
            match command:
                case DispatchCalls():
                    self._dispatch(command)
                case CancelCalls():
                    for cancel in command.calls:
                        self._send(command.executor_id, cancel)
                case ArmCallRetry():
                    self.retries.arm(command)
                case BatchSettled():
                    self._settle(command)
                case ResumeCalls():
                    for index, frame in enumerate(command.frames):
                        self.resume(
                            command.executor_id, frame, command.sidecars[index] if command.sidecars else None
                        )
                case ServeCallIo():
                    self._waits.serve_io(command)
                case GrantProduction():
                    self._grant(command)
                case StopCallProduction():
                    self._stop_production(command.task_id)
                case RecycleExecutor():
                    log.info("executor_recycled", executor_id=command.executor_id, reason=command.message)
                    self.links.recycle(command.executor_id, command.message)
                case ConvergeTaskCalls():
                    self._calls_over(command)
                case KillExecutor():
                    log.warning(
                        "executor_killed",
                        executor_id=command.executor_id,
                        call_id=command.call_id,
                        kind=command.kind,
                        reason=command.message,
                    )
                    self.links.kill(command.executor_id, command.message)
                case DispatchDropped():
                    self.dropped[f"{command.event}: {command.reason}"] += command.count
                case _:
                    assert_never(command)

    def waiting(self, executor_id: str, frame: CallWaiting) -> DispatchEvent | None:
        """Serve what a call waits for, or say what the dispatcher has to decide about it."""
        return self._waits.waiting(executor_id, frame)

    def resume(self, executor_id: str, frame: ResumeCall, sidecar: bytes | None = None) -> None:
        """Send an answer to a call that waits."""
        connection = self.links.connection(executor_id)
        if connection is not None:
            connection.send_resume(frame, sidecar)

    def _dispatch(self, command: DispatchCalls) -> None:
        connection = self.links.connection(command.executor_id)
        if connection is None:
            refused: Sequence[str] = [call.call_id for call in command.calls]
        else:
            report = connection.send_calls(command.calls)
            refused = report.refused
            if report.failed:
                self.actor.post(CallsFinished(executor_id=command.executor_id, frames=report.failed))
        if refused:
            self.actor.post(DispatchRefused(executor_id=command.executor_id, call_ids=refused))

    def _send(self, executor_id: str, message: ToExecutor) -> None:
        connection = self.links.connection(executor_id)
        if connection is not None:  # else it is gone, and so is whoever would read this
            connection.send(message)

    def _settle(self, command: BatchSettled) -> None:
        runtime = self.runtimes.get(command.task_id)
        if runtime is None:
            return
        if runtime.writes is not None:
            runtime.writes.put(command)
        elif runtime.outputs is not None:
            runtime.outputs.append(command.outputs)
            self.hub.notify(command.task_id)

    def _grant(self, command: GrantProduction) -> None:
        runtime = self.runtimes.get(command.task_id)
        if runtime is not None and runtime.production is not None:
            runtime.production.grant(command.batches)

    def _stop_production(self, task_id: str) -> None:
        runtime = self.runtimes.get(task_id)
        if runtime is not None and runtime.production is not None:
            runtime.production.scope.cancel()

    def _calls_over(self, command: ConvergeTaskCalls) -> None:
        runtime = self.runtimes.get(command.task_id)
        if runtime is not None:
            runtime.calls_result = command
            runtime.calls_over.set()

    # --- executors -----------------------------------------------------------------------------------------------

    def post(self, event: DispatchEvent) -> None:
        """Queue a fact for the dispatcher."""
        self.actor.post(event)

    async def frames(self, executor_id: str, frames: Sequence[FromExecutor]) -> None:
        """Queue what a connection read."""
        await self.actor.frames(executor_id, frames)

    def pool_event(self, event: PoolEvent) -> list[PoolCommand]:
        """Let the pool machine decide."""
        return self.door.decide(event)

    def pool_deadline_ms(self) -> int | None:
        """When the pool machine wants to be ticked."""
        deadline = self.door.pool.next_deadline()
        return None if deadline is None else deadline[0]


class _PhaseTask(Protocol):
    async def __call__(self, runtime: TaskRuntime, /) -> None: ...


class _Gate:
    """Asks from the writer's thread."""

    def __init__(self, orchestrator: Orchestrator, threads: Threads, runtime: TaskRuntime) -> None:
        self._orchestrator = orchestrator
        self._threads = threads
        self._runtime = runtime

    def start(self, *, final: bool, written: str = "") -> bool:
        """Ask for leave to commit."""
        ask = partial(self._orchestrator.commit_started, self._runtime, final=final, written=written)
        return self._threads.call_back(ask)

    def ended(self, *, written: str = "") -> None:
        """Report that a commit returned."""
        self._threads.call_back(partial(self._orchestrator.commit_ended, self._runtime, written=written))


def _why(result: TaskResult) -> str:
    return str(result.failure.code) if result.failure else str(result.state)


def _log_finished(runtime: TaskRuntime | None, result: TaskResult) -> None:
    failure = result.failure
    log.info(
        "task_finished",
        task_id=result.task_id,
        state=result.state,
        code=failure.code if failure else None,
        message=failure.message if failure else None,
        labels=runtime.request.labels if runtime and runtime.request.labels else None,
        **{name: value for name, value in attrs.asdict(result.statistic).items() if value},
    )
