"""Calls that call: values, failures and cycles as user code sees them, and trees that end as a whole."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

CONFIG = """
tick_ms = 50
executor_restart_delay_ms = 20
executor_max_restarts = 1000
[dispatcher]
heartbeat_interval_ms = 100
"""
FUNCTIONS = '''
import os
from blockx_executor import sdk

DISTINCT = 900

def root(n):
    """Gathers n calls, each two levels deep below it; the last hundred repeat the first."""
    calls = [(branch, i % DISTINCT) for i in range(n)]
    calls[500], calls[700] = (fails, 500), (around, n)
    results = sdk.gather(*calls, return_exceptions=True)
    failed = {i: [r.kind, r.retryable, r.message] for i, r in enumerate(results) if isinstance(r, sdk.SubcallFailed)}
    around_said = results[700]
    values = [r for i, r in enumerate(results) if i not in failed and i != 700]
    return {"count": len(values), "sum": sum(values), "failed": failed, "around": around_said}

def branch(i):
    return i + sdk.call(twig, i // 10)

def twig(i):
    return 1000 * sdk.call("trees.leaf", i)

def leaf(i):
    return i

def fails(i):
    raise ValueError(f"no row {i}")

def around(n):
    """Goes round in a circle, and notices."""
    try:
        sdk.call(root, n)
    except sdk.SubcallFailed as error:
        return [error.kind, error.retryable, error.message]

def pair(i):
    return sdk.gather((f, i), (g, i + 1))

def f(i):
    sdk.sleep(0.02)
    return _other(g, i + 1)

def g(i):
    sdk.sleep(0.02)
    return _other(f, i - 1)

def _other(function, i):
    try:
        return [function.__name__, sdk.call(function, i)]
    except sdk.SubcallFailed as error:
        return error.kind

def parent(i):
    """Some of what it asks for is its own, some is everybody's, some is its neighbour's."""
    own = [(leaf, 1000 * i + n) for n in range(3)]
    return sum(sdk.gather(*own, (rests, 1), (rests, i), (rests, (i + 1) % 128)))

def rests(i):
    sdk.sleep(0.01)
    return i

def rests_for(seconds):
    sdk.sleep(seconds)

def deep(i):
    return 0 if i == 0 else 1 + sdk.call(deep, i - 1)

def family(folder, n):
    with open(f"{folder}/parents", "a") as parents:
        parents.write(f"{os.getpid()}\\n")
    return sum(sdk.gather(*[(child, folder, i) for i in range(n)]))

def child(folder, i):
    for beat in range(10):
        with open(f"{folder}/beats", "a") as beats:
            beats.write(f"{os.getpid()} {i} {beat}\\n")
        sdk.sleep(0.05)
    return i

def endless_family(folder):
    return sdk.gather((middle, folder), (middle, folder + "/."))

def middle(folder):
    return sdk.gather((endless, folder, 1), (endless, folder, 2))

def endless(folder, i):
    while True:
        with open(f"{folder}/beats", "a") as beats:
            beats.write(f"{os.getpid()} {i}\\n")
        sdk.sleep(0.02)

def stubborn_family(folder):
    """Takes no failure of a subcall for an answer."""
    while True:
        try:
            sdk.call(endless, folder, 1)
        except sdk.SubcallFailed:
            pass

def spinning_family(folder):
    return sdk.gather((spins, 1), (spins, 2))

def spins(i):
    while True:
        pass

def tries_again(i):
    return sdk.call(not_at_first, i, sdk.current().attempt)

def not_at_first(i, attempt):
    if attempt < 3:
        raise sdk.Retryable("later")
    return i + 1

def asks_for_nothing_there(i):
    try:
        sdk.call("trees.nobody", i)
    except sdk.SubcallFailed as error:
        return [error.kind, error.message]

def gathers_too_deep(i):
    sdk.call(deep, i)
'''


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    """One executor: whatever a tree needs, it has to get there."""
    return start_worker({"trees": FUNCTIONS}, executors=1, config=CONFIG)


def test_a_thousand_subcalls_three_levels_deep(client: OfficialClient) -> None:
    """Equal ones run once; one that fails and one that goes round in a circle are exceptions in the code that asked."""
    client.submit_calls("thousand", "trees.root", [[1000]], call_budget_ms=30_000)
    result = client.wait("thousand")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    [output] = client.outputs("thousand")
    good = [i % 900 for i in range(1000) if i not in (500, 700)]
    assert (output["count"], output["sum"]) == (998, sum(i + 1000 * (i // 10) for i in good))
    assert output["failed"] == {"500": ["USER_ERROR", False, "ValueError: no row 500"]}
    kind, retryable, message = output["around"]
    assert (kind, retryable) == ("SUBCALL_CYCLE", False)
    assert "trees.root → trees.around → trees.root" in message
    statistic = result.statistic
    branches = len(set(good))
    assert statistic.subcalls == 1000 + branches + len({i // 10 for i in good})
    assert (statistic.calls_total, statistic.calls_succeeded, statistic.attempts) == (1, 1, 1)
    assert (statistic.calls_failed, statistic.retries) == (0, 0)


def test_two_calls_that_each_wait_for_the_other_both_end(client: OfficialClient) -> None:
    """f(1) asks for g(2) while g(2), beside it, asks for f(1): each runs the other itself, and the circle shows there."""
    client.submit_calls("circle", "trees.pair", [[1], [1], [5], [7]])
    result = client.wait("circle", timeout=20)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    for f, g in client.outputs("circle"):
        assert f[0] == "g"
        assert g[0] == "f"
        assert "SUBCALL_CYCLE" in json.dumps([f, g])


def test_parents_that_fill_an_executor_do_not_block_their_subcalls(client: OfficialClient) -> None:
    client.submit_calls("parents", "trees.parent", [[i] for i in range(128)] + [[i] for i in range(200, 400)])
    result = client.wait("parents", timeout=30)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    numbers = [*range(128), *range(200, 400)]
    assert client.outputs("parents") == [3000 * i + 3 + 1 + i + (i + 1) % 128 for i in numbers]


def test_no_subcall_outlives_a_killed_parent_and_the_next_attempt_succeeds(
    worker: WorkerProcess, client: OfficialClient, tmp_path: Path
) -> None:
    n = 50
    [killed] = worker.executor_pids()
    client.submit_calls("killed", "trees.family", [[str(tmp_path), n]])
    eventually(lambda: len(_beats(tmp_path)) > 4 * n, what="they are half-way")
    os.kill(killed, signal.SIGKILL)
    result = client.wait("killed", timeout=30)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("killed") == [sum(range(n))]
    first, second = (int(line) for line in (tmp_path / "parents").read_text().split())
    assert first == killed
    finished = [[pid, i] for pid, i, beat in _beats(tmp_path) if beat == 9]
    assert sorted(finished) == [[second, i] for i in range(n)], "each child ran to its end once"
    assert result.statistic.retries == 1
    _nothing_runs(client)


@pytest.mark.parametrize("function", ["endless_family", "stubborn_family", "spinning_family"])
def test_a_cancelled_parent_takes_all_below_with_it(
    worker: WorkerProcess, client: OfficialClient, tmp_path: Path, function: str
) -> None:
    task_id = f"cancelled-{function}"
    pids = worker.executor_pids()
    client.submit_calls(task_id, f"trees.{function}", [[str(tmp_path)]], call_budget_ms=0)
    if function == "spinning_family":
        eventually(lambda: "/sub-" in _running(client), what="a subcall spins")
    else:
        eventually(lambda: len(_beats(tmp_path)) > 10, what="the subcalls run")
    client.CancelTask(task_id=task_id)
    assert state_name(client.wait(task_id, timeout=20).state) == "CANCELLED"
    _nothing_runs(client)
    _no_beat_follows(client, tmp_path, f"{task_id}-next")
    assert worker.executor_pids() == pids


@pytest.mark.parametrize("function", ["endless_family", "stubborn_family", "spinning_family"])
def test_a_parent_over_its_budget_takes_all_below_with_it(
    worker: WorkerProcess, client: OfficialClient, tmp_path: Path, function: str
) -> None:
    """Its subcalls have no more budget than is left of its own."""
    task_id = f"over-{function}"
    pids = worker.executor_pids()
    client.submit_calls(task_id, f"trees.{function}", [[str(tmp_path)]], call_budget_ms=400)
    result = client.wait(task_id, timeout=20)
    assert state_name(result.state) == "FAILED"
    assert (result.failure.error_kind, result.failure.call_id) == ("BUDGET_EXCEEDED", f"{task_id}/0")
    _nothing_runs(client)
    _no_beat_follows(client, tmp_path, f"{task_id}-next")
    assert worker.executor_pids() == pids


def test_a_retryable_failure_of_a_subcall_is_retryable_for_its_parent(client: OfficialClient) -> None:
    client.submit_calls("again", "trees.tries_again", [[i] for i in range(20)])
    result = client.wait("again")
    assert client.outputs("again") == [i + 1 for i in range(20)]
    assert (result.statistic.retries, result.statistic.attempts) == (40, 60)


def test_depth_has_a_limit_that_code_sees_and_a_failure_names(client: OfficialClient) -> None:
    client.submit_calls("deep", "trees.deep", [[7]])
    assert state_name(client.wait("deep").state) == "SUCCEEDED"
    assert client.outputs("deep") == [7]
    client.submit_calls("too-deep", "trees.gathers_too_deep", [[8]])
    failure = client.wait("too-deep").failure
    assert failure.error_kind == "USER_ERROR"
    assert "SUBCALL_DEPTH: trees.deep would be a subcall at depth 8" in failure.message


def test_a_function_that_is_not_there_is_an_exception_that_names_it(client: OfficialClient) -> None:
    client.submit_calls("nobody", "trees.asks_for_nothing_there", [[1]])
    assert state_name(client.wait("nobody").state) == "SUCCEEDED"
    [[kind, message]] = client.outputs("nobody")
    assert kind == "FUNCTION_NOT_FOUND"
    assert "trees.nobody" in message


def _beats(folder: Path) -> list[list[int]]:
    path = folder / "beats"
    return [list(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def _running(client: OfficialClient) -> str:
    return str(client.GetWorkerStatus().status.executors[0].running_call_id)


def _nothing_runs(client: OfficialClient) -> None:
    def inflight() -> list[Any]:
        return [executor.inflight for executor in client.GetWorkerStatus().status.executors]

    eventually(lambda: not any(inflight()), timeout_s=5, what="no executor holds a call")


def _no_beat_follows(client: OfficialClient, folder: Path, task_id: str) -> None:
    """What still ran would beat while a call of another task rests for a quarter of a second."""
    before = _beats(folder)
    client.submit_calls(task_id, "trees.rests_for", [[0.25]])
    assert state_name(client.wait(task_id).state) == "SUCCEEDED"
    assert _beats(folder) == before
