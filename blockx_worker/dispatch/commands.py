"""What DispatcherCore orders. Calls are named by the wire messages themselves, so that nothing is built twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from blockx_executor.wire.messages import CallWaiting, CancelCall, ExecuteCall, ResumeCall
from blockx_worker.model.errors import CallErrorKind
from blockx_worker.model.tasks import FailedCall, TaskFailure

__all__ = [
    "ArmCallRetry",
    "BatchSettled",
    "CallsStatistic",
    "CancelCalls",
    "ConvergeTaskCalls",
    "DispatchCalls",
    "DispatchCommand",
    "DispatchDropped",
    "GrantProduction",
    "KillExecutor",
    "RecycleExecutor",
    "ResumeCalls",
    "ServeCallIo",
    "StopCallProduction",
]


class _Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all commands."""


class DispatchCalls(_Command, frozen=True):
    """Send these calls to this executor, or post `DispatchRefused` for those that cannot be sent."""

    executor_id: str
    calls: Sequence[ExecuteCall]


class CancelCalls(_Command, frozen=True):
    """Tell this executor to stop these attempts."""

    executor_id: str
    calls: Sequence[CancelCall]


class ResumeCalls(_Command, frozen=True):
    """Send these answers to calls that wait; ``sidecars[i]`` are raw bytes behind frame ``i``, None for none."""

    executor_id: str
    frames: Sequence[ResumeCall]
    sidecars: Sequence[bytes | None] = ()


class ServeCallIo(_Command, frozen=True):
    """Ask the back end that this frame names, within the task of the call; answer with `CallWaitOver`."""

    executor_id: str
    frame: CallWaiting


class RecycleExecutor(_Command, frozen=True):
    """This executor has grown too large and is empty now: end its process and start another."""

    executor_id: str
    message: str


class GrantProduction(_Command, frozen=True):
    """The streaming builder of this task may make so many more batches."""

    task_id: str
    batches: int


class ArmCallRetry(_Command, frozen=True):
    """Post `CallRetryDue` at ``due_ms`` (core time)."""

    task_id: str
    call_id: str
    attempt_seq: int
    due_ms: int


class BatchSettled(_Command, frozen=True):
    """All calls of a batch are done; batches of a task settle in order.

    ``outputs[i]`` is the JSON text of the output of call ``first_index + i``, None where the call failed.
    ``blocks_done`` is the batch's own (see `CallBatch`).
    """

    task_id: str
    first_index: int
    outputs: Sequence[bytes | None]
    blocks_done: int | None = None


class StopCallProduction(_Command, frozen=True):
    """The source of this task must produce nothing more."""

    task_id: str


class CallsStatistic(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Books over the root calls of one task; ``run_us`` is executor time in microseconds."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    attempts: int = 0
    retries: int = 0
    cache_hits: int = 0
    output_bytes: int = 0
    run_us: int = 0
    subcalls: int = 0
    io_requests: int = 0


class ConvergeTaskCalls(_Command, frozen=True):
    """The calls phase of a task is over; ``failure`` None is success."""

    task_id: str
    failure: TaskFailure | None
    failed_calls: tuple[FailedCall, ...]
    failed_calls_omitted: int
    statistic: CallsStatistic


class KillExecutor(_Command, frozen=True):
    """Kill this executor's process: `EXECUTOR_WEDGED` names the call, `EXECUTOR_LOST` a silent process."""

    executor_id: str
    kind: CallErrorKind
    call_id: str
    message: str


class DispatchDropped(_Command, frozen=True):
    """Something came too late or for something else; counted by ``reason``, nothing changed."""

    event: str
    reason: str
    call_id: str = ""
    count: int = 1


DispatchCommand: TypeAlias = (
    DispatchCalls
    | ResumeCalls
    | ServeCallIo
    | RecycleExecutor
    | GrantProduction
    | CancelCalls
    | ArmCallRetry
    | BatchSettled
    | StopCallProduction
    | ConvergeTaskCalls
    | KillExecutor
    | DispatchDropped
)
