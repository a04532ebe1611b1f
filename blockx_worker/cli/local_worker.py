"""A worker of our own for the length of a block: started as a process, ready, and stopped for certain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from blockx_worker.cli.errors import Unreachable
from blockx_worker.config.fields import FIELDS

__all__ = ["clean_environment", "running_worker"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_LINES = 5


@contextmanager
def running_worker(arguments: Sequence[str], ready_file: Path, log: Path) -> Iterator[str]:
    """The address of a worker started with ``arguments`` (after ``run``); `Unreachable` if it does not come up."""
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "blockx_worker", *arguments, "--ready-file", str(ready_file)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=clean_environment(os.environ),
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop the worker in order
        )
    try:
        yield _wait_ready(process, ready_file, log)
    finally:
        _stop(process)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything that configures a worker: what is shown must not depend on the user's shell."""
    ours = {field.legacy_variable for field in FIELDS.values()}
    return {k: v for k, v in environ.items() if not k.startswith("BLOCKX_") and k not in ours}


def _wait_ready(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready_file.exists():
        if process.poll() is not None:
            raise Unreachable.start_failed(f"it ended with exit code {process.returncode}", _tail(log))
        if time.monotonic() > deadline:
            raise Unreachable.start_failed(f"it was not ready after {START_TIMEOUT_S:.0f} s", _tail(log))
        time.sleep(POLL_S)
    return str(json.loads(ready_file.read_bytes())["address"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"the end of its log {log}:", *(f"  {line[:500]}" for line in lines[-LOG_LINES:])])
