"""Instances share the executors: who asks for little does not wait for who asks for much."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

BIG, SMALL = 100_000, 100
CONFIG = """
tick_ms = 50
[dispatcher]
instance_fairness = true
instance_fairness_quantum = {quantum}
"""
FUNCTIONS = """
import time

def increment(i):
    return i + 1

def works(i):
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        pass
    return i + 1
"""


@pytest.fixture(scope="module", params=[0, 16], ids=["call by call", "quantum of 16"])
def worker(start_worker: StartWorker, request: pytest.FixtureRequest) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS}, config=CONFIG.format(quantum=request.param))


def test_a_small_instance_ends_long_before_a_big_one(client: OfficialClient) -> None:
    """The big one has a hundred thousand calls in the queue when the small one comes with a hundred."""
    client.submit_calls("big", "f.increment", [[i] for i in range(BIG)], instance_id="big")
    eventually(lambda: done(client, "big") > 0, what="the big one has begun")
    before = done(client, "big")
    client.submit_calls(
        "small", "f.increment", [[i] for i in range(SMALL)], instance_id="small", wait_ms=60_000
    )
    meanwhile = done(client, "big") - before
    small = client.GetTaskResult(task_id="small")
    assert state_name(small.task.state) == "SUCCEEDED"
    assert meanwhile < BIG // 10
    assert client.outputs("small") == [i + 1 for i in range(SMALL)]
    result = client.wait("big")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("big") == [i + 1 for i in range(BIG)]


def test_time_is_shared_not_calls(client: OfficialClient) -> None:
    """One instance makes long calls in ten tasks, the other short ones in one: the short ones get half of the time."""
    for n in range(10):
        args = [[i] for i in range(n * 200, n * 200 + 200)]
        client.submit_calls(f"long-{n}", "f.works", args, instance_id="long")
    eventually(lambda: done(client, "long-9") > 0, what="the long calls run")
    client.submit_calls("short", "f.increment", [[i] for i in range(5_000)], instance_id="short")
    assert state_name(client.wait("short").state) == "SUCCEEDED"
    left = [n for n in range(10) if state_of(client, f"long-{n}") == "RUNNING"]
    assert left, "the long calls, four times as much work, were over first"
    for n in range(10):
        client.CancelTask(task_id=f"long-{n}")
    for n in range(10):
        client.wait(f"long-{n}")


def done(client: OfficialClient, task_id: str) -> int:
    """How many calls have ended, by the first snapshot of a watch."""
    watch = client.WatchTasks(task_ids=[task_id], observe=True)
    snapshot: Any = next(event.snapshot for event in watch)
    watch.cancel()
    return int(snapshot.progress.succeeded + snapshot.progress.failed)


def state_of(client: OfficialClient, task_id: str) -> str:
    return state_name(client.GetTaskResult(task_id=task_id).task.state)
