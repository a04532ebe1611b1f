"""Each named limit that clients or functions can reach: hit on purpose, with the answer that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

COLLECT_ALL = 2
CONFIG = """
task_slots = 3
result_retention_count = 5
result_retention_bytes = 4_000_000
tick_ms = 50
[dispatcher]
executor_max_inflight = 3
executor_max_runnable = 3
task_max_inflight_calls = 5
max_collected_output_bytes = 3_000_000
call_cache_bytes = 1000
actor_slice_calls = 1
outbox_frames = 2
coalesce_frames = 1
inbox_frames = 1
heartbeat_interval_ms = 50
[admission]
executor_task_slots = 1
[stream_build]
batch_max_rows = 7
batch_max_args_bytes = 1024
max_outstanding_batches = 1
[rpc]
output_segment_bytes = 16_384
[log]
user_lines_per_s = 1
"""
FUNCTIONS = """
import os
from blockx_executor import sdk

def double(i):
    return 2 * i

def text(n):
    return "x" * n

def length(text):
    return len(text)

def wait_for(path):
    while not os.path.exists(path):
        sdk.sleep(0.01)
    return path

def nest(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value

def loud(n):
    for i in range(n):
        print("line", i)
    return n
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS}, config=CONFIG)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file whose appearance lets the calls of ``f.wait_for`` return; there at the end in any case."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def test_calls_pass_the_narrowest_queues_in_order(client: OfficialClient) -> None:
    """One call a slice, two frames in an outbox, one in the inbox, three calls an executor, five in the window."""
    n = 1500
    client.submit_calls("narrow", "f.double", [[i] for i in range(n)])
    result = client.wait("narrow")
    assert state_name(result.state) == "SUCCEEDED"
    assert client.outputs("narrow") == [2 * i for i in range(n)]
    assert result.statistic.calls_succeeded == n


def test_no_executor_holds_more_than_its_limit(client: OfficialClient, gate: Path) -> None:
    client.submit_calls("held", "f.wait_for", [[str(gate)]] * 40, call_budget_ms=0)
    client.submit_calls("held-2", "f.wait_for", [[f"{gate}{'/' * i}"] for i in range(40)], call_budget_ms=0)

    def inflight() -> list[int]:
        return [executor.inflight for executor in client.GetWorkerStatus().status.executors]

    eventually(lambda: sum(inflight()) > 0, what="calls on executors")
    for _ in range(20):
        assert max(inflight()) <= 3
    client.CancelTask(task_id="held-2")
    gate.touch()
    assert state_name(client.wait("held").state) == "SUCCEEDED"


def test_a_task_beyond_the_slots_is_refused_and_asked_to_come_again(
    client: OfficialClient, gate: Path
) -> None:
    """A lease takes a slot, a running task takes one, and ended ones give them back."""
    for task_id in ("s1", "s2"):
        client.submit_calls(task_id, "f.wait_for", [[str(gate)]], call_budget_ms=0)
    client.RequestTaskSlot(task_id="s3")
    for refused in (
        lambda: client.submit_calls("s4", "f.double", [[1]]),
        lambda: client.RequestTaskSlot(task_id="s4"),
    ):
        code, details = _refusal(refused)
        assert (code, details.partition(":")[0]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SLOT")
    assert state_name(client.RequestTaskSlot(task_id="s1").task.state) == "RUNNING"
    client.CancelTask(task_id="s3")
    client.submit_calls("s4", "f.double", [[1]])
    gate.touch()
    assert [state_name(client.wait(task_id).state) for task_id in ("s1", "s2", "s4")] == ["SUCCEEDED"] * 3


def test_a_task_waits_for_its_turn_in_a_full_stage(client: OfficialClient, gate: Path) -> None:
    """One task may run calls at a time; the wait is told in the status and counted as queue time."""
    client.submit_calls("stage-1", "f.wait_for", [[str(gate)]], call_budget_ms=0)
    client.submit_calls("stage-2", "f.double", [[1]])

    def waiting() -> bool:
        stage = client.GetWorkerStatus().status.admission["executor"]
        return bool((stage.in_use, stage.waiting, stage.limit) == (1, 1, 1))

    eventually(waiting, what="a full stage")
    client.submit_calls("stage-3", "f.double", [[1]], timeout_ms=100)
    assert client.wait("stage-3").failure.code == "TASK_TIMED_OUT"
    gate.touch()
    assert state_name(client.wait("stage-2").state) == "SUCCEEDED"
    assert client.wait("stage-2").statistic.queue_ms >= 50


def test_outputs_beyond_the_limit_of_a_task_end_it(client: OfficialClient) -> None:
    client.submit_calls("large", "f.text", [[100_000 + i] for i in range(100)])
    result = client.wait("large")
    assert (state_name(result.state), result.failure.code) == ("FAILED", "OUTPUT_BYTES_EXCEEDED")
    assert "3000000" in result.failure.message
    assert (result.output_count, client.outputs("large")) == (0, [])


def test_an_output_that_fits_no_message_fails_its_call(client: OfficialClient) -> None:
    """One message between worker and executor holds 16 MiB."""
    client.submit_calls("too-large", "f.text", [[16 << 20], [1]], call_failure_policy=COLLECT_ALL)
    result = client.wait("too-large")
    assert [(call.index, call.error_kind) for call in result.failed_calls] == [(0, "OUTPUT_TOO_LARGE")]
    assert client.outputs("too-large") == [None, "x"]


def test_arguments_that_fit_no_message_fail_their_call(client: OfficialClient) -> None:
    args = [["x" * (16 << 20)], ["x" * 5]]
    client.submit_calls("args", "f.length", args, call_failure_policy=COLLECT_ALL)
    result = client.wait("args")
    assert [(call.index, call.error_kind) for call in result.failed_calls] == [(0, "ARGS_TOO_LARGE")]
    assert client.outputs("args") == [None, 5]


def test_lines_beyond_the_rate_of_output_are_counted(worker: WorkerProcess, client: OfficialClient) -> None:
    client.submit_calls("loud", "f.loud", [[1000]])
    assert state_name(client.wait("loud").state) == "SUCCEEDED"

    def dropped() -> list[dict[str, Any]]:
        return [e for e in worker.log_events("user_output", stream="executor") if "were dropped" in e["text"]]

    eventually(dropped, what="a line that tells of the dropped ones")
    assert len(worker.log_events("user_output", task_id="loud")) < 20


def test_only_the_newest_results_are_kept(client: OfficialClient) -> None:
    for i in range(7):
        client.submit_calls(f"kept-{i}", "f.double", [[i]], wait_ms=5_000)
    status = client.GetWorkerStatus().status
    assert status.retained_results == 5
    code, _ = _refusal(lambda: client.GetTaskResult(task_id="kept-0"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert client.outputs("kept-6") == [12]


def test_results_give_way_when_their_bytes_are_too_many(client: OfficialClient) -> None:
    for i in range(3):
        client.submit_calls(f"bytes-{i}", "f.text", [[1_900_000 + i]], wait_ms=5_000)
    assert client.GetWorkerStatus().status.retained_bytes <= 4_000_000
    assert _refusal(lambda: client.GetTaskResult(task_id="bytes-0"))[0] is grpc.StatusCode.NOT_FOUND
    assert len(client.output_text("bytes-2")) == 1_900_002 + 3


def _refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()
