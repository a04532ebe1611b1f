"""Whose leaving ends a task: that of its last owning watcher, however it left, and after a grace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.proxy import SilentProxy
from tests.support.worker_process import WorkerProcess, eventually

GRACE_MS = 1000
CONFIG = f"""
tick_ms = 50
watch_disconnect_grace_ms = {GRACE_MS}
[rpc]
keepalive_time_ms = 200
keepalive_timeout_ms = 300
"""
FUNCTIONS = """
import os
from blockx_executor import sdk

def wait_for(path):
    while not os.path.exists(path):
        sdk.sleep(0.01)
    return path
"""
WATCHER = """
import sys
from tests.support.official import OfficialClient

address, task_id = sys.argv[1:]
for event in OfficialClient(address).WatchTasks(task_ids=[task_id], rpc_timeout=None):
    print(event.WhichOneof("event"), flush=True)
"""
ROOT = Path(__file__).parents[2]
Submit = Callable[[str], None]


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS}, config=CONFIG)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file whose appearance lets the calls return; there at the end in any case."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


@pytest.fixture
def submit(client: OfficialClient, gate: Path) -> Submit:
    """Submit a task of one call that lasts until the gate is there."""

    def submit(task_id: str) -> None:
        client.submit_calls(task_id, "f.wait_for", [[str(gate)]], call_budget_ms=0)

    return submit


@pytest.fixture
def proxy(worker: WorkerProcess) -> Iterator[SilentProxy]:
    with SilentProxy(worker.address) as proxy:
        yield proxy


def test_a_task_is_cancelled_when_its_watching_client_was_killed(
    worker: WorkerProcess, client: OfficialClient, submit: Submit
) -> None:
    submit("killed")
    with _watching_process(worker.address, "killed") as watcher:
        watcher.kill()
        watcher.wait()
    _assert_cancelled(worker, client, "killed")


def test_a_task_is_cancelled_when_its_watching_client_falls_silent(
    worker: WorkerProcess, client: OfficialClient, submit: Submit, proxy: SilentProxy
) -> None:
    """No connection ends: only the keep-alive can notice."""
    submit("silent")
    with OfficialClient(proxy.address) as silent:
        _watch(silent, "silent")
        proxy.fall_silent()
        _assert_cancelled(worker, client, "silent")


def test_a_task_is_cancelled_when_its_watch_is_cancelled(
    worker: WorkerProcess, client: OfficialClient, submit: Submit
) -> None:
    submit("left")
    _watch(client, "left").cancel()
    _assert_cancelled(worker, client, "left")


def test_a_new_owner_within_the_grace_keeps_the_task(
    client: OfficialClient, submit: Submit, gate: Path
) -> None:
    submit("kept")
    _watch(client, "kept").cancel()
    owner = _watch(client, "kept")
    _wait_out_a_grace(client, submit, "kept")
    assert state_name(client.GetTaskResult(task_id="kept").task.state) == "RUNNING"
    gate.touch()
    assert state_name(list(owner)[-1].result.state) == "SUCCEEDED"


def test_one_owner_of_two_is_enough(client: OfficialClient, submit: Submit, gate: Path) -> None:
    submit("shared")
    owner = _watch(client, "shared")
    _watch(client, "shared").cancel()
    _wait_out_a_grace(client, submit, "shared")
    gate.touch()
    assert state_name(list(owner)[-1].result.state) == "SUCCEEDED"


def test_an_observer_never_owns(client: OfficialClient, submit: Submit, gate: Path) -> None:
    """Its leaving ends nothing, and so does nobody's watching at all."""
    submit("observed")
    _watch(client, "observed", observe=True).cancel()
    _wait_out_a_grace(client, submit, "observed")
    assert state_name(client.GetTaskResult(task_id="observed").task.state) == "RUNNING"
    gate.touch()
    assert state_name(client.wait("observed").state) == "SUCCEEDED"


def test_an_observer_does_not_keep_a_task_that_its_owner_left(
    worker: WorkerProcess, client: OfficialClient, submit: Submit
) -> None:
    """It is told how the task ended."""
    submit("abandoned")
    observer = _watch(client, "abandoned", observe=True)
    _watch(client, "abandoned").cancel()
    _assert_cancelled(worker, client, "abandoned")
    assert list(observer)[-1].result.failure.code == "WATCH_DISCONNECTED"


def test_a_silent_client_does_not_disturb_another(
    worker: WorkerProcess, client: OfficialClient, submit: Submit, proxy: SilentProxy, gate: Path
) -> None:
    """Both own the task; the one that is there gets its result."""
    submit("one-of-two")
    with OfficialClient(proxy.address) as silent:
        _watch(silent, "one-of-two")
        owner = _watch(client, "one-of-two")
        proxy.fall_silent()
        _wait_out_a_grace(client, submit, "one-of-two")
        gate.touch()
        assert state_name(list(owner)[-1].result.state) == "SUCCEEDED"


def _watch(client: OfficialClient, task_id: str, *, observe: bool = False) -> Any:
    """A watch that the worker knows of: its first event is here."""
    watch = client.WatchTasks(task_ids=[task_id], observe=observe, rpc_timeout=60)
    assert next(watch).WhichOneof("event") == "snapshot"
    return watch


def _watching_process(address: str, task_id: str) -> subprocess.Popen[str]:
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER, address, task_id], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "snapshot\n"
    return watcher


def _assert_cancelled(worker: WorkerProcess, client: OfficialClient, task_id: str) -> None:
    """The task ends for want of an owner, and its call really stops."""
    result = client.wait(task_id, timeout=20)
    assert (state_name(result.state), result.failure.code) == ("CANCELLED", "WATCH_DISCONNECTED")
    assert str(GRACE_MS) in result.failure.message
    assert worker.log_events("task_finished", task_id=task_id)[0]["code"] == "WATCH_DISCONNECTED"
    eventually(
        lambda: not any(e.inflight for e in client.GetWorkerStatus().status.executors), what="idle executors"
    )


def _wait_out_a_grace(client: OfficialClient, submit: Submit, task_id: str) -> None:
    """A whole grace passes: that of another task, which is left now."""
    submit(f"{task_id}-measure")
    _watch(client, f"{task_id}-measure").cancel()
    assert client.wait(f"{task_id}-measure", timeout=20).failure.code == "WATCH_DISCONNECTED"
