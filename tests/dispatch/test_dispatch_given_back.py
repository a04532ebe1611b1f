"""Calls that an executor gives back because another one keeps its main thread."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from blockx_worker.dispatch.events import CallsGivenBack
from tests.dispatch.driver import COLLECT_ALL, Talk, cancelled, dispatched, dropped, returned


def _out(count: int, *executors: str, **config: int) -> Talk:
    talk = Talk(**config)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(count)], COLLECT_ALL)
    talk.turns()
    talk.attach(*executors)
    return talk


def test_another_executor_takes_what_was_given_back() -> None:
    """At no cost, before what has not been sent yet, in the old order."""
    talk = _out(5, "exec-1", executor_max_inflight=3)
    assert talk.out() == ["t/0", "t/1", "t/2"]
    assert talk.give_back("t/1", "t/2") == []
    assert dispatched(talk.turns()) == {"exec-1": ["t/1", "t/2", "t/3"]}
    assert talk.sent("t/1").attempt_seq == 2
    for call_id in ("t/0", "t/1", "t/2", "t/3"):
        talk.complete(call_id)
    talk.turns()
    talk.complete("t/4")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.attempts, statistic.retries) == (5, 0)


def test_no_call_goes_to_and_fro() -> None:
    """The only executor gets nothing until it has moved on, and no turn is pending for that."""
    talk = _out(3)
    talk.give_back("t/1", "t/2")
    assert talk.turns() == []
    talk.start("u", [[0]])
    assert talk.turns() == []
    talk.complete("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1", "t/2", "u/0"]}


def test_a_call_that_waits_shows_that_the_executor_moves() -> None:
    """The main thread is free again."""
    talk = _out(2)
    talk.give_back("t/1")
    talk.ask_io("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


def test_a_switch_between_two_looks_shows_that_the_executor_moves() -> None:
    """The first look may be at the call that is in the way, so it proves nothing."""
    talk = _out(3)
    talk.observe("exec-0", "t/1", since=1)
    talk.give_back("t/2")
    talk.observe("exec-0", "t/0", since=2)
    assert talk.turns() == []
    talk.observe("exec-0", "t/0", since=2)
    assert talk.turns() == []
    talk.observe("exec-0", "t/0", since=3)
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}


@pytest.mark.parametrize("sign", ["black box", "heartbeat"])
def test_an_idle_thread_shows_that_the_executor_moves(sign: str) -> None:
    """No call owns it."""
    talk = _out(2)
    talk.give_back("t/1")
    talk.heartbeat("exec-0", running_call_id="t/0", running_attempt_seq=1)
    assert talk.turns() == []
    if sign == "black box":
        talk.observe("exec-0", call_no=0)
    else:
        talk.heartbeat("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


def test_only_what_is_bound_is_given_back() -> None:
    """Another attempt, another task, an unknown executor: counted, nothing changed."""
    talk = _out(1)
    call = returned(talk.aboard["exec-0"]["t/0"])
    for executor_id, wrong, reason in (
        ("exec-9", call, "executor is not attached"),
        ("exec-0", replace(call, attempt_seq=2), "attempt is not the current one"),
        ("exec-0", replace(call, task_id="u"), "task does not match"),
        ("exec-0", replace(call, call_id="t/9"), "call is not bound to this executor"),
    ):
        event = CallsGivenBack(executor_id=executor_id, calls=[wrong], reason="")
        assert dropped(talk.say(event)) == [(reason, 1)]
    assert talk.out() == ["t/0"]


def test_a_call_that_has_asked_something_was_started() -> None:
    """It cannot be given back."""
    talk = _out(1)
    talk.ask_io("t/0")
    call = returned(talk.aboard["exec-0"]["t/0"])
    event = CallsGivenBack(executor_id="exec-0", calls=[call], reason="")
    assert dropped(talk.say(event)) == [("call has been started", 1)]


def test_a_cancelled_call_that_is_given_back_is_over() -> None:
    """With or without its cancel on the way."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0], [1], [2]])
    talk.turns()
    talk.fail("t/0")
    talk.give_back("t/1")
    assert cancelled(talk.turns()) == {"exec-0": ["t/2"]}
    talk.give_back("t/2")
    talk.turns()
    assert talk.ends["t"].statistic.cancelled == 2


def test_a_zombie_that_is_given_back_frees_its_context() -> None:
    """Its task is gone; nothing runs again."""
    talk = _out(2)
    talk.drop("t")
    assert talk.give_back("t/1") == []
    assert talk.core.executors()[0].inflight == 1


def test_a_subcall_goes_back_to_its_parents_executor() -> None:
    """It can go nowhere else, so it waits until the executor moves on."""
    talk = _out(2, "exec-1")
    first, second = talk.begin("t/0", [7]), talk.begin("t/0", [8])
    assert talk.give_back(first, second) == []
    assert talk.turns() == []
    assert dispatched(talk.complete("t/1")) == {"exec-0": [first, second]}
    talk.complete(first, output=b"49")
    assert talk.answer(1) == b"49"
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert statistic.subcalls == 2


def test_a_subcall_that_waits_to_go_back_ends_with_its_parent() -> None:
    """The executor moves on by the parent's own end: nothing is sent any more."""
    talk = _out(1)
    talk.give_back(talk.begin("t/0", [7]))
    assert talk.complete("t/0") == []
    talk.turns()
    assert talk.ends["t"].failure is None


def test_a_lost_executor_forgets_what_it_gave_back() -> None:
    """A call that was given back is aboard no loss."""
    talk = _out(2, max_uncharged_losses=0)
    talk.give_back("t/1")
    talk.lose("exec-0", exit_code=1, running="t/0")
    talk.attach("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}
