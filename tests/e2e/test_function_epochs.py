"""Function code that changes while tasks run: each task keeps the version it began with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

SOURCE = """
import os, time
from blockx_executor import sdk

VERSION = {version!r}

def version(i):
    return [VERSION, i]

def wait_for(path, i):
    while not os.path.exists(path):
        sdk.sleep(0.01)
    return [VERSION, i]
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    functions = {"live": SOURCE.format(version="first"), "other": SOURCE.format(version="other")}
    return start_worker(functions, config="functions_poll_ms = 50")


def test_a_running_task_keeps_its_version_and_a_new_one_gets_the_new(
    worker: WorkerProcess, client: OfficialClient, tmp_path: Path
) -> None:
    """Also for calls that begin only after the change, in the same processes, side by side."""
    n = 400  # more than the executors take at once
    gate = tmp_path / "gate"
    client.submit_calls("old", "live.wait_for", [[str(gate), i] for i in range(n)], call_budget_ms=0)
    _next_epoch(client, lambda: _write(worker, "live", SOURCE.format(version="second")))
    client.submit_calls("new", "live.version", [[i] for i in range(n)])
    gate.touch()
    assert state_name(client.wait("old").state) == "SUCCEEDED"
    assert state_name(client.wait("new").state) == "SUCCEEDED"
    assert client.outputs("old") == [["first", i] for i in range(n)]
    assert client.outputs("new") == [["second", i] for i in range(n)]


def test_a_broken_file_keeps_its_last_good_version_and_is_logged(
    worker: WorkerProcess, client: OfficialClient
) -> None:
    _write(worker, "other", "def version(i:\n")
    [problem] = eventually(
        lambda: worker.log_events("function_problem", file="other.py"), what="a logged problem"
    )
    assert problem["line"] == 1
    assert "last good version" in problem["reason"]
    assert _call(client, "kept", "other.version") == ["other", 1]
    _next_epoch(client, lambda: _write(worker, "other", SOURCE.format(version="mended")))
    assert _call(client, "mended", "other.version") == ["mended", 1]


def test_modules_come_and_go(worker: WorkerProcess, client: OfficialClient) -> None:
    _next_epoch(client, lambda: _write(worker, "fresh", SOURCE.format(version="fresh")))
    assert _call(client, "fresh", "fresh.version") == ["fresh", 1]
    _next_epoch(client, (worker.functions_dir / "fresh.py").unlink)
    client.submit_calls("gone", "fresh.version", [[1]], wait_ms=10_000)
    assert client.wait("gone").failure.code == "FUNCTION_NOT_FOUND"


def _write(worker: WorkerProcess, name: str, source: str) -> None:
    """As editors and deployments do: beside its place, then renamed."""
    path = worker.functions_dir / f"{name}.py"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(source)
    os.replace(temporary, path)  # noqa: PTH105 - the point of it


def _next_epoch(client: OfficialClient, change: Callable[[], None]) -> None:
    def epoch() -> int:
        return int(client.GetWorkerStatus().status.function_epoch)

    before = epoch()
    change()
    eventually(lambda: epoch() > before, what="a new epoch")


def _call(client: OfficialClient, task_id: str, function_id: str) -> object:
    client.submit_calls(task_id, function_id, [[1]], wait_ms=10_000)
    assert state_name(client.wait(task_id).state) == "SUCCEEDED"
    return client.outputs(task_id)[0]
