"""What goes out: the model's words as protobuf messages.

They are made with the protobuf runtime, not with betterproto: making and encoding a task with its result takes 20 µs
instead of 500 (measured), on the thread that everybody shares.

Clients with default settings refuse messages above 4 MiB. Output pieces are at most 1 MiB by themselves; here the rest
of a result is bounded as well: long texts are cut, and failed calls beyond about 1 MiB are counted instead of listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import attrs

from blockx_worker.model.tasks import FailedCall, TaskFailure, TaskResult, TaskSnapshot, TaskState
from blockx_worker.model.watch import (
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
from blockx_worker.rpc.descriptors import strict_type
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

__all__ = [
    "from_cancel",
    "from_event",
    "from_page",
    "from_slot",
    "from_snapshot",
    "from_status",
    "from_submit_reply",
]

MAX_TEXT_CHARS = 32_768
MAX_LOCAL_NAME_CHARS = 256
MAX_LOCAL_CHARS = 2048
MAX_LOCALS = 64
MAX_FAILED_CALLS_BYTES = 2**20
MAX_FAILED_CALL_CHARS = 4096


def from_snapshot(snapshot: TaskSnapshot, progress: TaskProgress | None = None) -> Any:
    """A task as it stands."""
    return _message(
        pb.TaskSnapshot,
        task_id=snapshot.task_id,
        slot_id=snapshot.slot_id,
        state=_state(snapshot.state),
        phase=pb.TaskPhase.from_string("UNSPECIFIED" if snapshot.phase is None else snapshot.phase.value),
        lease_remaining_ms=snapshot.lease_remaining_ms,
        result=None if snapshot.result is None else _result(snapshot.result),
        progress=None if progress is None else _message(pb.TaskProgress, **attrs.asdict(progress)),
    )


def from_slot(snapshot: TaskSnapshot) -> Any:
    """The answer to a request for a slot."""
    return _message(pb.RequestTaskSlotResponse, task=from_snapshot(snapshot))


def from_cancel(snapshot: TaskSnapshot) -> Any:
    """The answer to a cancel."""
    return _message(pb.CancelTaskResponse, task=from_snapshot(snapshot))


def from_submit_reply(reply: SubmitReply) -> Any:
    """The answer to a submit."""
    return _message(pb.SubmitTaskResponse, task=from_snapshot(reply.snapshot), outputs=reply.outputs)


def from_page(page: ResultPage) -> Any:
    """A result with one page of outputs."""
    return _message(
        pb.GetTaskResultResponse,
        task=from_snapshot(page.snapshot),
        outputs=None if page.chunk is None else _chunk(page.chunk),
        next_offset=page.next_offset,
        output_bytes=page.output_bytes,
    )


def from_event(event: WatchEvent) -> Any:
    """News for a watcher."""
    match event:
        case TaskSnapshotted():
            snapshot = from_snapshot(event.snapshot, event.progress)
            return _message(pb.TaskEvent, task_id=event.snapshot.task_id, snapshot=snapshot)
        case TaskOutputs():
            return _message(pb.TaskEvent, task_id=event.task_id, outputs=_chunk(event.chunk))
        case TaskResulted():
            return _message(pb.TaskEvent, task_id=event.task_id, result=_result(event.result))
        case TaskNotFound():
            return _message(pb.TaskEvent, task_id=event.task_id, not_found=_message(pb.TaskNotFound))


def from_status(status: WorkerStatus) -> Any:
    """The worker as it stands; its tasks without their results, which would not fit."""
    plain = attrs.asdict(status, recurse=False)
    plain["executors"] = [
        _message(pb.ExecutorStatus, **attrs.asdict(executor)) for executor in status.executors
    ]
    plain["tasks"] = [from_snapshot(attrs.evolve(task, result=None)) for task in status.tasks]
    plain["admission"] = {
        stage: _message(pb.AdmissionStatus, in_use=in_use, waiting=waiting, limit=limit)
        for stage, (in_use, waiting, limit) in status.admission.items()
    }
    plain["dropped"] = dict(status.dropped)
    return _message(pb.GetWorkerStatusResponse, status=_message(pb.WorkerStatus, **plain))


def _message(kind: type, **fields: Any) -> Any:
    """A message of the protobuf runtime; a field that is None is left out."""
    return strict_type(kind)(**{name: value for name, value in fields.items() if value is not None})


def _chunk(chunk: OutputChunk) -> Any:
    return _message(pb.OutputChunk, **attrs.asdict(chunk))


def _result(result: TaskResult) -> Any:
    failed_calls = _fitting(result.failed_calls)
    return _message(
        pb.TaskResult,
        task_id=result.task_id,
        state=_state(result.state),
        failure=None if result.failure is None else _failure(result.failure),
        failed_calls=failed_calls,
        failed_calls_omitted=result.failed_calls_omitted + len(result.failed_calls) - len(failed_calls),
        plugin_results=result.plugin_results,
        statistic=_message(pb.TaskStatistic, **attrs.asdict(result.statistic)),
        output_count=result.output_count,
        output_bytes=result.output_bytes,
    )


def _state(state: TaskState) -> pb.TaskState:
    return pb.TaskState.from_string(state.value)


def _failure(failure: TaskFailure) -> Any:
    return _message(
        pb.TaskFailure,
        code=failure.code.value,
        message=_cut(failure.message, MAX_TEXT_CHARS),
        call_id=failure.call_id,
        function_id=failure.function_id,
        args_preview=_cut(failure.args_preview, MAX_TEXT_CHARS),
        error_kind=failure.error_kind,
        stack=_cut(failure.stack, MAX_TEXT_CHARS),
        locals={
            _cut(name, MAX_LOCAL_NAME_CHARS): _cut(value, MAX_LOCAL_CHARS)
            for name, value in islice(failure.locals.items(), MAX_LOCALS)
        },
    )


def _fitting(calls: Sequence[FailedCall]) -> list[Any]:
    """As many failed calls from the first on as fit."""
    fitting: list[Any] = []
    room = MAX_FAILED_CALLS_BYTES
    for call in calls:
        message = _cut(call.message, MAX_FAILED_CALL_CHARS)
        preview = _cut(call.args_preview, MAX_FAILED_CALL_CHARS)
        room -= (
            len(message.encode()) + len(preview.encode()) + len(call.error_kind) + 32
        )  # tags, lengths, numbers
        if room < 0:
            break
        fitting.append(
            _message(
                pb.FailedCall,
                index=call.index,
                error_kind=call.error_kind,
                message=message,
                args_preview=preview,
                attempts=call.attempts,
            )
        )
    return fitting


def _cut(text: str, most: int) -> str:
    """The text, cut and without what UTF-8 cannot hold (a message may quote a lone surrogate of a user's string)."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut if cut.isascii() else cut.encode(errors="backslashreplace").decode()
