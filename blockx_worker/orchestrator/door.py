"""The one recorded door to the machines.

Every change of a slot, task, call, executor or process slot is one `decide`: an event goes in with the time, commands
come out. It is synchronous and runs on the Trio thread, so a decision is atomic; nothing else changes the machines.
A recorder sees every event with its time before it is decided, which is all that a replay needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, overload

import attrs
import trio

from blockx_worker.core.commands import WorkerCommand
from blockx_worker.core.events import WorkerEvent
from blockx_worker.core.worker import WorkerCore
from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.events import DispatchEvent
from blockx_worker.pool.commands import PoolCommand
from blockx_worker.pool.events import PoolEvent
from blockx_worker.pool.machine import PoolMachine

__all__ = ["Door", "Event", "Recorder"]

Event: TypeAlias = WorkerEvent | DispatchEvent | PoolEvent
Recorder: TypeAlias = Callable[[Event, int], None]


def trio_now_ms() -> int:
    """The machines' time: Trio's clock in whole milliseconds (a mock clock in tests).

    The small constant keeps a sleep until ``x / 1000`` from waking at ``x - 1`` by rounding.
    """
    return int(trio.current_time() * 1000 + 1e-4)


@attrs.define(eq=False)
class Door:
    """Owns the three machines. Reading from them is free; changing them goes through `decide` only."""

    worker: WorkerCore
    dispatcher: DispatcherCore
    pool: PoolMachine
    now_ms: Callable[[], int] = trio_now_ms
    recorder: Recorder | None = None
    check: bool = False

    @overload
    def decide(self, event: WorkerEvent) -> list[WorkerCommand]: ...
    @overload
    def decide(self, event: DispatchEvent) -> list[DispatchCommand]: ...
    @overload
    def decide(self, event: PoolEvent) -> list[PoolCommand]: ...

    def decide(self, event: Event) -> list[WorkerCommand] | list[DispatchCommand] | list[PoolCommand]:
        """Let the machine that owns this kind of event decide now. With ``check`` its invariants are checked after."""
        now_ms = self.now_ms()
        if self.recorder is not None:
            self.recorder(event, now_ms)
        machine = self._machine_of(event)
        commands = machine.handle(event, now_ms)  # type: ignore[arg-type]  # the pairing is _machine_of's
        if self.check:
            machine.check_invariants()
        return commands

    def _machine_of(self, event: Event) -> WorkerCore | DispatcherCore | PoolMachine:
        if isinstance(event, DispatchEvent):
            return self.dispatcher
        if isinstance(event, WorkerEvent):
            return self.worker
        return self.pool
