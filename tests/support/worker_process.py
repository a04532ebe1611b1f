"""A real worker in a process of its own, started as users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

__all__ = [
    "WorkerProcess",
    "alive",
    "eventually",
    "executor_pids",
    "memory",
    "peak_memory",
    "reset_peak_memory",
]

T = TypeVar("T")

OF_THE_TESTS = frozenset({"BLOCKX_LONG"})  # variables that look like settings of a worker, and are none


class WorkerProcess:
    """Starts ``python -m blockx_worker`` in ``folder`` and waits for its ready file; a context manager that kills it.

    ``functions``: source text by module name, ``package/module`` in a package. ``config``: TOML text. Further keyword arguments become flags:
    ``executors=2`` is ``--executors 2``.
    """

    def __init__(
        self,
        folder: Path,
        functions: dict[str, str],
        *,
        config: str = "",
        env: dict[str, str] | None = None,
        start_timeout_s: float = 30,
        **flags: Any,
    ) -> None:
        self.folder = folder
        self.functions_dir = folder / "functions"
        self.functions_dir.mkdir(parents=True, exist_ok=True)
        self.publish(functions)
        self._flags = {"profile": "block", "listen": "127.0.0.1:0", "executors": 2, **flags}
        self._config = config
        own = {name: value for name, value in os.environ.items() if name not in OF_THE_TESTS}
        self._env = {**own, **(env or {})}
        self._start_timeout_s = start_timeout_s
        self.log_path = folder / "worker.log"
        self.ready_file = folder / "ready.json"
        self.process: subprocess.Popen[bytes]
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def publish(self, functions: dict[str, str]) -> None:
        """Write modules into the functions folder."""
        for name, source in functions.items():
            path = self.functions_dir / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        """Start the process and wait until it serves."""
        arguments = [sys.executable, "-m", "blockx_worker"]
        flags = {**self._flags, "functions": self.functions_dir, "ready-file": self.ready_file}
        if self._config:
            path = self.folder / "worker.toml"
            path.write_text(self._config)
            flags["config"] = path
        for name, value in flags.items():
            arguments += [f"--{name.replace('_', '-')}", str(value)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        deadline = time.monotonic() + self._start_timeout_s
        while (ready := self._ready()) is None:
            if self.process.poll() is not None:
                raise AssertionError(f"the worker ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the worker did not get ready:\n{self.log()}")
            time.sleep(0.01)
        self.address = ready["address"]

    def _ready(self) -> Any:
        """What the ready file says, unless a worker that was killed before has left it."""
        try:
            ready = json.loads(self.ready_file.read_text())
        except FileNotFoundError:
            return None
        return ready if ready["pid"] == self.pid else None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self.process.pid

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and reap."""
        self.process.kill()
        self.process.wait()

    def wait(self, timeout: float = 30) -> int:
        """Wait for the end; the exit code."""
        return self.process.wait(timeout)

    def log(self) -> str:
        """What the worker has logged so far."""
        return self.log_path.read_text(errors="replace")

    def log_events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Log lines of one event, those that have all of ``fields``."""
        wanted = {"event": name, **fields}.items()
        lines = (line for line in self.log().splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if wanted <= event.items()]

    def errors(self) -> list[str]:
        """Log lines that a worker without a fault of its own does not write: errors, tracebacks, anything but JSON."""
        return [line for line in self.log().splitlines() if not _is_harmless(line)]

    def leftovers(self) -> list[Path]:
        """What of its runtime directory (``BLOCKX_RUNTIME_DIR``) and its ready file is there."""
        runtime = self._env.get("BLOCKX_RUNTIME_DIR")
        paths = [self.ready_file, *(Path(runtime).glob("*") if runtime else [])]
        return [path for path in paths if path.exists()]

    def wait_attached(self) -> None:
        """Wait until every executor has attached; a worker serves as soon as the first one has."""
        count = int(self._flags["executors"])
        eventually(
            lambda: len(self.log_events("executor_attached")) >= count, 30, f"{count} attached executors"
        )

    def executor_pids(self) -> list[int]:
        """Process ids of its executors."""
        return executor_pids(self.pid)


def eventually(look: Callable[[], T], timeout_s: float = 10, what: str = "") -> T:
    """Look until what is seen is true, and return it; for facts of other processes, which nobody announces."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or look}; last seen: {seen!r}"
        time.sleep(0.01)
    return seen


def _is_harmless(line: str) -> bool:
    try:
        event = json.loads(line)
    except ValueError:
        return False
    return (
        isinstance(event, dict)
        and event.get("level") not in ("error", "critical")
        and "exception" not in event
    )


def executor_pids(worker_pid: int) -> list[int]:
    """Process ids of the executors that are children of a worker."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == worker_pid and b"blockx_executor" in command and fields[0] != "Z":
            pids.append(int(path.parent.name))
    return sorted(pids)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    return _memory(pid, "VmRSS:")


def peak_memory(pid: int) -> int:
    """The largest resident memory of a process since its start or `reset_peak_memory`, in bytes."""
    return _memory(pid, "VmHWM:")


def reset_peak_memory(pid: int) -> None:
    """Let the peak begin anew at what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) * 1024
