"""A conversation with a WorkerCore: say an event at a time, get the commands; the invariants are checked every time."""

from __future__ import annotations

from typing import Any

from blockx_worker.core.commands import (
    AnswerSnapshot,
    ArmTaskDeadline,
    CommitGranted,
    ConvergeTask,
    PrepareTaskActivation,
    Refuse,
    WorkerCommand,
)
from blockx_worker.core.events import (
    PhaseOutcome,
    SlotRequested,
    SubmitRequested,
    TaskActivationPrepared,
    TaskPhaseFinished,
    WorkerEvent,
    WriterCommitStarted,
)
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.worker import WorkerCore
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import (
    TaskFailure,
    TaskPhase,
    TaskRequest,
    TaskResult,
    TaskSnapshot,
    TypedConfig,
)

CONFIG = TypedConfig("CallListCallConfig", b'{"functionId": "m.f", "argsList": [[1]]}')

PHASES = (TaskPhase.BUILDER, TaskPhase.CALLS, TaskPhase.PLUGIN)


def request(task_id: str = "t", **changes: Any) -> TaskRequest:
    """A request with a time-out of 60 s."""
    fields: dict[str, Any] = {"function_call_config": CONFIG, "timeout_ms": 60_000}
    return TaskRequest(task_id=task_id, **(fields | changes))


def failed(code: TaskFailureCode, message: str = "it broke", **outcome: Any) -> PhaseOutcome:
    """The outcome of a phase that failed."""
    return PhaseOutcome(failure=TaskFailure(code=code, message=message), **outcome)


class Talk:
    """One WorkerCore and its clock."""

    def __init__(self, **limits: Any) -> None:
        self.core = WorkerCore(WorkerLimits(**limits))
        self.now = 0

    def say(self, event: WorkerEvent, at: int | None = None) -> list[WorkerCommand]:
        """Post an event, now or at a later time."""
        if at is not None:
            assert at >= self.now
            self.now = at
        commands = self.core.handle(event, self.now)
        self.core.check_invariants()
        return commands

    def ask(self, event: WorkerEvent, at: int | None = None) -> TaskSnapshot:
        """Post a request that is answered; the answer, which is the first command and the only one of its kind."""
        first, *rest = self.say(event, at)
        assert not any(isinstance(command, AnswerSnapshot | Refuse) for command in rest)
        assert isinstance(first, AnswerSnapshot)
        return first.snapshot

    def refusal(self, event: WorkerEvent, at: int | None = None) -> Refuse:
        """Post a request that is refused; that is then the only command."""
        (refusal,) = self.say(event, at)
        assert isinstance(refusal, Refuse)
        return refusal

    def snapshot(self, task_id: str = "t") -> TaskSnapshot:
        """The task as clients see it now."""
        snapshot = self.core.snapshot(task_id, self.now)
        assert snapshot is not None
        return snapshot

    def lease(self, task_id: str = "t", ttl_ms: int = 0) -> str:
        """Lease a slot; its id."""
        return self.ask(SlotRequested(task_id=task_id, ttl_ms=ttl_ms)).slot_id

    def submit(self, task_id: str = "t", **changes: Any) -> str:
        """Submit a task that is accepted; its slot id."""
        answer, prepare, deadline, *_ = self.say(SubmitRequested(request=request(task_id, **changes)))
        assert isinstance(answer, AnswerSnapshot)
        assert isinstance(prepare, PrepareTaskActivation)
        assert isinstance(deadline, ArmTaskDeadline)
        return prepare.slot_id

    def run(self, task_id: str = "t", *, until: TaskPhase = TaskPhase.BUILDER, **changes: Any) -> str:
        """Submit a task and bring it into a phase; its slot id."""
        slot_id = self.submit(task_id, **changes)
        self.say(TaskActivationPrepared(task_id=task_id, slot_id=slot_id, epoch=7))
        for phase in PHASES[: PHASES.index(until)]:
            self.finish_phase(phase, task_id)
        assert self.core.phase_of(task_id) is until
        return slot_id

    def finish_phase(
        self, phase: TaskPhase, task_id: str = "t", outcome: PhaseOutcome | None = None
    ) -> list[WorkerCommand]:
        """A phase ends, successfully unless an outcome says otherwise."""
        return self.say(TaskPhaseFinished(task_id=task_id, phase=phase, outcome=outcome or PhaseOutcome()))

    def commit(self, task_id: str = "t", *, final: bool = True) -> None:
        """The writer begins a commit and is let."""
        granted = self.say(WriterCommitStarted(task_id=task_id, final=final))
        assert granted == [CommitGranted(task_id=task_id)]

    def complete(self, task_id: str = "t", **outcome: Any) -> list[WorkerCommand]:
        """Submit a task and let it succeed; the commands of its last phase."""
        self.run(task_id, until=TaskPhase.PLUGIN)
        return self.finish_phase(TaskPhase.PLUGIN, task_id, PhaseOutcome(**outcome))


def result_of(commands: list[WorkerCommand]) -> TaskResult:
    """The result in the one ConvergeTask among the commands."""
    (converged,) = [command for command in commands if isinstance(command, ConvergeTask)]
    return converged.result


def failure_of(commands: list[WorkerCommand]) -> TaskFailure:
    """The failure in the one ConvergeTask among the commands."""
    failure = result_of(commands).failure
    assert failure is not None
    return failure


def kinds(commands: list[WorkerCommand]) -> list[str]:
    """The names of the commands, in order."""
    return [type(command).__name__ for command in commands]
