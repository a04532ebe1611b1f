"""Watching tasks: a hub that wakes watchers, and cursors over what the worker knows.

A watcher owns no queue. It keeps a position for each task (the version of the state it has seen, the offset into the
outputs) and, when woken, takes what is new since. A reader that does not read costs nothing and slows nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from blockx_worker.model.tasks import ENDED_STATES, TaskPhase, TaskSnapshot
from blockx_worker.model.watch import (
    OutputChunk,
    TaskNotFound,
    TaskOutputs,
    TaskProgress,
    TaskResulted,
    TaskSnapshotted,
    WatchEvent,
)

__all__ = ["Cursor", "Hub", "Subscription", "WatchSource"]


class Subscription:
    """Wakes one watcher: set by the hub when one of its tasks changed."""

    def __init__(self) -> None:
        self._changed = trio.Event()

    def wake(self) -> None:
        """Something changed."""
        self._changed.set()

    async def wait(self, at_most_s: float) -> None:
        """Wait for a change, or as long as given."""
        with trio.move_on_after(at_most_s):
            await self._changed.wait()
        self._changed = trio.Event()


class Hub:
    """Who wants to know of which task."""

    def __init__(self) -> None:
        self._by_task: dict[str, dict[int, Subscription]] = {}
        self._open = 0
        self._idle = trio.Event()

    @contextmanager
    def subscribe(self, task_ids: Sequence[str]) -> Iterator[Subscription]:
        """Subscribe to tasks, known or not."""
        subscription = Subscription()
        self._open += 1
        for task_id in task_ids:
            self._by_task.setdefault(task_id, {})[id(subscription)] = subscription
        try:
            yield subscription
        finally:
            self._open -= 1
            if self._open == 0:
                self._idle.set()
            for task_id in task_ids:
                subscribers = self._by_task.get(task_id, {})
                subscribers.pop(id(subscription), None)
                if not subscribers:
                    self._by_task.pop(task_id, None)

    async def wait_idle(self) -> None:
        """Wait until nobody watches or waits for a task."""
        while self._open:
            self._idle = trio.Event()
            await self._idle.wait()

    def notify(self, task_id: str) -> None:
        """Wake the watchers of a task."""
        for subscription in self._by_task.get(task_id, {}).values():
            subscription.wake()


class WatchSource(Protocol):
    """What a cursor reads."""

    def version_of(self, task_id: str) -> int:
        """Rises with every visible change of a task."""

    def snapshot_of(self, task_id: str) -> TaskSnapshot | None:
        """The task now, None when unknown."""

    def progress_of(self, task_id: str) -> TaskProgress | None:
        """How far its calls are, None outside the calls phase."""

    def outputs_of(self, task_id: str, offset: int) -> OutputChunk | None:
        """The next piece of its outputs, None when there is none (yet)."""


@attrs.define
class _Position:
    version: int = -1
    progress: TaskProgress | None = None
    offset: int = 0
    over: bool = False


class Cursor:
    """A position over several tasks."""

    def __init__(
        self,
        source: WatchSource,
        subscription: Subscription,
        task_ids: Sequence[str],
        progress_interval_ms: int,
    ) -> None:
        self._source = source
        self._subscription = subscription
        self._positions = {task_id: _Position() for task_id in task_ids}
        self._interval_s = progress_interval_ms / 1000

    async def next(self) -> Sequence[WatchEvent] | None:
        """Wait for news; None when all tasks have ended."""
        while True:
            if all(position.over for position in self._positions.values()):
                return None
            if events := self._collect():
                return events
            await self._subscription.wait(self._interval_s if self._has_calls() else float("inf"))

    def _has_calls(self) -> bool:
        return any(
            not position.over and self._source.progress_of(task_id) is not None
            for task_id, position in self._positions.items()
        )

    def _collect(self) -> list[WatchEvent]:
        """News of all tasks, with at most one output chunk among them: the rest comes with the next call."""
        events: list[WatchEvent] = []
        for task_id, position in self._positions.items():
            if not position.over and self._collect_task(task_id, position, events):
                self._positions[task_id] = self._positions.pop(task_id)  # its turn for a chunk is over
                break
        return events

    def _collect_task(self, task_id: str, position: _Position, events: list[WatchEvent]) -> bool:
        """Add the news of one task; True when a chunk was added."""
        snapshot = self._source.snapshot_of(task_id)
        if snapshot is None:
            position.over = True
            events.append(TaskNotFound(task_id=task_id))
            return False
        self._collect_state(task_id, position, snapshot, events)
        chunk = self._source.outputs_of(task_id, position.offset)
        if chunk is not None:
            position.offset = chunk.offset + len(chunk.json_lines)
            events.append(TaskOutputs(task_id=task_id, chunk=chunk))
            return True
        if snapshot.state in ENDED_STATES and snapshot.result is not None:
            position.over = True
            events.append(TaskResulted(task_id=task_id, result=snapshot.result))
        return False

    def _collect_state(
        self, task_id: str, position: _Position, snapshot: TaskSnapshot, events: list[WatchEvent]
    ) -> None:
        version = self._source.version_of(task_id)
        progress = self._source.progress_of(task_id) if snapshot.phase is TaskPhase.CALLS else None
        if version == position.version and progress in (None, position.progress):
            return
        position.version = version
        position.progress = progress
        events.append(TaskSnapshotted(snapshot=snapshot, progress=progress))
