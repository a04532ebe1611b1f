"""Everything that can happen to calls and executors.

These are msgspec structs rather than attrs classes because they travel on the hot path, in batches; terminal frames
go in as they were decoded from the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from blockx_executor.wire.messages import (
    CallCompleted,
    CallError,
    CallFailed,
    CallWaiting,
    HeartbeatPayload,
    ResumeCallPayload,
    ReturnedCall,
)
from blockx_worker.dispatch.source import CallBatch, CallSource, ResolvedFunction
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskFailure

__all__ = [
    "CallBatchProduced",
    "CallProductionEnded",
    "CallRetryDue",
    "CallWaitOver",
    "CallWaitRequested",
    "CallsFinished",
    "CallsGivenBack",
    "DispatchEvent",
    "DispatchRefused",
    "DispatchTurn",
    "ExecutorAttached",
    "ExecutorHeartbeat",
    "ExecutorLost",
    "ExecutorObserved",
    "ExecutorsSwept",
    "SubcallRequested",
    "TaskCallsDropped",
    "TaskCallsStarted",
]


class _Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all events."""


class TaskCallsStarted(_Event, frozen=True):
    """The calls phase of a task begins; its calls come from ``source``.

    ``max_output_bytes`` 0 = unlimited. ``call_budget_ms`` 0 = none.
    """

    task_id: str
    instance_id: str
    source: CallSource
    failure_policy: CallFailurePolicy
    retry_policy: CallRetryPolicy
    call_budget_ms: int
    max_output_bytes: int = 0


class TaskCallsDropped(_Event, frozen=True):
    """The task has ended: cancel what is in flight and forget the task."""

    task_id: str
    reason: str


class CallsFinished(_Event, frozen=True):
    """Terminal frames as they were read from one executor's connection, in order."""

    executor_id: str
    frames: Sequence[CallCompleted | CallFailed]


class CallsGivenBack(_Event, frozen=True):
    """Attempts that an executor never started and gave back."""

    executor_id: str
    calls: Sequence[ReturnedCall]
    reason: str


class CallWaitRequested(_Event, frozen=True):
    """A call waits for a back end (``wait_kind`` io)."""

    executor_id: str
    frame: CallWaiting


class CallWaitOver(_Event, frozen=True):
    """The back end of a wait has answered; ``payload`` goes to the call if it still waits for ``request_id``.

    ``sidecar``: raw bytes that travel behind the frame.
    """

    executor_id: str
    task_id: str
    call_id: str
    attempt_seq: int
    request_id: int
    payload: ResumeCallPayload
    sidecar: bytes | None = None


class SubcallRequested(_Event, frozen=True):
    """A running call calls a function of its task's epoch; ``function`` None: ``error`` says why it cannot be had."""

    executor_id: str
    frame: CallWaiting
    function: ResolvedFunction | None
    error: CallError | None = None


class CallBatchProduced(_Event, frozen=True):
    """A streaming builder made the next batch of a task's calls."""

    task_id: str
    batch: CallBatch


class CallProductionEnded(_Event, frozen=True):
    """A streaming builder made its last batch, or failed: then ``failure`` is the task's."""

    task_id: str
    failure: TaskFailure | None = None


class DispatchRefused(_Event, frozen=True):
    """Calls that were dispatched but never sent: outbox full, or the executor gone before the send."""

    executor_id: str
    call_ids: Sequence[str]


class CallRetryDue(_Event, frozen=True):
    """The back-off of an attempt is over."""

    task_id: str
    call_id: str
    attempt_seq: int


class ExecutorAttached(_Event, frozen=True):
    """An executor's first heartbeat arrived; ``usable_contexts`` is how many calls it can hold."""

    executor_id: str
    usable_contexts: int


class ExecutorHeartbeat(_Event, frozen=True):
    """A later heartbeat of an attached executor."""

    executor_id: str
    heartbeat: HeartbeatPayload


class ExecutorObserved(_Event, frozen=True):
    """The tick read an executor's black box: a hint only, since user code could have written it.

    ``call_no`` 0 = no call owns the main thread; ``since`` changes with every switch; ``loading`` while code is
    compiled or imported for that call.
    """

    executor_id: str
    call_no: int
    since: int
    loading: bool


class ExecutorLost(_Event, frozen=True):
    """An executor's connection is gone and its process dead; every call aboard is lost.

    ``exit_code`` as `subprocess` gives it (negative = signal), None when unknown. ``killed_by_us`` when the worker
    sent the signal. ``running_call_no`` is the last word of its black box, 0 = none.
    """

    executor_id: str
    message: str
    exit_code: int | None
    killed_by_us: bool
    running_call_no: int


class ExecutorsSwept(_Event, frozen=True):
    """The tick: look for wedged calls, cancels without an answer and silent executors."""


class DispatchTurn(_Event, frozen=True):
    """Go on with at most ``max_calls`` calls: enter windows, serve cache hits, choose executors, settle, converge."""

    max_calls: int


DispatchEvent: TypeAlias = (
    TaskCallsStarted
    | TaskCallsDropped
    | CallBatchProduced
    | CallProductionEnded
    | CallsGivenBack
    | CallWaitRequested
    | CallWaitOver
    | SubcallRequested
    | CallsFinished
    | DispatchRefused
    | CallRetryDue
    | ExecutorAttached
    | ExecutorHeartbeat
    | ExecutorObserved
    | ExecutorLost
    | ExecutorsSwept
    | DispatchTurn
)
