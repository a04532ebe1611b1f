"""How a worker ends: gently, in time, at once, or by SIGKILL; and what is left of it: nothing."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, alive, eventually

IDLE_S = 15
FUNCTIONS = """
import os
from pathlib import Path
from blockx_executor import sdk

def wait_for(path):
    Path(path + ".begun").touch()
    while not Path(path).exists():
        sdk.sleep(0.01)
    return path

def spin():
    while True:
        pass

def pid():
    return os.getpid()
"""
NATIVE = """
import ctypes, time

def native():
    ctypes.PyDLL(None).sleep(1000)

def fork():
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    return child
"""
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module", autouse=True)
def idler(start_worker: StartWorker) -> WorkerProcess:
    """A worker that nobody talks to while the other tests run."""
    return start_worker({"f": FUNCTIONS}, executors=1)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file whose appearance lets the calls of ``f.wait_for`` return; there at the end in any case."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def test_a_stopping_worker_finishes_its_tasks_and_tells_their_watchers(
    start_worker: StartWorker, gate: Path
) -> None:
    """Meanwhile it answers for what it knows, takes nothing new, and two signals within a second are one."""
    worker = start_worker({"f": FUNCTIONS}, config="drain_timeout_ms = 60_000")
    executors = worker.executor_pids()
    with OfficialClient(worker.address) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        assert _health(health) == SERVING
        client.submit_calls("ended", "f.pid", [[]], wait_ms=10_000)
        client.submit_calls("runs", "f.wait_for", [[str(gate)]], call_budget_ms=0)
        client.submit_calls("cancelled", "f.spin", [[]], call_budget_ms=0)
        slot = client.RequestTaskSlot(task_id="leased", ttl_ms=60_000).task
        watch = client.WatchTasks(task_ids=["runs"], rpc_timeout=60)
        assert next(watch).WhichOneof("event") == "snapshot"

        worker.terminate()
        worker.terminate()
        eventually(lambda: client.GetWorkerStatus().status.draining, what="draining")
        assert _health(health) == NOT_SERVING
        for refused in (
            lambda: client.submit_calls("new", "f.pid", [[]]),
            lambda: client.RequestTaskSlot(task_id="new"),
        ):
            with pytest.raises(grpc.RpcError) as error:
                refused()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert state_name(client.submit_calls("ended", "f.pid", [[]], wait_ms=0).task.state) == "SUCCEEDED"
        assert client.RequestTaskSlot(task_id="leased").task.slot_id == slot.slot_id
        assert client.outputs("ended")[0] in executors
        assert state_name(client.CancelTask(task_id="cancelled").task.state) == "CANCELLED"
        assert state_name(client.wait("cancelled").state) == "CANCELLED"
        assert worker.process.poll() is None, "it did not wait for the running task"

        gate.touch()
        events = list(watch)
        assert state_name(events[-1].result.state) == "SUCCEEDED"
        assert b"".join(event.outputs.json_lines for event in events) == f'"{gate}"\n'.encode()
    assert worker.wait() == 0
    _assert_gone(worker, executors)


def test_past_the_drain_time_tasks_are_cancelled_with_a_reason(start_worker: StartWorker) -> None:
    worker = start_worker({"f": FUNCTIONS}, config="drain_timeout_ms = 300")
    executors = worker.executor_pids()
    with OfficialClient(worker.address) as client:
        client.submit_calls("cut-off", "f.spin", [[]], call_budget_ms=0)
        watch = client.WatchTasks(task_ids=["cut-off"], rpc_timeout=60)
        _until_running(client, "cut-off")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(
                client.submit_calls,
                "cut-off",
                "f.spin",
                [[]],
                call_budget_ms=0,
                wait_ms=60_000,
                rpc_timeout=60,
            )
            worker.terminate()
            result = list(watch)[-1].result
            assert (state_name(result.state), result.failure.code) == ("CANCELLED", "WORKER_SHUTDOWN")
            assert "the worker" in result.failure.message
            assert state_name(waiting.result().task.state) == "CANCELLED"
    assert worker.wait() == 1
    assert worker.log_events("task_finished", task_id="cut-off")[0]["code"] == "WORKER_SHUTDOWN"
    _assert_gone(worker, executors)


def test_a_second_signal_later_skips_the_waits(start_worker: StartWorker) -> None:
    worker = start_worker({"f": FUNCTIONS}, config="drain_timeout_ms = 600_000\ndrain_linger_ms = 600_000")
    executors = worker.executor_pids()
    with OfficialClient(worker.address) as client:
        client.submit_calls("cut-off", "f.spin", [[]], call_budget_ms=0)
        watch = client.WatchTasks(task_ids=["cut-off"], rpc_timeout=60)
        _until_running(client, "cut-off")
        worker.process.send_signal(signal.SIGINT)
        eventually(lambda: worker.log_events("stopping"), what="the first signal")
        time.sleep(1.1)  # within a second it would count as the same signal
        worker.terminate()
        assert list(watch)[-1].result.failure.code == "WORKER_SHUTDOWN"
        assert worker.wait() == 1
    assert len(worker.log_events("stopping_now")) == 1
    _assert_gone(worker, executors)


def test_an_idle_worker_stops_at_once_although_health_is_watched(start_worker: StartWorker) -> None:
    worker = start_worker({"f": FUNCTIONS}, config="drain_timeout_ms = 600_000")
    executors = worker.executor_pids()
    with OfficialClient(worker.address) as client:
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        worker.terminate()
        with pytest.raises(grpc.RpcError) as error:
            assert {reply.status for reply in watch} <= {NOT_SERVING}
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert worker.wait(15) == 0
    _assert_gone(worker, executors)


def test_executors_die_with_a_killed_worker_and_the_next_start_cleans_up(start_worker: StartWorker) -> None:
    """Also one in an endless loop, one in native code that holds the interpreter, and what they have forked."""
    functions = FUNCTIONS + NATIVE
    worker = start_worker({"f": functions}, executors=2)
    executors = worker.executor_pids()
    with OfficialClient(worker.address) as client:
        client.submit_calls("forks", "f.fork", [[]])
        assert state_name(client.wait("forks").state) == "SUCCEEDED"
        executors += client.outputs("forks")
        client.submit_calls("spins", "f.spin", [[]], call_budget_ms=0)
        client.submit_calls("native", "f.native", [[]], call_budget_ms=0)
        _until_running(client, "spins", "native")
    worker.kill()
    eventually(lambda: not any(map(alive, executors)), timeout_s=2, what="executors have died")
    stale = [path for path in worker.leftovers() if path != worker.ready_file]
    assert len(stale) == 1

    worker.start()
    assert worker.log_events("stale_directory_removed", path=str(stale[0]))
    assert not stale[0].exists()
    executors = worker.executor_pids()
    worker.terminate()
    assert worker.wait() == 0
    _assert_gone(worker, executors)


def test_a_worker_that_cannot_start_says_why(idler: WorkerProcess, tmp_path: Path) -> None:
    """Its exit code is 2, and a ready file that a killed worker has left does not stay to tell otherwise."""
    worker = WorkerProcess(tmp_path, {"f": FUNCTIONS}, listen=idler.address)
    worker.ready_file.write_text('{"address": "127.0.0.1:1", "pid": 1, "executors": 1}')
    with pytest.raises(AssertionError, match="ended with 2"):
        worker.start()
    [line] = worker.log_events("cannot_start")
    assert idler.address.partition(":")[2] in line["error"]
    assert not worker.ready_file.exists()


def test_a_worker_whose_executors_cannot_start_says_why(tmp_path: Path) -> None:
    """No such interpreter, one without what executors need, one that breaks: exit code 2, no waiting for a miracle."""
    lacking = _script(tmp_path / "lacking", "echo No module named blockx_executor >&2; exit 1")
    breaking = _script(
        tmp_path / "breaking", f'[ "$1" = -m ] && {{ echo no luck >&2; exit 1; }}; exec {sys.executable} "$@"'
    )
    for python, reason in [
        (tmp_path / "nowhere", "does not exist"),
        (lacking, "blockx-executor"),
        (breaking, "exit code 1"),
    ]:
        worker = WorkerProcess(tmp_path, {}, config=f'executor_python = "{python}"')
        with pytest.raises(AssertionError, match="ended with 2"):
            worker.start()
        assert reason in worker.log_events("cannot_start")[-1]["error"]
    assert worker.log_events("executor_output", text="no luck")


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_executor_that_is_idle_for_long_is_alive(idler: WorkerProcess) -> None:
    """The signal that ends it with its parent follows the parent's thread: that thread must not be a passing one."""
    [executor] = idler.executor_pids()
    started = idler.log_events("executor_attached")[0]["timestamp"]
    while _age_s(started) < IDLE_S:
        time.sleep(0.1)
    assert idler.executor_pids() == [executor]
    assert not idler.log_events("executor_gone")
    with OfficialClient(idler.address) as client:
        client.submit_calls("late", "f.pid", [[]], wait_ms=10_000)
        assert client.outputs("late") == [executor]


def _age_s(timestamp: str) -> float:
    """How long ago the worker wrote a line of its log."""
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()


def _health(stub: Any) -> int:
    return int(stub.Check(health_pb2.HealthCheckRequest()).status)


def _until_running(client: OfficialClient, *task_ids: str) -> None:
    wanted = {f"{task_id}/0" for task_id in task_ids}

    def running() -> bool:
        return wanted <= {executor.running_call_id for executor in client.GetWorkerStatus().status.executors}

    eventually(running, what=f"{wanted} run")


def _assert_gone(worker: WorkerProcess, executors: list[int]) -> None:
    assert not any(map(alive, executors))
    assert worker.leftovers() == []
