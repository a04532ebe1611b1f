"""What WorkerCore orders. The shell carries the commands out in order and decides nothing."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from blockx_worker.model.errors import ErrorCode
from blockx_worker.model.tasks import TaskRequest, TaskResult, TaskSnapshot

__all__ = [
    "AnswerSnapshot",
    "ArmTaskDeadline",
    "ArmWatchGrace",
    "CommitGranted",
    "ConvergeTask",
    "DisarmWatchGrace",
    "Dropped",
    "ForgetResult",
    "PrepareTaskActivation",
    "PublishTask",
    "Refuse",
    "StartBuilderPhase",
    "StartCallPhase",
    "StartWriterPhase",
    "WorkerCommand",
]


@attrs.frozen(kw_only=True)
class AnswerSnapshot:
    """Answer to a request: the slot or task as it stands. ``created`` False when the id was known before."""

    snapshot: TaskSnapshot
    created: bool


@attrs.frozen(kw_only=True)
class Refuse:
    """Answer to a request: refused, nothing changed."""

    code: ErrorCode
    message: str


@attrs.frozen(kw_only=True)
class PrepareTaskActivation:
    """Pin the epoch, open the IO scope, then post activation prepared or failed."""

    task_id: str
    slot_id: str
    request: TaskRequest


@attrs.frozen(kw_only=True)
class ArmTaskDeadline:
    """Post `TaskTimedOut` at ``deadline_ms`` (core time)."""

    task_id: str
    deadline_ms: int


@attrs.frozen(kw_only=True)
class StartBuilderPhase:
    """Run the call builder."""

    task_id: str


@attrs.frozen(kw_only=True)
class StartCallPhase:
    """Hand the builder's calls to the dispatcher."""

    task_id: str


@attrs.frozen(kw_only=True)
class StartWriterPhase:
    """Run the writer plugin on the outputs; without a result handler it succeeds at once."""

    task_id: str


@attrs.frozen(kw_only=True)
class CommitGranted:
    """The writer may commit: until it reports back, nothing else can end the task."""

    task_id: str


@attrs.frozen(kw_only=True)
class ConvergeTask:
    """The task has ended: its slot is free, stop and drop what the shell holds of it, tell the watchers."""

    task_id: str
    result: TaskResult


@attrs.frozen(kw_only=True)
class PublishTask:
    """State or phase of a task changed: wake its watchers."""

    task_id: str


@attrs.frozen(kw_only=True)
class ArmWatchGrace:
    """Post `WatchGraceExpired` at ``deadline_ms`` (core time) unless disarmed."""

    task_id: str
    deadline_ms: int


@attrs.frozen(kw_only=True)
class DisarmWatchGrace:
    """An owner is back: the grace of this task is off."""

    task_id: str


@attrs.frozen(kw_only=True)
class ForgetResult:
    """The retained result was purged: drop its output segments and wake its watchers."""

    task_id: str


@attrs.frozen(kw_only=True)
class Dropped:
    """An event that came too late or for something else; counted by ``reason``, nothing changed."""

    event: str
    reason: str
    task_id: str = ""


WorkerCommand: TypeAlias = (
    AnswerSnapshot
    | Refuse
    | PrepareTaskActivation
    | ArmTaskDeadline
    | StartBuilderPhase
    | StartCallPhase
    | StartWriterPhase
    | CommitGranted
    | ConvergeTask
    | PublishTask
    | ArmWatchGrace
    | DisarmWatchGrace
    | ForgetResult
    | Dropped
)
