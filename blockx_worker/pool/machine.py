"""PoolMachine: when the process of an executor slot is started again.

A slot runs one process at a time; each process is a *generation* of its slot, counted from 1. The rules:

* A process that exits, or cannot be started, is replaced after ``restart_delay_ms``.
* More than ``max_restarts`` such exits within ``restart_window_ms`` mean BACKOFF for ``backoff_ms``. The exits stay
  counted for their window, so a process that keeps dying is started once per back-off until the old ones have aged.
* A deliberate exit (a kill of ours, recycling) does not count, and its replacement is started at once.
* Stopping orders the end of every process that is there or on its way. One that turns out to have been spawned only
  afterwards is ordered to stop as well. A stopped pool is not started again.

Trap: after `PoolStopped` the processes are still there for a while; `settled` tells when the last one is gone.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import attrs

from blockx_worker.pool.commands import PoolCommand, PoolDropped, ReportSlot, SpawnExecutor, StopExecutor
from blockx_worker.pool.config import PoolConfig
from blockx_worker.pool.events import (
    PoolEvent,
    PoolStarted,
    PoolStopped,
    PoolTicked,
    ProcessExited,
    ProcessSpawned,
    SpawnFailed,
)
from blockx_worker.pool.states import INITIAL_STATE, TRANSITIONS, PoolDropReason, PoolMove, PoolSlotState

__all__ = ["POOL", "PoolMachine", "SlotView"]

POOL = -1
"""In place of a slot number in `PoolDropped`: the event was for the whole pool."""


@attrs.frozen(kw_only=True)
class SlotView:
    """One slot at a moment.

    ``pid`` 0 until the process was spawned and after its end; ``until_ms`` (core time) while WAITING or in BACKOFF.
    ``recent_exits`` counts those within the window before the last one; ``last_exit`` is its message.
    """

    slot: int
    state: PoolSlotState
    generation: int
    pid: int
    until_ms: int | None
    recent_exits: int
    last_exit: str


@attrs.define(kw_only=True)
class _Slot:
    number: int
    state: PoolSlotState = INITIAL_STATE
    generation: int = 0
    pid: int = 0
    process: bool = False  # ordered, and not known to be gone
    until_ms: int | None = None
    exits_ms: deque[int] = attrs.field(factory=deque)
    last_exit: str = ""


class PoolMachine:
    """The pure machine of the executor slots: events in, commands out."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._slots = tuple(_Slot(number=number) for number in range(config.size))
        self._started = False
        self._stopped = False
        self._dropped: dict[tuple[str, str], int] = {}

    def handle(self, event: PoolEvent, now_ms: int) -> list[PoolCommand]:
        """Take in one event; the commands that follow, in order."""
        match event:
            case PoolStarted():
                return self._pool_started()
            case PoolStopped():
                return self._pool_stopped()
            case PoolTicked():
                return self._pool_ticked(now_ms)
            case ProcessSpawned():
                return self._process_spawned(event)
            case SpawnFailed():
                return self._process_gone("SpawnFailed", event, now_ms, deliberate=False)
            case ProcessExited():
                return self._process_gone("ProcessExited", event, now_ms, deliberate=event.deliberate)
            case _:
                assert_never(event)

    def slots(self) -> tuple[SlotView, ...]:
        """All slots, by number."""
        return tuple(
            SlotView(
                slot=slot.number,
                state=slot.state,
                generation=slot.generation,
                pid=slot.pid,
                until_ms=slot.until_ms,
                recent_exits=len(slot.exits_ms),
                last_exit=slot.last_exit,
            )
            for slot in self._slots
        )

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Dropped events, counted by (event, reason)."""
        return dict(self._dropped)

    @property
    def settled(self) -> bool:
        """True when no process is there or on its way."""
        return not any(slot.process for slot in self._slots)

    def next_deadline(self) -> tuple[int, str] | None:
        """The next time (core ms) at which `PoolTicked` starts a process, and why; ties by slot number."""
        waiting = [
            (slot.until_ms, f"{slot.state} of executor slot {slot.number}")
            for slot in self._slots
            if slot.until_ms is not None
        ]
        return min(waiting, key=lambda deadline: deadline[0], default=None)

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts itself; for tests and simulations."""
        for slot in self._slots:
            delayed = slot.state in (PoolSlotState.WAITING, PoolSlotState.BACKOFF)
            assert delayed == (slot.until_ms is not None)
            assert not (delayed and slot.process), "a slot waits although it has a process"
            assert slot.process or slot.state is not PoolSlotState.RUNNING, "a slot runs without a process"
            assert slot.pid == 0 or slot.process, "a pid without a process"
            assert len(slot.exits_ms) <= self._config.max_restarts + 1
            assert (slot.state is PoolSlotState.STOPPED) == (not self._started or self._stopped)

    # --- events --------------------------------------------------------------------------------------------------

    def _pool_started(self) -> list[PoolCommand]:
        if self._started:
            return [self._drop("PoolStarted", PoolDropReason.STARTED_BEFORE, POOL)]
        self._started = True
        commands: list[PoolCommand] = []
        for slot in self._slots:
            commands += _spawn(slot, PoolMove.POOL_STARTED, "the pool starts")
        return commands

    def _pool_stopped(self) -> list[PoolCommand]:
        if not self._started or self._stopped:
            return [self._drop("PoolStopped", PoolDropReason.NOT_RUNNING, POOL)]
        self._stopped = True
        commands: list[PoolCommand] = []
        for slot in self._slots:
            commands.append(_enter(slot, PoolMove.POOL_STOPPED, "the pool stops", until_ms=None))
            if slot.process:
                commands.append(StopExecutor(slot=slot.number, generation=slot.generation))
        return commands

    def _pool_ticked(self, now_ms: int) -> list[PoolCommand]:
        commands: list[PoolCommand] = []
        for slot in self._slots:
            if slot.until_ms is not None and slot.until_ms <= now_ms:
                commands += _spawn(slot, PoolMove.DELAY_OVER, f"{slot.state} is over")
        return commands

    def _process_spawned(self, event: ProcessSpawned) -> list[PoolCommand]:
        slot = self._awaited("ProcessSpawned", event.slot, event.generation)
        if isinstance(slot, PoolDropped):
            return [slot]
        if slot.pid:
            return [self._drop("ProcessSpawned", PoolDropReason.SPAWNED_BEFORE, slot.number)]
        slot.pid = event.pid
        if slot.state is PoolSlotState.STOPPED:
            return [StopExecutor(slot=slot.number, generation=slot.generation)]
        return []

    def _process_gone(
        self, name: str, event: SpawnFailed | ProcessExited, now_ms: int, *, deliberate: bool
    ) -> list[PoolCommand]:
        slot = self._awaited(name, event.slot, event.generation)
        if isinstance(slot, PoolDropped):
            return [slot]
        slot.process = False
        slot.pid = 0
        slot.last_exit = event.message
        if slot.state is PoolSlotState.STOPPED:
            return []
        if deliberate:
            return _spawn(slot, PoolMove.EXITED_DELIBERATELY, event.message)
        return [self._delay(slot, now_ms)]

    # --- steps ---------------------------------------------------------------------------------------------------

    def _awaited(self, name: str, number: int, generation: int) -> _Slot | PoolDropped:
        """The slot whose process the event is about, or why it is about none."""
        if not 0 <= number < len(self._slots):
            return self._drop(name, PoolDropReason.NO_SUCH_SLOT, number)
        slot = self._slots[number]
        if slot.generation != generation:
            return self._drop(name, PoolDropReason.OLD_GENERATION, number)
        if not slot.process:
            return self._drop(name, PoolDropReason.PROCESS_GONE, number)
        return slot

    def _drop(self, event: str, reason: PoolDropReason, slot: int) -> PoolDropped:
        key = (event, str(reason))
        self._dropped[key] = self._dropped.get(key, 0) + 1
        return PoolDropped(event=event, reason=reason, slot=slot)

    def _delay(self, slot: _Slot, now_ms: int) -> PoolCommand:
        """Count the exit and choose between the short delay and the back-off."""
        config = self._config
        exits = slot.exits_ms
        exits.append(now_ms)
        # One more than may happen is all that the decision needs, so the count stays bounded.
        while exits[0] <= now_ms - config.restart_window_ms or len(exits) > config.max_restarts + 1:
            exits.popleft()
        if len(exits) <= config.max_restarts:
            return _enter(slot, PoolMove.EXITED, slot.last_exit, until_ms=now_ms + config.restart_delay_ms)
        reason = (
            f"{slot.last_exit}; more than {config.max_restarts} exits within {config.restart_window_ms} ms,"
            f" next start in {config.backoff_ms} ms"
        )
        return _enter(slot, PoolMove.EXITED_TOO_OFTEN, reason, until_ms=now_ms + config.backoff_ms)


def _spawn(slot: _Slot, move: PoolMove, reason: str) -> list[PoolCommand]:
    report = _enter(slot, move, reason, until_ms=None)
    slot.generation += 1
    slot.process = True
    return [report, SpawnExecutor(slot=slot.number, generation=slot.generation)]


def _enter(slot: _Slot, move: PoolMove, reason: str, *, until_ms: int | None) -> ReportSlot:
    slot.state = TRANSITIONS[slot.state, move]
    slot.until_ms = until_ms
    return ReportSlot(slot=slot.number, state=slot.state, reason=reason, until_ms=until_ms)
