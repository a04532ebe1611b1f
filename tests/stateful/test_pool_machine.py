"""PoolMachine beside a naive model: processes that die, fail to start, are killed, and news that comes twice or late."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockx_worker.pool import events as e
from blockx_worker.pool.commands import PoolCommand, PoolDropped, ReportSlot, SpawnExecutor, StopExecutor
from blockx_worker.pool.config import PoolConfig
from blockx_worker.pool.machine import PoolMachine

DELAY, WINDOW, BACKOFF = 10, 100, 60

slots = st.integers(-1, 2)


def outline(command: PoolCommand) -> tuple[Any, ...]:
    """The predictable part of a command."""
    match command:
        case SpawnExecutor() | StopExecutor():
            return (type(command).__name__, command.slot, command.generation)
        case ReportSlot():
            return ("report", command.slot, command.state, command.until_ms)
        case PoolDropped():
            return ("dropped", command.event, command.slot)


class PoolModel:
    """The rules once more, slowly: every exit ever is remembered and counted anew."""

    def __init__(self, size: int, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.phase = "new"
        self.slots: list[dict[str, Any]] = [
            {
                "n": n,
                "state": "STOPPED",
                "generation": 0,
                "alive": False,
                "pid": 0,
                "until": None,
                "exits": [],
            }
            for n in range(size)
        ]

    def started(self) -> list[tuple[Any, ...]]:
        if self.phase != "new":
            return [("dropped", "PoolStarted", -1)]
        self.phase = "on"
        return [one for slot in self.slots for one in self._spawn(slot)]

    def stopped(self) -> list[tuple[Any, ...]]:
        if self.phase != "on":
            return [("dropped", "PoolStopped", -1)]
        self.phase = "off"
        ordered: list[tuple[Any, ...]] = []
        for slot in self.slots:
            slot |= {"state": "STOPPED", "until": None}
            ordered.append(("report", slot["n"], "STOPPED", None))
            if slot["alive"]:
                ordered.append(("StopExecutor", slot["n"], slot["generation"]))
        return ordered

    def ticked(self, now: int) -> list[tuple[Any, ...]]:
        due = [slot for slot in self.slots if slot["until"] is not None and now >= slot["until"]]
        return [one for slot in due for one in self._spawn(slot)]

    def spawned(self, number: int, generation: int, pid: int) -> list[tuple[Any, ...]]:
        slot = self._find(number, generation)
        if slot is None or slot["pid"]:
            return [("dropped", "ProcessSpawned", number)]
        slot["pid"] = pid
        return [("StopExecutor", number, generation)] if self.phase == "off" else []

    def gone(
        self, event: str, number: int, generation: int, now: int, *, deliberate: bool
    ) -> list[tuple[Any, ...]]:
        slot = self._find(number, generation)
        if slot is None:
            return [("dropped", event, number)]
        slot |= {"alive": False, "pid": 0}
        if self.phase == "off":
            return []
        if deliberate:
            return self._spawn(slot)
        slot["exits"].append(now)
        recent = [at for at in slot["exits"] if now - at < WINDOW]
        slot["state"] = "BACKOFF" if len(recent) > self.max_restarts else "WAITING"
        slot["until"] = now + (BACKOFF if slot["state"] == "BACKOFF" else DELAY)
        return [("report", number, slot["state"], slot["until"])]

    def next_deadline(self) -> int | None:
        return min((slot["until"] for slot in self.slots if slot["until"] is not None), default=None)

    def _find(self, number: int, generation: int) -> dict[str, Any] | None:
        for slot in self.slots:
            if slot["n"] == number and slot["generation"] == generation and slot["alive"]:
                return slot
        return None

    def _spawn(self, slot: dict[str, Any]) -> list[tuple[Any, ...]]:
        slot |= {"state": "RUNNING", "until": None, "alive": True, "generation": slot["generation"] + 1}
        return [
            ("report", slot["n"], "RUNNING", None),
            ("SpawnExecutor", slot["n"], slot["generation"]),
        ]


class PoolMachineBesideModel(RuleBasedStateMachine):
    """Every rule posts one event to the machine and to the model and compares what they order."""

    @initialize(
        size=st.integers(1, 2), max_restarts=st.integers(0, 3), started=st.sampled_from((True, True, False))
    )
    def start(self, size: int, max_restarts: int, started: bool) -> None:
        config = PoolConfig(
            size=size,
            restart_delay_ms=DELAY,
            max_restarts=max_restarts,
            restart_window_ms=WINDOW,
            backoff_ms=BACKOFF,
        )
        self.pool = PoolMachine(config)
        self.twin = PoolMachine(config)
        self.model = PoolModel(size, max_restarts)
        self.now = 0
        self.posted = 0
        self.drops = 0
        if started:
            self.start_pool()

    def post(self, event: e.PoolEvent, expected: list[tuple[Any, ...]]) -> None:
        commands = self.pool.handle(event, self.now)
        assert [outline(command) for command in commands] == expected
        assert self.twin.handle(event, self.now) == commands, "the same inputs give the same commands"
        self.pool.check_invariants()
        self.posted += 1
        self.drops += sum(one[0] == "dropped" for one in expected)

    def generation(self, slot: int, off_by: int) -> int:
        known = self.model.slots[slot]["generation"] if 0 <= slot < len(self.model.slots) else 1
        return int(known) + off_by

    @rule(ms=st.sampled_from((1, DELAY, BACKOFF, WINDOW)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def tick_at_the_next_deadline(self) -> None:
        self.now = max(self.now, self.model.next_deadline() or 0)
        self.tick()

    @rule()
    def tick(self) -> None:
        self.post(e.PoolTicked(), self.model.ticked(self.now))

    @rule()
    def start_pool(self) -> None:
        self.post(e.PoolStarted(), self.model.started())

    @precondition(lambda self: self.posted > 25)
    @rule()
    def stop_pool(self) -> None:
        self.post(e.PoolStopped(), self.model.stopped())

    @rule(slot=slots, off_by=st.sampled_from((0, 0, 0, -1, 1)), pid=st.integers(1, 9))
    def spawn(self, slot: int, off_by: int, pid: int) -> None:
        generation = self.generation(slot, off_by)
        event = e.ProcessSpawned(slot=slot, generation=generation, pid=pid)
        self.post(event, self.model.spawned(slot, generation, pid))

    @rule(slot=slots, off_by=st.sampled_from((0, 0, 0, -1, 1)))
    def fail_to_spawn(self, slot: int, off_by: int) -> None:
        generation = self.generation(slot, off_by)
        event = e.SpawnFailed(slot=slot, generation=generation, message="no")
        self.post(event, self.model.gone("SpawnFailed", slot, generation, self.now, deliberate=False))

    @rule(slot=slots, off_by=st.sampled_from((0, 0, 0, -1, 1)), deliberate=st.booleans())
    def exit(self, slot: int, off_by: int, deliberate: bool) -> None:
        generation = self.generation(slot, off_by)
        event = e.ProcessExited(slot=slot, generation=generation, deliberate=deliberate, message="gone")
        self.post(event, self.model.gone("ProcessExited", slot, generation, self.now, deliberate=deliberate))

    @rule(slot=st.integers(0, 1), times=st.integers(2, 5))
    def crash_loop(self, slot: int, times: int) -> None:
        """A rule of its own, because single steps seldom lead into the back-off."""
        for _ in range(times):
            self.exit(slot, 0, deliberate=False)
            self.tick_at_the_next_deadline()

    @invariant()
    def machine_and_model_look_the_same(self) -> None:
        views = [(v.slot, str(v.state), v.generation, v.pid, v.until_ms) for v in self.pool.slots()]
        assert views == [
            (s["n"], s["state"], s["generation"], s["pid"], s["until"]) for s in self.model.slots
        ]
        assert (self.pool.next_deadline() or (None,))[0] == self.model.next_deadline()
        assert self.pool.settled == (not any(slot["alive"] for slot in self.model.slots))
        assert sum(self.pool.dropped.values()) == self.drops


TestPoolMachine = PoolMachineBesideModel.TestCase
TestPoolMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)
