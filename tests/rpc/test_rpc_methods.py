"""The six RPCs, seen by the official client with default limits."""

from __future__ import annotations

import grpc
import pytest
import structlog
import trio

from blockx_worker.model.errors import ErrorCode, TaskFailureCode, WorkerError
from blockx_worker.model.tasks import CallFailurePolicy, FailedCall, TaskFailure, TaskState
from blockx_worker.rpc.errors import STATUS_OF_CODE
from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import Official, message, serving, with_official

CONFIG = {"type": "CallListCallConfig", "config": b'{"functionId":"a.b"}'}


async def test_submit_reaches_the_api_with_defaults_filled_in() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address:
        reply = await with_official(
            address, lambda client: client.call("SubmitTask", task_id="t1", function_call_config=CONFIG)
        )
    request = api.tasks["t1"].request
    assert reply.task.state == 2  # TASK_STATE_RUNNING
    assert not reply.HasField("outputs")
    assert request.function_call_config.config == b'{"functionId":"a.b"}'
    assert (request.timeout_ms, request.call_budget_ms) == (600_000, 5000)
    assert (request.call_retry_policy.max_attempts, request.call_retry_policy.base_backoff_ms) == (3, 10)
    assert request.call_failure_policy is CallFailurePolicy.FAST_FAIL
    assert request.result_handler is None
    assert request.slot_id is None


async def test_submit_with_wait_answers_with_result_and_outputs() -> None:
    api = FakeWorkerApi()
    async with serving(api) as address, trio.open_nursery() as nursery:

        async def finish() -> None:
            await api.submitted.wait()
            api.tasks["t1"].outputs = b"1\n2\n"
            api.end("t1")

        nursery.start_soon(finish)
        reply = await with_official(
            address,
            lambda client: client.call(
                "SubmitTask", task_id="t1", function_call_config=CONFIG, wait_ms=60_000
            ),
        )
    assert reply.outputs == b"1\n2\n"
    assert reply.task.result.output_count == 2


async def test_slot_cancel_and_status() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)

    def use(client: Official) -> None:
        slot = client.call("RequestTaskSlot", task_id="t9", ttl_ms=1234).task
        assert (slot.state, slot.lease_remaining_ms) == (1, 1234)
        assert client.call("CancelTask", task_id="t1", reason="enough").task.state == 6
        status = client.call("GetWorkerStatus").status
        assert status.executors[0].pid == 17
        assert status.admission["builder"].waiting == 2
        assert status.dropped["TASK_ENDED"] == 6
        assert [task.task_id for task in status.tasks] == ["t1"]
        assert not status.tasks[0].HasField("result")

    async with serving(api) as address:
        await with_official(address, use)
    assert api.cancel_reasons == ["enough"]


async def test_watch_gives_snapshot_outputs_and_result_and_ends() -> None:
    api = FakeWorkerApi()
    api.add("t1", outputs=b"1\n" * 10)
    async with serving(api) as address:
        events = await with_official(
            address,
            lambda client: list(client.call("WatchTasks", task_ids=["t1", "t1", "nope"], observe=True)),
        )
    assert [(event.task_id, event.WhichOneof("event")) for event in events] == [
        ("t1", "snapshot"),
        ("t1", "outputs"),
        ("t1", "result"),
        ("nope", "not_found"),
    ]
    assert events[0].snapshot.progress.total == 2
    assert events[1].outputs.count == 10


async def test_a_result_of_any_size_fits_the_default_limits() -> None:
    """Failures, a page of outputs and everything else together stay below the 4 MiB of the official client."""
    api = FakeWorkerApi()
    api.add("t1", outputs=(b'"' + b"x" * 1000 + b'"\n') * 3000, end=False)
    wide = "\N{GRINNING FACE}" * 100_000
    api.end(
        "t1",
        TaskState.FAILED,
        failure=TaskFailure(
            code=TaskFailureCode.CALLS_FAILED,
            message=wide,
            args_preview=wide,
            stack=wide,
            locals={f"name{i}": wide for i in range(200)},
        ),
        failed_calls=tuple(FailedCall(index=i, error_kind="USER_ERROR", message=wide) for i in range(1000)),
        failed_calls_omitted=5,
    )
    async with serving(api) as address:
        page = await with_official(address, lambda client: client.call("GetTaskResult", task_id="t1"))
    result = page.task.result
    assert result.failure.code == "CALLS_FAILED"
    assert result.failure.stack.endswith("…")
    assert 10 < len(result.failed_calls) < 1000
    assert len(result.failed_calls) + result.failed_calls_omitted == 1005
    assert page.next_offset == 2**20
    assert page.ByteSize() < 4 * 2**20


async def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    api = FakeWorkerApi()
    api.add("t1", end=False)
    failure = TaskFailure(code=TaskFailureCode.CALLS_FAILED, message="bad \ud800 text")
    api.end("t1", TaskState.FAILED, failure=failure)
    async with serving(api) as address:
        page = await with_official(address, lambda client: client.call("GetTaskResult", task_id="t1"))
    assert page.task.result.failure.message == "bad \\ud800 text"


@pytest.mark.parametrize("code", ErrorCode)
async def test_each_refusal_has_its_status_and_its_code_in_the_message(code: ErrorCode) -> None:
    api = FakeWorkerApi()
    api.refuse_with = WorkerError(code, "do something else, 你好")
    async with serving(api) as address:
        status, text = await with_official(address, lambda client: client.refused("GetWorkerStatus"))
    assert status.value[0] == STATUS_OF_CODE[code].value
    assert text == f"{code}: do something else, 你好"


async def test_refusals_arrive_from_every_method() -> None:
    api = FakeWorkerApi()
    api.refuse_with = WorkerError(ErrorCode.UNAVAILABLE, "draining; go to another worker")

    def use(client: Official) -> None:
        assert client.refused("RequestTaskSlot", task_id="t")[0] is grpc.StatusCode.UNAVAILABLE
        assert (
            client.refused("SubmitTask", task_id="t", function_call_config=CONFIG)[0]
            is grpc.StatusCode.UNAVAILABLE
        )
        assert client.refused("GetTaskResult", task_id="t")[0] is grpc.StatusCode.UNAVAILABLE
        assert client.refused("CancelTask", task_id="t")[0] is grpc.StatusCode.UNAVAILABLE
        request = message("WatchTasksRequest", task_ids=["t"])
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE: draining"):
            list(client.method("WatchTasks")(request, timeout=10))

    async with serving(api) as address:
        await with_official(address, use)


async def test_a_long_message_is_cut_to_what_a_header_can_hold() -> None:
    api = FakeWorkerApi()
    api.refuse_with = WorkerError(ErrorCode.NOT_FOUND, "长" * 5000)
    async with serving(api) as address:
        status, text = await with_official(address, lambda client: client.refused("GetWorkerStatus"))
    assert status is grpc.StatusCode.NOT_FOUND
    assert text.startswith("NOT_FOUND: 长")
    assert text.endswith("长…")


async def test_a_defect_is_internal_logged_once_and_harms_nobody() -> None:
    api = FakeWorkerApi()
    api.add("t1")

    def use(client: Official) -> None:
        internal = (grpc.StatusCode.INTERNAL, "internal error; see the worker's log")
        api.refuse_with = ZeroDivisionError("secret detail")
        assert client.refused("GetWorkerStatus") == internal
        assert client.refused("SubmitTask", task_id="t", function_call_config=CONFIG) == internal
        api.refuse_with = None
        assert client.call("GetTaskResult", task_id="t1").task.state == 3

    async with serving(api) as address:
        with structlog.testing.capture_logs() as logs:
            await with_official(address, use)
    assert [(entry["event"], entry["method"].rpartition("/")[2]) for entry in logs] == [
        ("rpc_failed", "GetWorkerStatus"),
        ("rpc_failed", "SubmitTask"),
    ]
