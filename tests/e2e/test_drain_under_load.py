"""A worker that stops while many clients use it: no result is lost, and a signal to its whole group harms no call."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name

FUNCTIONS = """
import time

def nap(i):
    time.sleep(0.02)
    return i
"""
CLIENTS = 4
CALLS = 20


def _submit_until_refused(address: str, name: str) -> dict[str, list[int]]:
    """Submit and watch one task after another until the worker takes none; what each accepted one returned."""
    results: dict[str, list[int]] = {}
    with OfficialClient(address) as client:
        for number in range(1000):
            task_id = f"{name}-{number}"
            try:
                client.submit_calls(task_id, "f.nap", [[i] for i in range(CALLS)])
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return results
            text = b""
            for event in client.WatchTasks(task_ids=[task_id]):
                if event.WhichOneof("event") == "outputs":
                    text += event.outputs.json_lines
                elif event.WhichOneof("event") == "result":
                    assert state_name(event.result.state) == "SUCCEEDED", event.result
            results[task_id] = [int(line) for line in text.splitlines()]
    raise AssertionError("the worker never stopped taking tasks")


@pytest.mark.parametrize("group", [False, True], ids=["the worker", "its whole process group"])
def test_every_task_that_was_accepted_is_finished_and_delivered(
    start_worker: StartWorker, group: bool
) -> None:
    """Executors lead sessions of their own: a signal to the group does not reach them before their calls are done."""
    worker = start_worker({"f": FUNCTIONS}, config="drain_timeout_ms = 60_000")
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [
            pool.submit(_submit_until_refused, worker.address, f"c{number}") for number in range(CLIENTS)
        ]
        time.sleep(1)  # the load is on
        if group:
            os.killpg(worker.pid, signal.SIGTERM)
        else:
            worker.terminate()
        results = [client.result(60) for client in clients]
    assert worker.wait() == 0
    assert sum(map(len, results)) >= CLIENTS
    assert all(outputs == list(range(CALLS)) for client in results for outputs in client.values())
