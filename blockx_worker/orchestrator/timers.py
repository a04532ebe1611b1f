"""The tick and the retry timer. They only post facts; what is due is the machines' word.

The tick is also the backstop of the per-task scopes: a deadline or grace whose own task was late is found here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import attrs
import trio

from blockx_worker.dispatch.commands import ArmCallRetry
from blockx_worker.dispatch.events import CallRetryDue, DispatchEvent

__all__ = ["RetryTimer", "run_tick"]


async def run_tick(
    interval_ms: int,
    steps: list[Callable[[], None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run all steps in order, every ``interval_ms``; each is synchronous and short."""
    task_status.started()
    while True:
        await trio.sleep(interval_ms / 1000)
        for step in steps:
            step()


@attrs.frozen(order=True)
class _Due:
    due_ms: int
    order: int
    event: DispatchEvent = attrs.field(order=False)


class RetryTimer:
    """One task and one heap for the back-off of all calls."""

    def __init__(self, post: Callable[[DispatchEvent], None]) -> None:
        self._post = post
        self._heap: list[_Due] = []
        self._armed = 0
        self._changed = trio.Event()

    def arm(self, command: ArmCallRetry) -> None:
        """Post `CallRetryDue` when its time has come."""
        event = CallRetryDue(
            task_id=command.task_id, call_id=command.call_id, attempt_seq=command.attempt_seq
        )
        self._armed += 1
        heapq.heappush(self._heap, _Due(command.due_ms, self._armed, event))
        self._changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Post what is due until cancelled."""
        task_status.started()
        while True:
            self._changed = trio.Event()
            with trio.CancelScope(deadline=self._heap[0].due_ms / 1000 if self._heap else float("inf")):
                await self._changed.wait()
            now_ms = trio.current_time() * 1000
            while self._heap and self._heap[0].due_ms <= now_ms:
                self._post(heapq.heappop(self._heap).event)
            await trio.lowlevel.checkpoint()
