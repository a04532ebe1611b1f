"""Calls that share a process: what one of them does to itself, it does to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually, memory

MIB = 2**20
COLLECT_ALL = 2
CONFIG = """
tick_ms = 50
executor_restart_delay_ms = 20
executor_max_restarts = 1000
[dispatcher]
heartbeat_interval_ms = 100
heartbeat_timeout_ms = 1000
wedge_grace_ms = 500
"""
FUNCTIONS = """
import ctypes, os, time
from blockx_executor import sdk

_leaks = []

def holds_the_gil(seconds):
    ctypes.PyDLL(None).sleep(seconds)  # no other thread of the process runs meanwhile
    return os.getpid()

def rests_or_exits(i, bad):
    return _rests_or(i, bad, lambda: os._exit(7))

def rests_or_crashes(i, bad):
    return _rests_or(i, bad, lambda: ctypes.string_at(0))

def _rests_or(i, bad, end):
    if i == bad:
        sdk.sleep(0.2)
        end()
    sdk.sleep(0.4)
    return i

def slow_or_quick(i):
    until = time.perf_counter() + (2 if i == 0 else 0.0005)
    while time.perf_counter() < until:
        pass
    return [os.getpid(), time.monotonic()]

def leaks(i):
    _leaks.append(bytearray(os.urandom(16)) * (1 << 16))
    time.sleep(0.002)
    return i

def at_second_try(i):
    if i % 100 == 0 and sdk.current().attempt == 1:
        raise sdk.Retryable("not yet")
    return i + 1

def pid(i):
    time.sleep(0.002)
    return os.getpid()
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS}, config=CONFIG)


@pytest.fixture(scope="module")
def single(start_worker: StartWorker) -> Iterator[tuple[WorkerProcess, OfficialClient]]:
    """A worker whose calls are all on one executor."""
    worker = start_worker({"f": FUNCTIONS}, config=CONFIG, executors=1)
    with OfficialClient(worker.address) as client:
        yield worker, client


@pytest.fixture(scope="module", autouse=True)
def busy(start_worker: StartWorker) -> Iterator[tuple[WorkerProcess, OfficialClient, list[int]]]:
    """A worker in which native code keeps one interpreter for 12 seconds while the other tests run."""
    worker = start_worker({"f": FUNCTIONS}, config=CONFIG)
    with OfficialClient(worker.address) as client:
        pids = whole_pool(worker, 2)
        client.submit_calls("native", "f.holds_the_gil", [[12]], call_budget_ms=20_000)
        yield worker, client, pids


@pytest.mark.parametrize("end", ["exits", "crashes"])
def test_a_call_that_ends_its_process_fails_alone(
    single: tuple[WorkerProcess, OfficialClient], end: str
) -> None:
    """With one attempt for each: a hundred others that had been started on the same executor succeed."""
    worker, client = single
    args = [[i, 57] for i in range(101)]
    client.submit_calls(
        end, f"f.rests_or_{end}", args, call_failure_policy=COLLECT_ALL, call_retry_policy={"max_attempts": 1}
    )
    result = client.wait(end, timeout=30)
    [failed] = result.failed_calls
    assert (failed.index, failed.error_kind, failed.attempts) == (57, "EXECUTOR_LOST", 1)
    assert ("exit code 7" if end == "exits" else "signal 11") in failed.message
    assert client.outputs(end) == [None if i == 57 else i for i in range(101)]
    assert result.statistic.calls_succeeded == 100
    whole_pool(worker, 1)


def test_a_call_that_ends_its_process_each_time_is_tried_as_often_as_it_may(
    single: tuple[WorkerProcess, OfficialClient],
) -> None:
    """Those that have been aboard twice run alone then; nobody else fails."""
    _, client = single
    client.submit_calls(
        "again", "f.rests_or_exits", [[i, 2] for i in range(5)], call_failure_policy=COLLECT_ALL
    )
    result = client.wait("again", timeout=30)
    [failed] = result.failed_calls
    assert (failed.index, failed.error_kind, failed.attempts) == (2, "EXECUTOR_LOST", 3)
    assert client.outputs("again") == [0, 1, None, 3, 4]


def test_quick_calls_pass_by_native_code_that_keeps_an_interpreter(
    busy: tuple[WorkerProcess, OfficialClient, list[int]],
) -> None:
    """Its executor cannot say that it is busy, but gets nothing new all the same."""
    _, client, _ = busy
    client.submit_calls("pass-by", "f.pid", [[i] for i in range(500)])
    result = client.wait("pass-by")
    assert state_name(client.GetTaskResult(task_id="native").task.state) == "RUNNING"
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert len(set(client.outputs("pass-by"))) == 1


def test_executors_that_are_all_wedged_come_back(worker: WorkerProcess, client: OfficialClient) -> None:
    """Each call gets its failure, and so does nobody else."""
    before = whole_pool(worker, 2)
    for n in (1, 2):
        client.submit_calls(f"wedged-{n}", "f.holds_the_gil", [[1000]], call_budget_ms=300)
    client.submit_calls("behind", "f.pid", [[i] for i in range(100)])
    for n in (1, 2):
        failure = client.wait(f"wedged-{n}", timeout=20).failure
        assert (failure.error_kind, failure.call_id) == ("EXECUTOR_WEDGED", f"wedged-{n}/0")
        assert f"stuck in call wedged-{n}/0" in failure.message
    assert state_name(client.wait("behind", timeout=20).state) == "SUCCEEDED"
    after = whole_pool(worker, 2)
    assert not set(before) & set(after)
    assert set(client.outputs("behind")) <= set(after)


def test_quick_calls_do_not_wait_for_a_slow_one(worker: WorkerProcess, client: OfficialClient) -> None:
    """Those that were sent to its executor go to the other one."""
    whole_pool(worker, 2)
    client.submit_calls("mixed", "f.slow_or_quick", [[i] for i in range(501)], call_budget_ms=10_000)
    result = client.wait("mixed")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    (slow_pid, slow_end), *quick = client.outputs("mixed")
    assert max(end for _, end in quick) < slow_end
    assert {pid for pid, _ in quick} - {slow_pid}
    assert result.statistic.retries == 0


def test_an_executor_that_leaks_is_replaced_without_losing_a_call(start_worker: StartWorker) -> None:
    limit = 100 * MIB
    config = CONFIG + f"executor_memory_recycle_bytes = {limit}\n"
    worker = start_worker({"f": FUNCTIONS}, config=config, executors=1)
    before = whole_pool(worker, 1)
    with OfficialClient(worker.address) as client:
        client.submit_calls("leaks", "f.leaks", [[i] for i in range(600)])
        result = client.wait("leaks", timeout=60)
        assert state_name(result.state) == "SUCCEEDED", result.failure
        assert client.outputs("leaks") == list(range(600))
        assert (result.statistic.attempts, result.statistic.retries) == (600, 0)
        assert len(worker.log_events("executor_recycled")) >= 2
        after = whole_pool(worker, 1)
    assert before != after
    assert memory(after[0]) < 4 * limit


def test_three_hundred_thousand_calls_leave_nothing_behind(start_worker: StartWorker) -> None:
    """No memory, no descriptor, no thread; some calls are tried twice, so timers have been set, too."""
    worker = start_worker({"f": FUNCTIONS}, config="result_retention_count = 1\n" + CONFIG)
    with OfficialClient(worker.address) as client:

        def run(part: int) -> list[tuple[int, int, int]]:
            args = b"[%b]" % b",".join([b"[%d]" % i for i in range(part * 100_000, (part + 1) * 100_000)])
            client.submit_calls(f"part-{part}", "f.at_second_try", args)
            result = client.wait(f"part-{part}")
            assert state_name(result.state) == "SUCCEEDED", result.failure
            assert result.statistic.retries == 1000
            status = client.GetWorkerStatus().status
            assert all(executor.inflight == 0 for executor in status.executors)
            return [use(pid) for pid in (worker.pid, *worker.executor_pids())]

        first = run(0)
        run(1)
        last = run(2)
    for (memory_0, files_0, threads_0), (memory_1, files_1, threads_1) in zip(first, last, strict=True):
        assert memory_1 - memory_0 < 16 * MIB
        assert files_1 <= files_0
        assert threads_1 <= threads_0


def test_instances_that_share_nothing_meet_in_no_process(start_worker: StartWorker) -> None:
    worker = start_worker({"f": FUNCTIONS}, config='executor_share = "instance"\n' + CONFIG)
    with OfficialClient(worker.address) as client:
        pids: dict[str, set[int]] = {"one": set(), "two": set()}
        for n in range(2):
            for instance in pids:
                client.submit_calls(
                    f"{instance}-{n}", "f.pid", [[i] for i in range(200)], instance_id=instance
                )
            for instance, seen in pids.items():
                result = client.wait(f"{instance}-{n}", timeout=30)
                assert state_name(result.state) == "SUCCEEDED", result.failure
                assert result.statistic.retries == 0
                seen.update(client.outputs(f"{instance}-{n}"))
    assert pids["one"]
    assert pids["two"]
    assert not pids["one"] & pids["two"]


def test_native_code_within_its_budget_is_busy_not_dead(
    busy: tuple[WorkerProcess, OfficialClient, list[int]],
) -> None:
    """No heartbeat came for 12 seconds, and nobody was killed."""
    worker, client, pids = busy
    result = client.wait("native", timeout=30)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("native")[0] in pids
    assert worker.executor_pids() == pids
    assert not worker.log_events("executor_killed")


def whole_pool(worker: WorkerProcess, size: int) -> list[int]:
    """Process ids of the executors once all of them serve."""

    def serving() -> list[int]:
        with OfficialClient(worker.address) as client:
            states = [e.state for e in client.GetWorkerStatus().status.executors]
        pids = worker.executor_pids()
        return pids if len(pids) == size and states == ["RUNNING"] * size else []

    return eventually(serving, what=f"{size} executors serve")


def use(pid: int) -> tuple[int, int, int]:
    """Memory, open files and threads of a process."""
    files, threads = (len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("fd", "task"))
    return memory(pid), files, threads
