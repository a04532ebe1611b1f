"""Starts executor processes.

`subprocess.Popen` on the main thread, never Trio's own spawning: the parent-death signal that the executor asks for
follows the *thread* that started it, and Trio's spawn thread ends after ten idle seconds. Each process leads a session
of its own, so that Ctrl-C or a signal to the worker's group does not reach it. Reaped by pidfd, without threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from blockx_worker.ports import SpawnRequest

__all__ = ["ProcessSpawner", "SpawnedProcess", "SpawnerConfig"]

_MAX_LINE_BYTES = 65_536


@attrs.frozen(kw_only=True)
class SpawnerConfig:
    """``python`` is the interpreter that has the functions' libraries and blockx-executor."""

    python: str = sys.executable
    env_allow: Sequence[str] = ()
    heartbeat_interval_ms: int = 500
    function_load_timeout_ms: int = 60_000
    user_lines_per_s: int = 200


class ProcessSpawner:
    """Starts executors as plain child processes."""

    def __init__(self, config: SpawnerConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._env = {name: environ[name] for name in config.env_allow if name in environ}

    def spawn(self, request: SpawnRequest) -> SpawnedProcess:
        """Start one; raises OSError when the interpreter cannot be started."""
        popen = subprocess.Popen(
            self._arguments(request),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            start_new_session=True,
        )
        return SpawnedProcess(popen)

    def _arguments(self, request: SpawnRequest) -> list[str]:
        config = self._config
        options = {
            "executor-id": request.executor_id,
            "socket-path": request.socket_path,
            "executor-max-inflight": request.max_inflight,
            "executor-max-runnable": request.max_runnable,
            "blackbox": request.blackbox_path,
            "heartbeat-interval-ms": config.heartbeat_interval_ms,
            "function-load-timeout-ms": config.function_load_timeout_ms,
            "log-lines-per-s": config.user_lines_per_s,
            "parent-pid": os.getpid(),
        }
        arguments = [config.python, "-m", "blockx_executor"]
        for name, value in options.items():
            arguments += [f"--{name}", str(value)]
        return arguments


class SpawnedProcess:
    """A child process that leads its own session."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self._pidfd = os.pidfd_open(popen.pid)

    async def wait(self) -> int:
        """Wait for the end and reap; also ends what the process left behind in its session."""
        if self._popen.returncode is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._signal_group(signal.SIGKILL)
            self._popen.wait()
            os.close(self._pidfd)
        return self._popen.returncode

    def terminate(self) -> None:
        """Send SIGTERM to the executor."""
        if self._popen.returncode is None:
            self._popen.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the executor and its session."""
        if self._popen.returncode is None:
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left

    async def output_lines(self, handle: Callable[[str, bytes], None]) -> None:
        """Pass each line of both streams on until they end."""
        async with trio.open_nursery() as nursery:
            for name in ("stdout", "stderr"):
                pipe = getattr(self._popen, name)
                nursery.start_soon(_lines, name, os.dup(pipe.fileno()), handle)
                pipe.close()


async def _lines(name: str, fd: int, handle: Callable[[str, bytes], None]) -> None:
    buffer = b""
    async with trio.lowlevel.FdStream(fd) as stream:
        async for data in stream:
            *lines, buffer = (buffer + data).split(b"\n")
            if len(buffer) > _MAX_LINE_BYTES:  # native code may never end its line
                lines.append(buffer)
                buffer = b""
            for line in lines:
                handle(name, line)
    if buffer:
        handle(name, buffer)
