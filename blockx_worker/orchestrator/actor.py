"""The single writer of the dispatcher: one task, one bounded inbox, work in slices.

Connections put the frames that they read here, timers and the supervisor their facts, all in one order. A slice takes
at most ``slice_calls`` finished calls and starts at most as many, then gives the thread away: everything else in the
worker (RPCs above all) runs between two slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, assert_never

import attrs
import trio

from blockx_executor.wire.messages import (
    CallCompleted,
    CallFailed,
    CallsReturned,
    CallWaiting,
    FromExecutor,
    Heartbeat,
)
from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.events import (
    CallsFinished,
    CallsGivenBack,
    DispatchEvent,
    DispatchTurn,
    ExecutorHeartbeat,
)
from blockx_worker.orchestrator.door import Door

__all__ = ["DispatchActor", "DispatchCarrier"]


class DispatchCarrier(Protocol):
    """Carries out what the dispatcher orders."""

    def carry_out(self, commands: Sequence[DispatchCommand]) -> None:
        """Carry out commands in order; facts that follow are posted, never decided here."""

    def waiting(self, executor_id: str, frame: CallWaiting) -> DispatchEvent | None:
        """Serve what a call waits for, or say what the dispatcher has to decide about it."""


@attrs.define
class _FrameBatch:
    executor_id: str
    frames: Sequence[FromExecutor]
    taken: int = 0


class DispatchActor:
    """See the module's text."""

    def __init__(self, door: Door, carrier: DispatchCarrier, *, slice_calls: int, inbox_frames: int) -> None:
        self._door = door
        self._carrier = carrier
        self._slice_calls = slice_calls
        self._inbox_frames = inbox_frames
        self._inbox: deque[_FrameBatch | DispatchEvent] = deque()
        self._queued_frames = 0
        self._news = trio.Event()
        self._room = trio.Event()

    async def frames(self, executor_id: str, frames: Sequence[FromExecutor]) -> None:
        """Queue frames of one executor; waits while ``inbox_frames`` or more are queued."""
        while self._queued_frames >= self._inbox_frames:
            if self._room.is_set():  # else others wait for it, and it stays theirs
                self._room = trio.Event()
            await self._room.wait()
        if frames:
            self._queued_frames += len(frames)
            self._inbox.append(_FrameBatch(executor_id, frames))
            self._news.set()

    def post(self, event: DispatchEvent) -> None:
        """Queue a fact behind everything that came before it."""
        self._inbox.append(event)
        self._news.set()

    def decide_now(self, event: DispatchEvent) -> None:
        """Decide ahead of the queue: for the begin and end of a task's calls, which must not pass one another."""
        self._carrier.carry_out(self._door.decide(event))
        self._news.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        task_status.started()
        dispatcher = self._door.dispatcher
        while True:
            if not self._inbox and not dispatcher.turn_pending:
                self._news = trio.Event()
                await self._news.wait()
            self._slice()
            await trio.lowlevel.checkpoint()

    def _slice(self) -> None:
        room = self._slice_calls
        while room > 0 and self._inbox:
            item = self._inbox[0]
            if isinstance(item, _FrameBatch):
                room -= self._take_frames(item, room)
                if item.taken < len(item.frames):
                    break
            else:
                self._decide(item)
                room -= 1
            self._inbox.popleft()
        if self._door.dispatcher.turn_pending:
            self._decide(DispatchTurn(max_calls=self._slice_calls))
        if self._queued_frames < self._inbox_frames:
            self._room.set()

    def _take_frames(self, batch: _FrameBatch, room: int) -> int:
        frames = batch.frames[batch.taken : batch.taken + room]
        batch.taken += len(frames)
        self._queued_frames -= len(frames)
        finished: list[CallCompleted | CallFailed] = []
        for frame in frames:
            if isinstance(frame, (CallCompleted, CallFailed)):
                finished.append(frame)
                continue
            self._flush(batch.executor_id, finished)
            finished = []
            if event := self._event_of(batch.executor_id, frame):
                self._decide(event)
        self._flush(batch.executor_id, finished)
        return len(frames)

    def _event_of(
        self, executor_id: str, frame: Heartbeat | CallWaiting | CallsReturned
    ) -> DispatchEvent | None:
        match frame:
            case Heartbeat():
                return ExecutorHeartbeat(executor_id=executor_id, heartbeat=frame.payload)
            case CallsReturned():
                returned = frame.payload
                return CallsGivenBack(executor_id=executor_id, calls=returned.calls, reason=returned.reason)
            case CallWaiting():
                return self._carrier.waiting(executor_id, frame)
            case _:
                assert_never(frame)

    def _flush(self, executor_id: str, finished: list[CallCompleted | CallFailed]) -> None:
        if finished:
            self._decide(CallsFinished(executor_id=executor_id, frames=finished))

    def _decide(self, event: DispatchEvent) -> None:
        if commands := self._door.decide(event):
            self._carrier.carry_out(commands)
