"""When executor processes are started again."""

from __future__ import annotations

from typing import Any

import pytest

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
from blockx_worker.pool.machine import POOL, PoolMachine, SlotView
from blockx_worker.pool.states import INITIAL_STATE, TRANSITIONS, PoolMove, PoolSlotState


class Talk:
    """A pool and its clock; the invariants are checked after every event."""

    def __init__(self, **config: Any) -> None:
        self.pool = PoolMachine(PoolConfig(**({"size": 1} | config)))
        self.now = 0

    def say(self, event: PoolEvent, at: int | None = None) -> list[PoolCommand]:
        if at is not None:
            assert at >= self.now
            self.now = at
        commands = self.pool.handle(event, self.now)
        self.pool.check_invariants()
        return commands

    def start(self) -> None:
        self.say(PoolStarted())
        for slot in self.pool.slots():
            self.say(ProcessSpawned(slot=slot.slot, generation=1, pid=100 + slot.slot))

    def die(self, at: int | None = None, *, slot: int = 0, deliberate: bool = False) -> list[PoolCommand]:
        generation = self.pool.slots()[slot].generation
        exited = ProcessExited(slot=slot, generation=generation, deliberate=deliberate, message="exit code 1")
        return self.say(exited, at)

    def report(self, commands: list[PoolCommand]) -> ReportSlot:
        (report,) = commands
        assert isinstance(report, ReportSlot)
        return report

    def crash_and_restart(self, times: int) -> None:
        for _ in range(times):
            self.die()
            deadline = self.pool.next_deadline()
            assert deadline is not None
            self.say(PoolTicked(), at=deadline[0])

    def state(self, slot: int = 0) -> str:
        return self.pool.slots()[slot].state


def test_a_started_pool_spawns_every_slot_in_order():
    talk = Talk(size=2)
    assert talk.pool.slots()[0] == SlotView(
        slot=0, state=PoolSlotState.STOPPED, generation=0, pid=0, until_ms=None, recent_exits=0, last_exit=""
    )
    assert talk.say(PoolStarted()) == [
        ReportSlot(slot=0, state="RUNNING", reason="the pool starts", until_ms=None),
        SpawnExecutor(slot=0, generation=1),
        ReportSlot(slot=1, state="RUNNING", reason="the pool starts", until_ms=None),
        SpawnExecutor(slot=1, generation=1),
    ]
    assert talk.pool.next_deadline() is None
    assert not talk.pool.settled


def test_a_slot_shows_the_pid_while_its_process_is_there():
    talk = Talk()
    talk.say(PoolStarted())
    assert talk.pool.slots()[0].pid == 0
    assert talk.say(ProcessSpawned(slot=0, generation=1, pid=77)) == []
    assert talk.pool.slots()[0].pid == 77
    talk.die()
    assert talk.pool.slots()[0].pid == 0
    assert talk.pool.slots()[0].last_exit == "exit code 1"


def test_a_process_that_exits_is_replaced_after_the_delay():
    talk = Talk(restart_delay_ms=1_000)
    talk.start()
    assert talk.die(at=500) == [ReportSlot(slot=0, state="WAITING", reason="exit code 1", until_ms=1_500)]
    assert talk.pool.next_deadline() == (1_500, "WAITING of executor slot 0")
    assert talk.say(PoolTicked(), at=1_499) == []
    assert talk.say(PoolTicked(), at=1_500) == [
        ReportSlot(slot=0, state="RUNNING", reason="WAITING is over", until_ms=None),
        SpawnExecutor(slot=0, generation=2),
    ]
    assert talk.pool.next_deadline() is None


def test_a_failed_spawn_counts_like_an_exit():
    talk = Talk(max_restarts=0, backoff_ms=300)
    talk.say(PoolStarted())
    report = talk.report(talk.say(SpawnFailed(slot=0, generation=1, message="no such interpreter")))
    assert (report.state, report.until_ms) == ("BACKOFF", 300)
    assert report.reason == "no such interpreter; more than 0 exits within 60000 ms, next start in 300 ms"


def test_an_exit_may_overtake_the_news_of_the_spawn():
    talk = Talk()
    talk.say(PoolStarted())
    talk.die()
    assert talk.say(ProcessSpawned(slot=0, generation=1, pid=7)) == [
        PoolDropped(event="ProcessSpawned", reason="the process is gone already", slot=0)
    ]


def test_too_many_exits_within_the_window_mean_backoff_then_a_start():
    talk = Talk(max_restarts=3, restart_delay_ms=10, restart_window_ms=60_000, backoff_ms=30_000)
    talk.start()
    talk.crash_and_restart(3)
    assert talk.state() == "RUNNING"
    report = talk.report(talk.die())
    assert (report.state, report.until_ms) == ("BACKOFF", talk.now + 30_000)
    assert talk.pool.next_deadline() == (talk.now + 30_000, "BACKOFF of executor slot 0")
    assert talk.say(PoolTicked(), at=talk.now + 30_000)[1:] == [SpawnExecutor(slot=0, generation=5)]


def test_a_process_that_keeps_dying_starts_once_per_backoff_until_old_exits_have_aged():
    talk = Talk(max_restarts=1, restart_delay_ms=0, restart_window_ms=1_000, backoff_ms=400)
    talk.start()
    talk.crash_and_restart(1)
    talk.die()
    assert talk.state() == "BACKOFF"
    talk.say(PoolTicked(), at=400)
    talk.die()
    assert talk.state() == "BACKOFF"
    talk.say(PoolTicked(), at=1_500)
    talk.die()
    assert talk.state() == "WAITING"


def test_exits_that_are_older_than_the_window_do_not_count():
    talk = Talk(max_restarts=1, restart_delay_ms=0, restart_window_ms=1_000)
    talk.start()
    for at in (0, 1_000, 2_000, 3_000):
        talk.die(at=at)
        assert talk.state() == "WAITING"
        talk.say(PoolTicked())
    talk.die(at=3_999)
    assert talk.state() == "BACKOFF"


def test_a_deliberate_exit_does_not_count_and_is_replaced_at_once():
    talk = Talk(max_restarts=0)
    talk.start()
    for generation in (2, 3, 4):
        assert talk.die(deliberate=True) == [
            ReportSlot(slot=0, state="RUNNING", reason="exit code 1", until_ms=None),
            SpawnExecutor(slot=0, generation=generation),
        ]
    assert talk.pool.slots()[0].recent_exits == 0


def test_slots_restart_independently_in_the_order_of_their_numbers():
    talk = Talk(size=3, restart_delay_ms=100)
    talk.start()
    talk.die(slot=2)
    talk.die(slot=0)
    assert talk.pool.next_deadline() == (100, "WAITING of executor slot 0")
    spawned = [
        command.slot for command in talk.say(PoolTicked(), at=100) if isinstance(command, SpawnExecutor)
    ]
    assert spawned == [0, 2]


def test_stopping_ends_what_runs_and_starts_nothing_again():
    talk = Talk(size=3, restart_delay_ms=100, max_restarts=1)
    talk.start()
    talk.die(slot=1)
    commands = talk.say(PoolStopped())
    assert [command for command in commands if isinstance(command, StopExecutor)] == [
        StopExecutor(slot=0, generation=1),
        StopExecutor(slot=2, generation=1),
    ]
    assert {slot.state for slot in talk.pool.slots()} == {PoolSlotState.STOPPED}
    assert talk.say(PoolTicked(), at=10_000) == []
    settled = [talk.pool.settled]
    assert talk.die(slot=0) == []
    settled.append(talk.pool.settled)
    assert talk.die(slot=2, deliberate=True) == []
    assert [*settled, talk.pool.settled] == [False, False, True]
    assert talk.pool.next_deadline() is None


def test_a_process_that_turns_up_after_the_stop_is_stopped_too():
    talk = Talk()
    talk.say(PoolStarted())
    assert StopExecutor(slot=0, generation=1) in talk.say(PoolStopped())
    assert talk.say(ProcessSpawned(slot=0, generation=1, pid=5)) == [StopExecutor(slot=0, generation=1)]
    talk.die()
    assert talk.pool.settled


def test_a_spawn_that_fails_after_the_stop_settles_the_pool():
    talk = Talk()
    talk.say(PoolStarted())
    talk.say(PoolStopped())
    assert talk.say(SpawnFailed(slot=0, generation=1, message="")) == []
    assert talk.pool.settled


def test_the_pool_starts_once_and_stops_once():
    talk = Talk()
    not_running = [PoolDropped(event="PoolStopped", reason="the pool does not run", slot=POOL)]
    before = [PoolDropped(event="PoolStarted", reason="the pool was started before", slot=POOL)]
    assert talk.say(PoolStopped()) == not_running
    talk.start()
    assert talk.say(PoolStarted()) == before
    talk.say(PoolStopped())
    assert talk.say(PoolStarted()) == before
    assert talk.say(PoolStopped()) == not_running
    assert talk.pool.dropped == {
        ("PoolStopped", "the pool does not run"): 2,
        ("PoolStarted", "the pool was started before"): 2,
    }


@pytest.mark.parametrize(
    ("slot", "generation", "reason"),
    [
        (7, 1, "no such slot"),
        (-1, 1, "no such slot"),
        (0, 1, "another generation"),
        (0, 3, "another generation"),
    ],
)
def test_news_of_another_process_changes_nothing(slot, generation, reason):
    talk = Talk()
    talk.start()
    talk.die(deliberate=True)
    before = talk.pool.slots()
    for event in (
        ProcessSpawned(slot=slot, generation=generation, pid=9),
        SpawnFailed(slot=slot, generation=generation, message=""),
        ProcessExited(slot=slot, generation=generation, deliberate=False, message=""),
    ):
        assert talk.say(event) == [PoolDropped(event=type(event).__name__, reason=reason, slot=slot)]
    assert talk.pool.slots() == before


def test_the_same_news_twice_changes_nothing():
    talk = Talk()
    talk.start()
    assert talk.say(ProcessSpawned(slot=0, generation=1, pid=8)) == [
        PoolDropped(event="ProcessSpawned", reason="the process was spawned before", slot=0)
    ]
    assert talk.pool.slots()[0].pid == 100
    talk.die()
    assert talk.die() == [PoolDropped(event="ProcessExited", reason="the process is gone already", slot=0)]


def test_the_memory_for_exits_is_bounded():
    talk = Talk(max_restarts=2, restart_delay_ms=0, backoff_ms=0)
    talk.start()
    talk.crash_and_restart(50)
    assert talk.pool.slots()[0].recent_exits == 3


@pytest.mark.parametrize("field", ["size", "restart_window_ms"])
def test_a_config_out_of_range_is_an_error_that_names_the_field(field):
    with pytest.raises(ValueError, match=field):
        PoolConfig(**({"size": 1} | {field: 0}))


def test_every_state_is_reached_and_every_move_is_used():
    assert {INITIAL_STATE, *TRANSITIONS.values()} == set(PoolSlotState)
    assert {move for _, move in TRANSITIONS} == set(PoolMove)
