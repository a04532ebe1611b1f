"""What comes back: protobuf messages as the model's words.

A newer worker may send a state or code that this client does not know; that is an error that says so.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Any, TypeVar

import betterproto

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import (
    FailedCall,
    TaskFailure,
    TaskPhase,
    TaskResult,
    TaskSnapshot,
    TaskState,
    TaskStatistic,
)
from blockx_worker.model.watch import (
    ExecutorStatus,
    OutputChunk,
    ResultPage,
    TaskNotFound,
    TaskOutputs,
    TaskProgress,
    TaskResulted,
    TaskSnapshotted,
    WatchEvent,
    WorkerStatus,
)
from blockx_worker.ports import SubmitReply
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

__all__ = ["to_event", "to_page", "to_snapshot", "to_status", "to_submit_reply"]

E = TypeVar("E", bound=StrEnum)


def to_snapshot(message: pb.TaskSnapshot) -> TaskSnapshot:
    """A task as it stands."""
    return TaskSnapshot(
        task_id=message.task_id,
        slot_id=message.slot_id,
        state=_member(TaskState, message.state.name),
        phase=_member(TaskPhase, message.phase.name) if message.phase.value else None,
        lease_remaining_ms=message.lease_remaining_ms,
        result=None if message.result is None else _result(message.result),
    )


def to_submit_reply(message: pb.SubmitTaskResponse) -> SubmitReply:
    """The answer to a submit."""
    return SubmitReply(snapshot=to_snapshot(message.task), outputs=message.outputs)


def to_page(message: pb.GetTaskResultResponse) -> ResultPage:
    """A result with one page of outputs."""
    return ResultPage(
        snapshot=to_snapshot(message.task),
        chunk=None if message.outputs is None else _chunk(message.outputs),
        next_offset=message.next_offset,
        output_bytes=message.output_bytes,
    )


def to_event(message: pb.TaskEvent) -> WatchEvent | None:
    """News of a watched task; None for a kind that this client does not know."""
    kind: str
    value: Any
    kind, value = betterproto.which_one_of(message, "event")
    match kind:
        case "snapshot":
            return TaskSnapshotted(snapshot=to_snapshot(value), progress=_progress(value.progress))
        case "outputs":
            return TaskOutputs(task_id=message.task_id, chunk=_chunk(value))
        case "result":
            return TaskResulted(task_id=message.task_id, result=_result(value))
        case "not_found":
            return TaskNotFound(task_id=message.task_id)
        case _:
            return None


def to_status(message: pb.WorkerStatus) -> WorkerStatus:
    """The worker as it stands."""
    fields = _fields(message)
    fields["executors"] = tuple(ExecutorStatus(**_fields(executor)) for executor in message.executors)
    fields["tasks"] = tuple(to_snapshot(task) for task in message.tasks)
    fields["admission"] = {
        stage: (use.in_use, use.waiting, use.limit) for stage, use in sorted(message.admission.items())
    }
    return WorkerStatus(**fields)


def _progress(message: pb.TaskProgress | None) -> TaskProgress | None:
    return None if message is None else TaskProgress(**_fields(message))


def _chunk(message: pb.OutputChunk) -> OutputChunk:
    return OutputChunk(**_fields(message))


def _result(message: pb.TaskResult) -> TaskResult:
    fields = _fields(message)
    fields["state"] = _member(TaskState, message.state.name)
    fields["failure"] = None if message.failure is None else _failure(message.failure)
    fields["failed_calls"] = tuple(FailedCall(**_fields(call)) for call in message.failed_calls)
    fields["statistic"] = TaskStatistic(**_fields(message.statistic))
    return TaskResult(**fields)


def _failure(message: pb.TaskFailure) -> TaskFailure:
    return TaskFailure(**_fields(message) | {"code": _member(TaskFailureCode, message.code)})


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message whose names are those of its counterpart in the model."""
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}


def _member(words: type[E], name: str | None) -> E:
    try:
        return words(name or "")
    except ValueError:
        raise ValueError(
            f"the worker sent a {words.__name__} that this client does not know ({name}); update the client"
        ) from None
