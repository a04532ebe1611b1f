"""Which executor takes the next call, and in which order tasks and instances get their turns."""

from __future__ import annotations

import pytest

from blockx_worker.dispatch.events import ExecutorAttached
from blockx_worker.dispatch.executors import HOGGED_MS
from tests.dispatch.driver import Talk, dispatched, dropped


def test_the_least_loaded_executor_is_chosen() -> None:
    """Runnable first, then inflight, then headroom, then the smaller id."""
    talk = Talk()
    talk.attach("exec-10", "exec-2", contexts=8)
    talk.heartbeat("exec-2", runnable_count=2, available_contexts=8)
    talk.start("t", [[i] for i in range(4)])
    assert dispatched(talk.turns()) == {"exec-2": ["t/2"], "exec-10": ["t/0", "t/1", "t/3"]}


def test_ids_are_ordered_as_people_count() -> None:
    """exec-2 comes before exec-10."""
    talk = Talk()
    talk.attach("exec-10", "exec-2", "exec-1")
    assert [view.executor_id for view in talk.core.executors()] == ["exec-1", "exec-2", "exec-10"]
    talk.start("t", [[1]])
    assert dispatched(talk.turns()) == {"exec-1": ["t/0"]}


def test_headroom_breaks_a_tie() -> None:
    """Of two idle executors the larger one is chosen."""
    talk = Talk()
    talk.attach("exec-0", contexts=4)
    talk.attach("exec-1", contexts=8)
    talk.start("t", [[1]])
    assert dispatched(talk.turns()) == {"exec-1": ["t/0"]}


def test_runnable_is_corrected_by_what_came_and_went() -> None:
    """Between heartbeats our own dispatches and completions count."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(5)])
    talk.turns()
    assert talk.core.executors()[0].runnable == 5
    talk.heartbeat("exec-0", runnable_count=2)
    assert talk.core.executors()[0].runnable == 2
    talk.complete("t/0")
    assert talk.core.executors()[0].runnable == 1
    talk.complete("t/1", "t/2")
    assert talk.core.executors()[0].runnable == 0


@pytest.mark.parametrize("config", [{"executor_max_inflight": 2}, {"executor_max_runnable": 2}])
def test_limits_of_an_executor_hold(config: dict[str, int]) -> None:
    """No call goes where one of the limits is reached."""
    talk = Talk(**config)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(5)])
    talk.turns()
    assert talk.out() == ["t/0", "t/1"]
    assert not talk.core.turn_pending


def test_runnable_calls_of_a_heartbeat_count() -> None:
    """Contexts may be free while the main thread has more than enough to do."""
    talk = Talk(executor_max_runnable=3)
    talk.attach("exec-0")
    talk.heartbeat("exec-0", runnable_count=3)
    talk.start("t", [[1]])
    assert talk.turns() == []
    talk.heartbeat("exec-0", runnable_count=2)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}


def test_an_executor_above_the_memory_watermark_gets_nothing() -> None:
    """It may take calls again when it has given memory back."""
    talk = Talk(executor_memory_high_watermark=100)
    talk.attach("exec-0")
    talk.heartbeat("exec-0", memory_bytes=100)
    talk.start("t", [[1]])
    assert talk.turns() == []
    talk.heartbeat("exec-0", memory_bytes=99)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}


def test_an_executor_that_is_about_to_leave_gets_nothing() -> None:
    """A heartbeat without available contexts says that it takes no more."""
    talk = Talk()
    talk.attach("exec-0")
    talk.heartbeat("exec-0", available_contexts=0)
    talk.start("t", [[1]])
    assert talk.turns() == []


def test_a_silent_executor_gets_nothing() -> None:
    """No new calls while no heartbeat comes."""
    talk = Talk(heartbeat_timeout_ms=1000)
    talk.attach("exec-0")
    talk.now = 1001
    talk.start("t", [[1]])
    assert talk.turns() == []
    talk.heartbeat("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}


def test_a_stalled_executor_gets_nothing() -> None:
    """One call has kept its main thread for long: what is sent now would wait behind it."""
    talk = Talk(scheduler_stall_timeout_ms=1000, heartbeat_timeout_ms=60_000)
    talk.attach("exec-0")
    talk.start("t", [[1], [2]], budget_ms=0)
    talk.turn(1)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=1001)
    assert talk.turns() == []
    talk.observe("exec-0", "t/0", since=2)
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}
    talk.start("u", [[1]])
    talk.heartbeat("exec-0", running_for_ms=1001)
    assert talk.turns() == []


def test_an_executor_that_one_call_keeps_gets_nothing_although_it_says_nothing() -> None:
    """Native code that holds the interpreter keeps it from giving calls back; its black box tells."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    talk.turns()
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=HOGGED_MS)
    talk.start("u", [[1], [2]])
    assert talk.turns() == [], "they can wait here as well, and go wherever there is room first"
    talk.attach("exec-1", contexts=1)
    assert dispatched(talk.turns()) == {"exec-1": ["u/0"]}
    talk.complete("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["u/1"]}


def test_a_sample_looks_at_the_first_eligible_executors() -> None:
    """The others get calls when those are full."""
    talk = Talk(selection_sample_size=2)
    talk.attach("exec-0", "exec-1", contexts=2)
    talk.attach("exec-2", contexts=9)
    talk.start("t", [[i] for i in range(6)])
    assert dispatched(talk.turn(3)) == {"exec-0": ["t/0", "t/2"], "exec-1": ["t/1"]}
    assert dispatched(talk.turns()) == {"exec-1": ["t/5"], "exec-2": ["t/3", "t/4"]}


def test_an_executor_attaches_once() -> None:
    """A second attach of a living executor changes nothing; after its loss the id may come again."""
    talk = Talk()
    talk.attach("exec-0", contexts=1)
    again = talk.say(ExecutorAttached(executor_id="exec-0", usable_contexts=5))
    assert dropped(again) == [("executor is already attached", 1)]
    talk.lose("exec-0")
    assert not talk.core.has_attached_executor
    talk.attach("exec-0")
    assert talk.core.has_attached_executor


def test_tasks_take_turns() -> None:
    """Equal numbers of calls, however large a task is."""
    talk = Talk()
    talk.attach("exec-0", contexts=12)
    talk.start("a", [[i] for i in range(1000)])
    talk.start("b", [[i] for i in range(1000)])
    talk.start("c", [[i] for i in range(2)])
    talk.turns()
    assert talk.out() == ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1", "b/2", "b/3", "c/0", "c/1", "a/4", "a/5"]
    for _ in range(6):
        talk.complete(*talk.out()[:3])
        talk.turns()
    done = [talk.core.progress(task_id) for task_id in ("a", "b")]
    assert (
        abs(
            sum(p.succeeded + p.inflight for p in done[:1] if p)
            - sum(p.succeeded + p.inflight for p in done[1:] if p)
        )
        <= 4
    )


def test_a_small_task_does_not_wait_for_a_large_one() -> None:
    """A task that comes later gets the next free context but a few."""
    talk = Talk()
    talk.attach("exec-0", contexts=4)
    talk.start("large", [[i] for i in range(1000)])
    talk.turns()
    talk.start("small", [[1]])
    talk.complete("large/0")
    talk.turns()
    talk.complete("large/1")
    talk.turns()
    assert "small/0" in talk.out()


def test_no_task_overtakes_within_a_turn() -> None:
    """With many tasks in line none gets more than its part of the turn before the others got theirs."""
    talk = Talk()
    talk.attach("exec-0")
    for name in "abcdefgh":
        talk.start(name, [[i] for i in range(100)])
    talk.turn(16)
    assert sorted(call_id[0] for call_id in talk.out()) == sorted("abcdefgh" * 2)


def test_instances_get_equal_executor_time() -> None:
    """An instance with slow calls gets fewer of them, and many tasks do not help."""
    talk = Talk(instance_fairness=True)
    talk.attach("exec-0", contexts=4)
    talk.start("slow1", [[i] for i in range(1000)], instance_id="slow")
    talk.start("slow2", [[i] for i in range(1000)], instance_id="slow")
    talk.start("quick", [[i] for i in range(1000)], instance_id="quick")
    used = {"slow": 0, "quick": 0}
    talk.turns()
    for _ in range(300):
        call_id = talk.out()[0]
        run_us = 9000 if call_id.startswith("slow") else 1000
        used["slow" if run_us == 9000 else "quick"] += run_us
        talk.complete(call_id, run_us=run_us)
        talk.turns()
    assert 0.8 < used["slow"] / used["quick"] < 1.25
    slow = [talk.core.progress(task_id) for task_id in ("slow1", "slow2")]
    assert max(p.succeeded for p in slow if p) - min(p.succeeded for p in slow if p) <= 1


def test_a_quantum_serves_an_instance_in_a_row() -> None:
    """Switching less often costs less; in the long run it comes to the same."""
    talk = Talk(instance_fairness=True, instance_fairness_quantum=3)
    talk.attach("exec-0", contexts=9)
    for name in "ab":
        talk.start(name, [[i] for i in range(100)], instance_id=name)
    talk.turns()
    assert [call_id[0] for call_id in talk.out()] == list("aaabbbaaa")


def test_time_not_asked_for_cannot_be_saved_up() -> None:
    """An instance that comes late starts level with the others."""
    talk = Talk(instance_fairness=True)
    talk.attach("exec-0", contexts=2)
    talk.start("early", [[i] for i in range(1000)], instance_id="early")
    for _ in range(100):
        talk.turns()
        talk.complete(talk.out()[0], run_us=1000)
    talk.start("late", [[i] for i in range(1000)], instance_id="late")
    for _ in range(20):
        talk.turns()
        talk.complete(talk.out()[0], run_us=1000)
    late = talk.core.progress("late")
    assert late is not None
    assert 7 <= late.succeeded <= 13


def test_instances_are_forgotten_with_their_tasks() -> None:
    """Accounts do not pile up with instances that come once."""
    talk = Talk(instance_fairness=True)
    talk.attach("exec-0")
    for number in range(50):
        talk.start(f"t{number}", [[1]], instance_id=f"i{number}")
        talk.turns()
        talk.complete(f"t{number}/0", run_us=100)
        talk.turns()
        talk.drop(f"t{number}")
    assert len(talk.core._books.order._accounts) == 0  # type: ignore[attr-defined]  # the fair order's own
    talk.start("t", [[1]], instance_id="i")
    assert talk.core.turn_pending
