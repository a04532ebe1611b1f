"""The model, its messages and back: nothing is lost, and every word has a counterpart."""

from __future__ import annotations

import attrs
import pytest
from grpclib.const import Status

from blockx_worker.client import convert
from blockx_worker.model.errors import ErrorCode, TaskFailureCode, WorkerError
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
from blockx_worker.rpc import replies
from blockx_worker.rpc.errors import STATUS_OF_CODE, to_grpc_error, to_worker_error
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

STATISTIC = TaskStatistic(**{field.name: i + 1 for i, field in enumerate(attrs.fields(TaskStatistic))})
RESULT = TaskResult(
    task_id="t1",
    state=TaskState.FAILED,
    failure=TaskFailure(
        code=TaskFailureCode.CALLS_FAILED,
        message="m",
        call_id="c",
        function_id="f",
        args_preview="[1]",
        error_kind="USER_ERROR",
        stack="s",
        locals={"x": "1"},
    ),
    failed_calls=(FailedCall(index=0, error_kind="USER_ERROR", message="m", args_preview="[1]", attempts=3),),
    failed_calls_omitted=7,
    plugin_results=b'{"rows":3}',
    statistic=STATISTIC,
    output_count=3,
    output_bytes=12,
)
SNAPSHOT = TaskSnapshot(
    task_id="t1",
    slot_id="slot-1",
    state=TaskState.FAILED,
    phase=TaskPhase.DONE,
    lease_remaining_ms=5,
    result=RESULT,
)
CHUNK = OutputChunk(offset=4, first_index=2, count=1, json_lines=b"123\n")


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("phase", [None, *TaskPhase])
def test_every_state_and_phase_survives(state: TaskState, phase: TaskPhase | None) -> None:
    snapshot = TaskSnapshot(task_id="t", slot_id="s", state=state, phase=phase)
    message = pb.TaskSnapshot.FromString(replies.from_snapshot(snapshot).SerializeToString())
    assert convert.to_snapshot(message) == snapshot


@pytest.mark.parametrize(
    "event",
    [
        TaskSnapshotted(snapshot=SNAPSHOT),
        TaskSnapshotted(snapshot=SNAPSHOT, progress=TaskProgress(total=0, succeeded=1, failed=2, inflight=3)),
        TaskSnapshotted(snapshot=SNAPSHOT, progress=TaskProgress()),
        TaskOutputs(task_id="t1", chunk=CHUNK),
        TaskResulted(task_id="t1", result=RESULT),
        TaskResulted(task_id="t1", result=TaskResult(task_id="t1", state=TaskState.SUCCEEDED)),
        TaskNotFound(task_id="t1"),
    ],
)
def test_every_event_survives(event: WatchEvent) -> None:
    assert convert.to_event(pb.TaskEvent.FromString(replies.from_event(event).SerializeToString())) == event


def test_an_event_of_a_newer_worker_is_passed_over() -> None:
    assert convert.to_event(pb.TaskEvent.FromString(b"\x0a\x01t\x7a\x00")) is None


def test_a_state_of_a_newer_worker_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="TaskState that this client does not know"):
        convert.to_snapshot(pb.TaskSnapshot.FromString(b"\x18\x63"))


@pytest.mark.parametrize("outputs", [None, b"", b"1\n"])
def test_absent_and_empty_outputs_differ(outputs: bytes | None) -> None:
    reply = SubmitReply(snapshot=SNAPSHOT, outputs=outputs)
    message = pb.SubmitTaskResponse.FromString(replies.from_submit_reply(reply).SerializeToString())
    assert convert.to_submit_reply(message) == reply


@pytest.mark.parametrize("chunk", [None, CHUNK])
def test_pages_survive(chunk: OutputChunk | None) -> None:
    page = ResultPage(snapshot=SNAPSHOT, chunk=chunk, next_offset=8, output_bytes=12)
    message = pb.GetTaskResultResponse.FromString(replies.from_page(page).SerializeToString())
    assert convert.to_page(message) == page


def test_the_status_survives_without_results() -> None:
    status = WorkerStatus(
        version="1",
        profile="block",
        address="a:1",
        uptime_ms=1,
        draining=True,
        task_slots=2,
        reserved_slots=3,
        running_tasks=4,
        retained_results=5,
        retained_bytes=6,
        function_epoch=7,
        functions=8,
        calls_done=9,
        executors=(ExecutorStatus(executor_id="exec-0", state="RUNNING", pid=1, running_call_id="c"),),
        tasks=(SNAPSHOT,),
        admission={"builder": (1, 2, 3)},
        dropped={"TASK_ENDED": 4},
    )
    message = pb.GetWorkerStatusResponse.FromString(replies.from_status(status).SerializeToString()).status
    assert convert.to_status(message) == attrs.evolve(status, tasks=(attrs.evolve(SNAPSHOT, result=None),))


def test_every_refusal_has_a_status_and_can_be_read_back() -> None:
    assert set(STATUS_OF_CODE) == set(ErrorCode)
    assert Status.OK not in STATUS_OF_CODE.values()
    for code in ErrorCode:
        error = to_worker_error(to_grpc_error(WorkerError(code, "a: b")).message)
        assert error is not None
        assert (error.code, error.message) == (code, "a: b")


@pytest.mark.parametrize("message", [None, "", "NO_SLOT", "Socket closed", "OOPS: x"])
def test_other_messages_are_no_refusals(message: str | None) -> None:
    assert to_worker_error(message) is None
