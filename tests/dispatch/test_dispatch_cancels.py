"""Dropped tasks and what executors still hold of them; wedged, deaf and silent executors."""

from __future__ import annotations

import pytest

from blockx_executor.wire.messages import HeartbeatPayload
from blockx_worker.dispatch.events import CallsFinished, DispatchRefused, ExecutorHeartbeat, ExecutorObserved
from tests.dispatch.driver import Talk, armed, cancelled, completed, dispatched, dropped, failed, killed


def test_a_dropped_task_is_cancelled_and_forgotten() -> None:
    """What is out is cancelled at once; nothing of the task comes back."""
    talk = Talk()
    talk.attach("exec-0", "exec-1")
    talk.start("t", [[i] for i in range(3)])
    talk.turns()
    assert cancelled(talk.drop("t")) == {"exec-0": ["t/0", "t/2"], "exec-1": ["t/1"]}
    assert talk.core.progress("t") is None
    assert dropped(talk.drop("t")) == [("task is not known", 1)]
    assert talk.turns() == []
    assert "t" not in talk.ends


def test_a_context_stays_taken_until_the_executor_says_so() -> None:
    """A cancelled call of a dropped task still has its greenlet."""
    talk = Talk()
    talk.attach("exec-0", contexts=2)
    talk.start("t", [[0], [1]])
    talk.turns()
    calls = list(talk.aboard["exec-0"].values())
    talk.drop("t")
    talk.start("u", [[0], [1]])
    assert talk.turns() == []
    assert talk.core.executors()[0].inflight == 2
    assert talk.say(CallsFinished(executor_id="exec-0", frames=[failed(calls[0], "CANCELLED")])) == []
    assert dispatched(talk.turns()) == {"exec-0": ["u/0"]}
    assert talk.say(CallsFinished(executor_id="exec-0", frames=[completed(calls[1])])) == []
    assert dispatched(talk.turns()) == {"exec-0": ["u/1"]}
    again = talk.say(CallsFinished(executor_id="exec-0", frames=[completed(calls[1])]))
    assert dropped(again) == [("call is not bound to this executor", 1)]


def test_a_task_id_may_come_again_while_zombies_live() -> None:
    """The end of an old attempt never ends one of the new task, though ids are equal."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    old = talk.aboard["exec-0"].pop("t/0")
    talk.drop("t")
    talk.start("t", [[0]])
    talk.turns()
    assert talk.sent("t/0").attempt_seq == 2
    assert talk.say(CallsFinished(executor_id="exec-0", frames=[completed(old, b"old")])) == []
    assert talk.core.executors()[0].inflight == 1
    talk.complete("t/0", output=b"new")
    talk.turns()
    assert talk.outputs["t"] == [b"new"]


def test_a_refused_zombie_gives_its_context_back() -> None:
    """It was never sent, so no frame will come."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    talk.drop("t")
    assert talk.say(DispatchRefused(executor_id="exec-0", call_ids=["t/0"])) == []
    assert talk.core.executors()[0].inflight == 0


def test_a_task_is_dropped_in_any_condition() -> None:
    """With followers, back-offs, answers owed, a stop under way, or after its end."""
    talk = Talk(executor_max_inflight=4)
    talk.attach("exec-0")
    talk.start("a", [[0], [0], [1], [2], [2]])
    talk.turns()
    retry = armed(talk.fail("a/0", retryable=True))
    talk.complete("a/3")
    talk.drop("a")
    assert dropped(talk.retry(retry)) == [("call is over", 1)]
    talk.start("b", [[0], [1], [2]])
    talk.turns()
    talk.fail("b/0")
    talk.drop("b")
    talk.turns()
    talk.start("c", [])
    talk.turns()
    talk.drop("c")
    talk.start("d", [[0]] * 3)
    talk.drop("d")
    assert talk.turns() == []
    assert talk.core.calls_done == 2


def test_a_dropped_tasks_cancels_are_ordered_once() -> None:
    """What the stop has cancelled already is not cancelled again."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0], [1]])
    talk.turns()
    talk.fail("t/0")
    assert cancelled(talk.turns()) == {"exec-0": ["t/1"]}
    assert talk.drop("t") == []


# --- wedged


def _long_calls(*, budget_ms: int = 1000, calls: int = 2) -> Talk:
    """Some calls on one executor; it is killed 500 ms after a call's limit."""
    talk = Talk(
        wedge_grace_ms=500, cancel_kill_ms=2000, heartbeat_timeout_ms=10_000, function_load_timeout_ms=5000
    )
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(calls)], budget_ms=budget_ms)
    talk.turns()
    return talk


def test_a_call_beyond_its_limit_is_wedged() -> None:
    """Budget and grace, by our own clock, between two equal reads."""
    talk = _long_calls()
    talk.observe("exec-0", "t/1", at=100)
    talk.observe("exec-0", "t/1", at=1600)
    assert talk.sweep() == []
    talk.observe("exec-0", "t/1", at=1601)
    order = killed(talk.sweep())
    assert (order.executor_id, order.call_id) == ("exec-0", "t/1")
    assert "t/1" in order.message
    assert not talk.core.has_attached_executor
    assert talk.core.executors()[0].healthy is False


def test_an_executor_is_killed_once() -> None:
    """One order per life, and no new calls meanwhile."""
    talk = _long_calls()
    talk.observe("exec-0", "t/1", at=0)
    talk.observe("exec-0", "t/1", at=9000)
    killed(talk.sweep())
    assert talk.sweep(at=99_000) == []
    talk.start("u", [[0]])
    assert talk.turns() == []


def test_a_switch_in_between_is_not_wedged() -> None:
    """The same call with another ``since`` gave the thread away meanwhile."""
    talk = _long_calls()
    talk.observe("exec-0", "t/1", since=1, at=0)
    talk.observe("exec-0", "t/1", since=2, at=9000)
    assert talk.sweep() == []


def test_one_read_proves_nothing() -> None:
    """However long ago it was."""
    talk = _long_calls()
    talk.observe("exec-0", "t/1", at=0)
    assert talk.sweep(at=9000) == []


def test_a_black_box_that_shows_nonsense_is_ignored() -> None:
    """User code may write the page; a number that is not bound there kills nobody."""
    talk = _long_calls()
    talk.observe("exec-0", call_no=77, at=0)
    talk.observe("exec-0", call_no=77, at=9000)
    assert talk.sweep() == []


def test_loading_has_its_own_limit() -> None:
    """An import may take a minute, whatever the budget."""
    talk = _long_calls()
    talk.observe("exec-0", "t/0", loading=True, at=0)
    talk.observe("exec-0", "t/0", loading=True, at=5500)
    assert talk.sweep() == []
    talk.observe("exec-0", "t/0", loading=True, at=5501)
    assert "loading" in killed(talk.sweep()).message


def test_a_call_without_a_budget_is_never_wedged() -> None:
    """It may run for ever; only a cancel ends it."""
    talk = _long_calls(budget_ms=0)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=1_000_000)
    assert talk.sweep() == []


def test_a_wedged_zombie_is_killed_too() -> None:
    """Its task is gone, its process is not."""
    talk = _long_calls()
    number = talk.sent("t/0").call_no
    talk.drop("t")
    talk.observe("exec-0", call_no=number, at=0)
    talk.observe("exec-0", call_no=number, at=1501)
    assert killed(talk.sweep()).call_id == "t/0"
    assert talk.lose("exec-0", exit_code=-9, by_us=True) == []


# --- deaf to a cancel


def test_a_cancelled_call_that_owns_the_thread_is_killed() -> None:
    """Two equal reads show that it is the one that does not stop."""
    talk = _long_calls(budget_ms=0)
    number = talk.sent("t/0").call_no
    talk.drop("t")
    talk.observe("exec-0", call_no=number, at=1500)
    talk.observe("exec-0", call_no=number, at=1999)
    assert talk.sweep() == []
    assert killed(talk.sweep(at=2000)).call_id == "t/0"


def test_a_cancelled_call_behind_a_long_one_kills_nobody() -> None:
    """It waits for the thread, and the call that has it is within its limit."""
    talk = Talk(cancel_kill_ms=2000)
    talk.attach("exec-0")
    talk.start("long", [[0]], budget_ms=0)
    talk.start("t", [[0]])
    talk.turns()
    talk.drop("t")
    talk.observe("exec-0", "long/0", at=1500)
    talk.observe("exec-0", "long/0", at=2000)
    assert talk.sweep(at=5000) == []


def test_a_cancelled_call_that_just_got_the_thread_is_given_another_look() -> None:
    """One read may have caught it as it stops."""
    talk = Talk(cancel_kill_ms=2000)
    talk.attach("exec-0")
    talk.start("long", [[0]], budget_ms=0)
    talk.start("t", [[0]])
    talk.turns()
    number = talk.sent("t/0").call_no
    talk.drop("t")
    talk.observe("exec-0", "long/0", at=1500)
    talk.observe("exec-0", call_no=number, at=2000)
    assert talk.sweep() == []
    talk.observe("exec-0", call_no=number, at=2500)
    assert killed(talk.sweep()).call_id == "t/0"


def test_a_cancelled_call_on_an_idle_executor_is_killed() -> None:
    """Nothing runs there that could explain why no answer comes."""
    talk = _long_calls(budget_ms=0)
    talk.drop("t")
    talk.observe("exec-0", call_no=0, at=1500)
    assert talk.sweep(at=2000) == []
    talk.observe("exec-0", call_no=0, at=2000)
    killed(talk.sweep())


@pytest.mark.parametrize(("running", "dies"), [("t/0", True), ("long/0", False), (None, True)])
def test_without_a_black_box_the_heartbeat_has_the_word(running: str | None, dies: bool) -> None:
    """It says which call runs; when it says none, nothing speaks for the executor."""
    talk = Talk(cancel_kill_ms=2000)
    talk.attach("exec-0")
    talk.start("long", [[0]], budget_ms=0)
    talk.start("t", [[0]])
    talk.turns()
    talk.drop("t")
    talk.heartbeat("exec-0", at=2000, running_call_id=running, running_attempt_seq=1)
    assert bool(talk.sweep()) is dies


def test_a_cancel_that_was_answered_kills_nobody() -> None:
    """The context is free again."""
    talk = _long_calls(calls=1)
    call = talk.aboard["exec-0"]["t/0"]
    talk.drop("t")
    talk.say(CallsFinished(executor_id="exec-0", frames=[failed(call, "CANCELLED")]), at=1999)
    talk.heartbeat("exec-0")
    assert talk.sweep(at=2500) == []


def test_a_stopping_task_converges_after_the_kill() -> None:
    """The cancelled call is over with its process; it is not charged as wedged."""
    talk = _long_calls()
    talk.fail("t/1")
    talk.turns()
    talk.observe("exec-0", "t/0", at=1000)
    talk.observe("exec-0", "t/0", at=2000)
    assert killed(talk.sweep(at=2000)).call_id == "t/0"
    talk.lose("exec-0", exit_code=-9, by_us=True)
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.failed, statistic.cancelled) == (1, 1)


# --- silent


def test_a_silent_executor_is_killed() -> None:
    """No heartbeat, and nothing runs that explains it."""
    talk = _long_calls()
    assert talk.sweep(at=10_000) == []
    order = killed(talk.sweep(at=10_001))
    assert (order.kind, order.call_id) == ("EXECUTOR_LOST", "")
    assert "10001 ms" in order.message


def test_native_code_within_its_limit_is_busy_not_dead() -> None:
    """It may hold the interpreter, so that no heartbeat is sent."""
    talk = _long_calls(budget_ms=60_000)
    talk.observe("exec-0", "t/0", at=100)
    talk.observe("exec-0", "t/0", at=20_000)
    assert talk.sweep() == []
    talk.observe("exec-0", call_no=0, at=20_500)
    assert killed(talk.sweep()).kind == "EXECUTOR_LOST"


def test_an_old_read_does_not_excuse_silence() -> None:
    """A black box that nobody could read lately says nothing about now."""
    talk = _long_calls(budget_ms=60_000)
    talk.observe("exec-0", "t/0", at=100)
    assert killed(talk.sweep(at=20_000)).kind == "EXECUTOR_LOST"


def test_a_silent_executors_calls_go_elsewhere() -> None:
    """We killed it for silence: nobody is known to be guilty; whoever had the main thread at the end is."""
    talk = _long_calls()
    killed(talk.sweep(at=10_001))
    assert talk.lose("exec-0", exit_code=-9, by_us=True) == []
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/0", "t/1"]}
    killed(talk.sweep(at=30_000))
    assert armed(talk.lose("exec-1", exit_code=-9, by_us=True, running="t/1")).call_id == "t/1"


def test_words_about_unknown_executors_are_dropped() -> None:
    """Heartbeats and reads may cross with a loss."""
    talk = Talk()
    heartbeat = HeartbeatPayload(
        executor_id="exec-9",
        heartbeat_seq=1,
        pid=1,
        version="0",
        runnable_count=0,
        inflight_count=0,
        available_contexts=1,
        memory_bytes=0,
    )
    said = talk.say(ExecutorHeartbeat(executor_id="exec-9", heartbeat=heartbeat))
    assert dropped(said) == [("executor is not attached", 1)]
    said = talk.say(ExecutorObserved(executor_id="exec-9", call_no=1, since=1, loading=False))
    assert dropped(said) == [("executor is not attached", 1)]
