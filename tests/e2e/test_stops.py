"""Running code really stops: by its budget, by a cancel, and where no exception reaches it by the end of its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

BUDGET_MS = 500
CONFIG = """
tick_ms = 50
function_load_timeout_ms = 2000
executor_restart_delay_ms = 50
[dispatcher]
wedge_grace_ms = 500
cancel_kill_ms = 700
heartbeat_interval_ms = 100
"""
FUNCTIONS = """
import ctypes, os, subprocess, threading, time

def spin():
    while True:
        pass

def spin_through_exceptions():
    while True:
        try:
            while True:
                pass
        except Exception:
            pass

def spin_through_the_first_stops():
    for _ in range(3):
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            pass
    while True:
        pass

def spin_in_finally():
    try:
        while True:
            pass
    finally:
        time.sleep(60)

def sleep():
    time.sleep(60)

def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def wait_for_a_process():
    subprocess.run(["sleep", "60"])

def swallow_everything():
    while True:
        try:
            time.sleep(0.001)
        except BaseException:
            pass

def native_without_gil():
    mutex = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # never returns, and no signal ends it

def native_with_gil():
    ctypes.PyDLL(None).sleep(1000)  # no other thread of the process runs meanwhile

def native_for_a_while(i):
    ctypes.PyDLL(None).usleep(300_000)
    return i

def spin_until_stopped(i):
    spin()

def pid(_):
    return os.getpid()

def double(i):
    return 2 * i
"""
STOPPABLE = [
    "spin",
    "spin_through_exceptions",
    "spin_through_the_first_stops",
    "spin_in_finally",
    "sleep",
    "wait_for_a_lock",
    "wait_for_a_process",
]
WEDGING = ["swallow_everything", "native_without_gil", "native_with_gil"]


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    """One executor: what follows a stopped call runs in the process that was stopped."""
    return start_worker({"f": FUNCTIONS}, executors=1, config=CONFIG)


@pytest.fixture(scope="module")
def pair(start_worker: StartWorker) -> Iterator[tuple[WorkerProcess, OfficialClient]]:
    """A worker with two executors and a client of it."""
    stuck = "while True:\n    pass\n\ndef function():\n    return 1\n"
    worker = start_worker({"f": FUNCTIONS, "stuck": stuck}, executors=2, config=CONFIG)
    with OfficialClient(worker.address) as client:
        yield worker, client


@pytest.mark.parametrize("function", STOPPABLE)
def test_a_budget_stops_running_python_code_and_the_process_goes_on(
    worker: WorkerProcess, client: OfficialClient, function: str
) -> None:
    task_id = f"budget-{function}"
    [executor] = worker.executor_pids()
    client.submit_calls(task_id, f"f.{function}", [[]], call_budget_ms=BUDGET_MS)
    result = client.wait(task_id, timeout=20)
    assert (state_name(result.state), result.failure.code) == ("FAILED", "CALLS_FAILED")
    assert (result.failure.error_kind, result.failure.call_id) == ("BUDGET_EXCEEDED", f"{task_id}/0")
    assert f"its budget of {BUDGET_MS} ms" in result.failure.message
    assert f"in {function}" in result.failure.stack
    assert _pid(client, f"{task_id}-next") == executor


@pytest.mark.parametrize("function", STOPPABLE)
def test_a_cancel_stops_running_python_code_and_the_process_goes_on(
    worker: WorkerProcess, client: OfficialClient, function: str
) -> None:
    task_id = f"cancel-{function}"
    [executor] = worker.executor_pids()
    client.submit_calls(task_id, f"f.{function}", [[]], call_budget_ms=0)
    _wait_running(client, f"{task_id}/0")
    answer = client.CancelTask(task_id=task_id, reason="the test says so")
    assert state_name(answer.task.state) == "CANCELLED"
    result = client.wait(task_id)
    assert (state_name(result.state), result.failure.code) == ("CANCELLED", "CANCELLED_BY_CLIENT")
    assert "the test says so" in result.failure.message
    assert _pid(client, f"{task_id}-next") == executor


@pytest.mark.parametrize("function", WEDGING)
def test_code_that_cannot_be_stopped_is_killed_and_only_its_call_fails(
    pair: tuple[WorkerProcess, OfficialClient], function: str
) -> None:
    """Calls on the other executor finish, and so do those that were aboard behind it."""
    worker, client = pair
    task_id = f"wedge-{function}"
    before = _whole_pool(worker)
    client.submit_calls(task_id, f"f.{function}", [[]], call_budget_ms=BUDGET_MS)
    _wait_running(client, f"{task_id}/0")
    client.submit_calls(f"{task_id}-others", "f.double", [[i] for i in range(600)])

    result = client.wait(task_id, timeout=20)
    assert (state_name(result.state), result.failure.error_kind) == ("FAILED", "EXECUTOR_WEDGED")
    assert result.failure.call_id == f"{task_id}/0"
    assert f"call {task_id}/0" in result.failure.message
    assert "was killed: stuck in" in result.failure.message
    assert result.statistic.attempts == 1

    others = client.wait(f"{task_id}-others", timeout=20)
    assert state_name(others.state) == "SUCCEEDED"
    assert client.outputs(f"{task_id}-others") == [2 * i for i in range(600)]
    assert others.statistic.calls_failed == 0

    assert len(set(before) - set(_whole_pool(worker))) == 1


@pytest.mark.parametrize("function", WEDGING)
def test_a_cancelled_call_that_does_not_stop_costs_its_process(
    pair: tuple[WorkerProcess, OfficialClient], function: str
) -> None:
    """The task ends at once, the process when its time is up."""
    worker, client = pair
    task_id = f"deaf-{function}"
    before = _whole_pool(worker)
    client.submit_calls(task_id, f"f.{function}", [[]], call_budget_ms=0)
    _wait_running(client, f"{task_id}/0")
    client.CancelTask(task_id=task_id)
    assert state_name(client.wait(task_id).state) == "CANCELLED"
    gone = eventually(lambda: set(before) - set(worker.executor_pids()), what="a killed executor")
    assert len(gone) == 1
    [killed] = worker.log_events("executor_killed", call_id=f"{task_id}/0")
    assert "was cancelled" in killed["reason"]
    _whole_pool(worker)


def test_an_import_that_never_ends_is_killed_and_only_its_call_fails(
    pair: tuple[WorkerProcess, OfficialClient],
) -> None:
    """Never interrupted, since half an import would poison the process."""
    worker, client = pair
    before = _whole_pool(worker)
    client.submit_calls("import", "stuck.function", [[]], call_budget_ms=BUDGET_MS)
    client.submit_calls("import-others", "f.double", [[i] for i in range(600)])
    result = client.wait("import", timeout=30)
    assert (state_name(result.state), result.failure.error_kind) == ("FAILED", "IMPORT_ERROR")
    assert "load time-out of 2000 ms" in result.failure.message
    assert state_name(client.wait("import-others", timeout=30).state) == "SUCCEEDED"
    assert client.outputs("import-others") == [2 * i for i in range(600)]
    assert len(set(before) - set(_whole_pool(worker))) == 1


def test_native_code_below_its_limit_is_busy_and_not_dead(
    pair: tuple[WorkerProcess, OfficialClient],
) -> None:
    """It holds the GIL, so heartbeats stop meanwhile; nobody is killed for it."""
    worker, client = pair
    before = _whole_pool(worker)
    client.submit_calls("busy", "f.native_for_a_while", [[i] for i in range(6)], call_budget_ms=BUDGET_MS)
    assert state_name(client.wait("busy", timeout=20).state) == "SUCCEEDED"
    assert client.outputs("busy") == list(range(6))
    assert worker.executor_pids() == before


def test_the_deadline_of_a_task_stops_its_running_code(worker: WorkerProcess, client: OfficialClient) -> None:
    [executor] = worker.executor_pids()
    client.submit_calls("deadline", "f.spin", [[]], call_budget_ms=0, timeout_ms=300)
    result = client.wait("deadline", timeout=20)
    assert (state_name(result.state), result.failure.code) == ("TIMED_OUT", "TASK_TIMED_OUT")
    assert _pid(client, "deadline-next") == executor


def test_the_first_failure_stops_what_runs_beside_it(
    pair: tuple[WorkerProcess, OfficialClient],
) -> None:
    """FAST_FAIL: a call over its budget ends the task, also while the other executor is in an endless loop."""
    worker, client = pair
    before = _whole_pool(worker)
    client.submit_calls("fast-fail", "f.spin_until_stopped", [[1], [2], [3], [4]], call_budget_ms=300)
    result = client.wait("fast-fail", timeout=20)
    assert (state_name(result.state), result.failure.error_kind) == ("FAILED", "BUDGET_EXCEEDED")
    assert result.statistic.calls_failed + result.statistic.calls_cancelled == 4
    assert result.statistic.calls_cancelled >= 2, "calls that had not begun were begun"
    assert _pid(client, "fast-fail-next") in before
    assert worker.executor_pids() == before


def _wait_running(client: OfficialClient, call_id: str) -> None:
    def running() -> bool:
        executors: Any = client.GetWorkerStatus().status.executors
        return any(executor.running_call_id == call_id for executor in executors)

    eventually(running, what=f"{call_id} runs")


def _pid(client: OfficialClient, task_id: str) -> int:
    """The process that runs the next call."""
    client.submit_calls(task_id, "f.pid", [[0]])
    assert state_name(client.wait(task_id, timeout=20).state) == "SUCCEEDED"
    [pid] = client.outputs(task_id)
    return int(pid)


def _whole_pool(worker: WorkerProcess) -> list[int]:
    return eventually(lambda: len(pids := worker.executor_pids()) == 2 and pids, what="two executors") or []
