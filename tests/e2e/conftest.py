"""Workers for the tests of this folder: real processes, shared by the tests of a module, judged when they stop.

Whatever the tests of a module did to a worker: unless they say so, it logged no error, it stops cleanly on SIGTERM,
and it leaves no executor, no directory and no ready file behind.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.official import OfficialClient
from tests.support.worker_process import WorkerProcess, alive, eventually

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here starts real processes."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


class StartWorker(Protocol):
    """Starts a worker on functions (source by module name); options are those of `WorkerProcess`."""

    def __call__(self, functions: dict[str, str], **options: Any) -> WorkerProcess: ...


@pytest.fixture(scope="module")
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Start workers, whole, that live until the end of the module, each in a folder of its own."""
    workers: list[WorkerProcess] = []

    def start(functions: dict[str, str], **options: Any) -> WorkerProcess:
        folder = tmp_path_factory.mktemp("w")
        worker = WorkerProcess(
            folder,
            functions,
            env={"BLOCKX_RUNTIME_DIR": str(folder / "run")} | options.pop("env", {}),
            **options,
        )
        worker.start()
        workers.append(worker)
        worker.wait_attached()
        return worker

    yield start
    problems = [problem for worker in workers for problem in _stop(worker)]
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def client(worker: WorkerProcess) -> Iterator[OfficialClient]:
    """The official client, connected to the module's ``worker``."""
    with OfficialClient(worker.address) as client:
        yield client


def _stop(worker: WorkerProcess) -> list[str]:
    """Stop a worker that still runs; what is wrong with how it ended and with what it left behind."""
    problems = []
    executors = worker.executor_pids()
    if worker.process.poll() is None:
        worker.terminate()
        try:
            code = worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
            code = -signal.SIGKILL
            eventually(lambda: not any(map(alive, executors)), what="they have died with the worker")
        if code != 0:
            problems.append(f"{worker.folder}: exit code {code} after SIGTERM:\n{worker.log()[-4000:]}")
    problems += [f"{worker.folder}: executor {pid} is alive" for pid in executors if alive(pid)]
    problems += [f"{worker.folder}: left behind {path}" for path in worker.leftovers()]
    problems += [f"{worker.folder}: in its log: {line}" for line in worker.errors()]
    return problems
