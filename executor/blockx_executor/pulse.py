"""Heartbeats: what the executor says of itself. Sent by the main thread, or by the monitor while that is busy."""

from __future__ import annotations

import os
import time
from typing import Final

from blockx_executor.calls import Call
from blockx_executor.descriptors import raise_descriptor
from blockx_executor.link import Link
from blockx_executor.mainthread import MainThread
from blockx_executor.scheduler import Scheduler
from blockx_executor.wire.messages import Heartbeat, HeartbeatPayload
from blockx_executor.wire.version import VERSION

__all__ = ["Pulse"]

_MS: Final = 1_000_000


class Pulse:
    """``due`` is set by the monitor; whoever holds the lock then sends."""

    def __init__(self, *, executor_id: str, link: Link, main: MainThread, scheduler: Scheduler) -> None:
        self.due = True
        self._executor_id = executor_id
        self._link = link
        self._main = main
        self._scheduler = scheduler
        self._sequence = 0
        self._statm = -1
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def send(self) -> None:
        """Queue a heartbeat; needs the link's lock."""
        self.due = False
        self._sequence += 1
        self._link.send(Heartbeat(self._payload(self._main.running)))

    def _payload(self, running: Call | None) -> HeartbeatPayload:
        scheduler = self._scheduler
        return HeartbeatPayload(
            executor_id=self._executor_id,
            heartbeat_seq=self._sequence,
            pid=os.getpid(),
            version=VERSION,
            runnable_count=scheduler.runnable + (running is not None),
            inflight_count=len(scheduler.calls),
            available_contexts=scheduler.available_contexts,
            memory_bytes=self._memory_bytes(),
            cpu_ms=time.process_time_ns() // _MS,
            running_call_id=running.call_id if running else None,
            running_attempt_seq=running.payload.attempt_seq if running else 0,
            running_for_ms=(time.monotonic_ns() - running.slice_started_ns) // _MS if running else 0,
            running_load=self._main.loading,
            waiting_count=scheduler.waiting,
        )

    def _memory_bytes(self) -> int:
        """Resident memory, the second number of /proc/self/statm."""
        try:
            return int(os.pread(self._statm, 64, 0).split()[1]) * self._page_bytes
        except (
            OSError,
            ValueError,
            IndexError,
        ):  # not open yet, or user code closed it, or it is another file by now
            return self._open_statm()

    def _open_statm(self) -> int:
        try:
            descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._statm = raise_descriptor(descriptor)
            return int(os.pread(self._statm, 64, 0).split()[1]) * self._page_bytes
        except OSError:  # no descriptor is free; the next heartbeat tries again
            return 0
