"""Everything that can happen to slots and tasks. Facts in the past tense; requests by the name of the request."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import FailedCall, TaskFailure, TaskPhase, TaskRequest, TaskStatistic

__all__ = [
    "CancelTaskRequested",
    "DrainExpired",
    "DrainStarted",
    "PhaseOutcome",
    "ResultRetentionElapsed",
    "SlotLeaseExpired",
    "SlotRequested",
    "SubmitRequested",
    "TaskActivationFailed",
    "TaskActivationPrepared",
    "TaskMeasured",
    "TaskPhaseFinished",
    "TaskTimedOut",
    "WatchAttached",
    "WatchDetached",
    "WatchGraceExpired",
    "WorkerEvent",
    "WriterCommitEnded",
    "WriterCommitStarted",
]


@attrs.frozen(kw_only=True)
class PhaseOutcome:
    """How a phase ended: ``failure`` None is success.

    The calls phase fills ``failed_calls``, ``failed_calls_omitted``, ``output_*``; the plugin phase
    ``plugin_results``; every phase may carry the statistic so far (the last one given wins).
    ``retained_bytes`` is the memory that the outputs kept for clients hold, in bytes.
    """

    failure: TaskFailure | None = None
    failed_calls: tuple[FailedCall, ...] = ()
    failed_calls_omitted: int = 0
    plugin_results: bytes = b""
    statistic: TaskStatistic | None = None
    output_count: int = 0
    output_bytes: int = 0
    retained_bytes: int = 0


@attrs.frozen(kw_only=True)
class SlotRequested:
    """A client asks for a slot for ``task_id``; ``ttl_ms`` 0 means the default."""

    task_id: str
    ttl_ms: int = 0


@attrs.frozen(kw_only=True)
class SubmitRequested:
    """A client submits a task, with a slot or without."""

    request: TaskRequest


@attrs.frozen(kw_only=True)
class TaskActivationPrepared:
    """The function code epoch is pinned and the IO scope open."""

    task_id: str
    slot_id: str
    epoch: int


@attrs.frozen(kw_only=True)
class TaskActivationFailed:
    """The epoch could not be resolved or pinned, or the IO scope not opened."""

    task_id: str
    code: TaskFailureCode
    message: str


@attrs.frozen(kw_only=True)
class TaskPhaseFinished:
    """A phase of a task ended."""

    task_id: str
    phase: TaskPhase
    outcome: PhaseOutcome


@attrs.frozen(kw_only=True)
class TaskMeasured:
    """What a task has cost so far: posted before an end from outside, so that its result can tell."""

    task_id: str
    outcome: PhaseOutcome


@attrs.frozen(kw_only=True)
class WriterCommitStarted:
    """The writer is about to commit one transaction; ``final`` when nothing follows it.

    The answer decides: `CommitGranted` lets it commit, `Dropped` makes it roll back.
    """

    task_id: str
    final: bool


@attrs.frozen(kw_only=True)
class WriterCommitEnded:
    """A commit that is not the last one returned; an end that was put off meanwhile happens now.

    ``written``: a clause that says what has been committed so far and stays, for the failure of a task that ends before
    its last commit.
    """

    task_id: str
    written: str = ""


@attrs.frozen(kw_only=True)
class TaskTimedOut:
    """The task's deadline passed."""

    task_id: str


@attrs.frozen(kw_only=True)
class CancelTaskRequested:
    """A client cancels a task (or gives its leased slot back)."""

    task_id: str
    reason: str = ""


@attrs.frozen(kw_only=True)
class SlotLeaseExpired:
    """The sweep found the lease of ``slot_id`` past its end."""

    slot_id: str


@attrs.frozen(kw_only=True)
class WatchAttached:
    """An owning watcher attached to a task (observers do not count)."""

    task_id: str


@attrs.frozen(kw_only=True)
class WatchDetached:
    """An owning watcher went away."""

    task_id: str


@attrs.frozen(kw_only=True)
class WatchGraceExpired:
    """No owning watcher came back within the grace."""

    task_id: str


@attrs.frozen(kw_only=True)
class ResultRetentionElapsed:
    """The sweep: results older than the retention are to be forgotten."""


@attrs.frozen(kw_only=True)
class DrainStarted:
    """The worker takes no new work from now on."""


@attrs.frozen(kw_only=True)
class DrainExpired:
    """The time to drain is over: what still runs ends as CANCELLED."""


WorkerEvent: TypeAlias = (
    SlotRequested
    | SubmitRequested
    | TaskActivationPrepared
    | TaskActivationFailed
    | TaskMeasured
    | TaskPhaseFinished
    | WriterCommitStarted
    | WriterCommitEnded
    | TaskTimedOut
    | CancelTaskRequested
    | SlotLeaseExpired
    | WatchAttached
    | WatchDetached
    | WatchGraceExpired
    | ResultRetentionElapsed
    | DrainStarted
    | DrainExpired
)
