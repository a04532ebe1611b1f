"""Equal calls among subcalls and root calls: who runs, who waits, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from blockx_executor.wire.messages import CallError
from blockx_worker.dispatch.commands import ArmCallRetry
from blockx_worker.dispatch.source import ResolvedFunction
from tests.dispatch.driver import (
    COLLECT_ALL,
    DIGEST,
    FUNCTION,
    Talk,
    armed,
    dispatched,
    dropped,
    of,
)

UNSHARED = ResolvedFunction("pkg.mod.now", DIGEST, "now", no_cache=True)


def _out(*args: object, executors: int = 1, **config: int) -> Talk:
    talk = Talk(**config)
    for number in range(executors):
        talk.attach(f"exec-{number}")
    talk.start("t", [[arg] for arg in args], COLLECT_ALL)
    talk.turns()
    return talk


def _kind(answer: bytes | CallError) -> str:
    assert isinstance(answer, CallError)
    return answer.kind


def test_a_known_result_answers_at_once() -> None:
    """Results of root calls and subcalls are in one cache; a hit costs no budget."""
    talk = _out(1, 2)
    talk.begin("t/0", [7])
    talk.complete("t/0/sub-1", output=b"49", budget_used_ms=5)
    talk.ask("t/1", [7])
    assert talk.answer() == b"49"
    assert talk.answers[2].budget_used_ms == 0
    talk.complete("t/0", output=b"50")
    talk.ask("t/1", [1], FUNCTION)
    assert talk.answer() == b"50"
    talk.complete("t/1")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.subcalls, statistic.cache_hits) == (3, 0)


def test_an_uncacheable_function_runs_every_time() -> None:
    """Neither in flight nor later."""
    talk = _out(1)
    first, second = talk.begin("t/0", [7], UNSHARED), talk.begin("t/0", [7], UNSHARED)
    talk.complete(first, output=b"1")
    third = talk.begin("t/0", [7], UNSHARED)
    talk.complete(second, third, output=b"2")
    assert [talk.answer(number) for number in (1, 2, 3)] == [b"1", b"2", b"2"]


def test_equal_subcalls_in_flight_run_once() -> None:
    """Of one parent or of several, on other executors too; sharing costs no budget."""
    talk = _out(1, 2, executors=2)
    first = talk.begin("t/0", [7])
    assert talk.ask("t/0", [7]) == []
    assert talk.ask("t/1", [7]) == []
    talk.complete(first, output=b"49", budget_used_ms=9)
    talk.turns()
    assert [talk.answer(number) for number in (1, 2, 3)] == [b"49"] * 3
    assert [talk.answers[number].budget_used_ms for number in (1, 2, 3)] == [9, 0, 0]
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert statistic.subcalls == 3


def test_a_root_call_follows_a_subcall() -> None:
    """The equal root call that comes later waits for it, and is a cache hit."""
    talk = Talk(task_max_inflight_calls=2)
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [3]])
    talk.turns()
    first = talk.begin("t/0", [3], FUNCTION)
    talk.complete("t/1")
    assert dispatched(talk.turns()) == {}
    talk.complete(first, output=b"9")
    talk.turns()
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1", b"null", b"9"]
    assert talk.ends["t"].statistic.cache_hits == 1


def test_a_subcall_follows_a_root_call_that_runs() -> None:
    """Its success is the subcall's answer."""
    talk = _out(1, 2)
    assert talk.ask("t/0", [2], FUNCTION) == []
    talk.complete("t/1", output=b"4")
    talk.turns()
    assert talk.answer() == b"4"


def test_a_final_user_error_of_a_leader_is_shared() -> None:
    """By root calls as a failure, by subcalls as an exception."""
    talk = _out(1, 2, 3)
    first = talk.begin("t/0", [7])
    talk.ask("t/1", [7])
    talk.fail(first, message="no")
    talk.turns()
    error = talk.answer(2)
    assert isinstance(error, CallError)
    assert (error.kind, error.message) == ("USER_ERROR", "no")
    talk.complete("t/0", "t/1", "t/2")
    talk.turns()
    assert talk.ends["t"].failure is None


@pytest.mark.parametrize(
    ("kind", "retryable"), [("BUDGET_EXCEEDED", False), ("CANCELLED", False), ("USER_ERROR", True)]
)
def test_an_unshared_failure_hands_the_key_to_the_next(kind: str, retryable: bool) -> None:
    """It runs at once, on its own parent's executor; the rest wait for that one."""
    talk = _out(1, 2, 3, executors=3)
    first = talk.begin("t/0", [7])
    talk.ask("t/1", [7])
    talk.ask("t/2", [7])
    out = talk.fail(first, kind, retryable=retryable)
    assert dispatched(out) == {"exec-1": ["t/1/sub-2"]}
    assert _kind(talk.answer(1)) == kind
    talk.complete("t/1/sub-2", output=b"49")
    talk.turns()
    assert [talk.answer(number) for number in (2, 3)] == [b"49", b"49"]


def test_subcalls_take_a_key_over_before_root_calls() -> None:
    """A root call that waited longer would only be queued; it follows the subcall instead."""
    talk = Talk(executor_max_inflight=2, task_max_inflight_calls=3)
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [7]], COLLECT_ALL)
    talk.turns()
    first = talk.begin("t/0", [7], FUNCTION)
    talk.turns()
    talk.ask("t/1", [7], FUNCTION)
    assert dispatched(talk.fail(first, "BUDGET_EXCEEDED")) == {"exec-0": ["t/1/sub-2"]}
    talk.complete("t/1/sub-2", output=b"49")
    talk.turns()
    assert talk.answer(2) == b"49"
    talk.complete("t/0", "t/1")
    talk.turns()
    assert talk.outputs["t"] == [b"null", b"null", b"49"]


def test_a_subcall_does_not_wait_for_a_queued_root_call() -> None:
    """The root call may wait for ever for an executor that is full of parents: it follows the subcall."""
    talk = Talk(executor_max_inflight=1)
    talk.attach("exec-0")
    talk.start("t", [[1], [2]])
    talk.turns()
    assert talk.out() == ["t/0"]
    assert dispatched(talk.ask("t/0", [2], FUNCTION)) == {"exec-0": ["t/0/sub-1"]}
    talk.complete("t/0/sub-1", output=b"4")
    assert talk.answer() == b"4"
    talk.complete("t/0", output=b"5")
    talk.turns()
    assert talk.outputs["t"] == [b"5", b"4"]
    assert talk.ends["t"].statistic.attempts == 1


def test_a_queued_root_call_leads_again_when_the_subcall_fails() -> None:
    """It was displaced, not forgotten."""
    talk = Talk(executor_max_inflight=1)
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [2]])
    talk.turns()
    talk.begin("t/0", [2], FUNCTION)
    talk.fail("t/0/sub-1", "BUDGET_EXCEEDED")
    talk.complete("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}
    talk.complete("t/1", output=b"4")
    talk.turns()
    assert talk.outputs["t"] == [b"null", b"4", b"4"]


def test_a_leader_in_back_off_is_not_waited_for() -> None:
    """A subcall that comes meanwhile runs; its success ends the back-off's purpose, the timer finds nothing to do."""
    talk = _out(1, 2)
    retry = armed(talk.fail("t/1", retryable=True))
    assert dispatched(talk.ask("t/0", [2], FUNCTION)) == {"exec-0": ["t/0/sub-1"]}
    talk.complete("t/0/sub-1", output=b"4")
    talk.turns()
    assert dropped(talk.retry(retry)) == [("call is over", 1)]
    talk.complete("t/0")
    talk.turns()
    assert talk.outputs["t"] == [b"null", b"4"]


def test_a_back_off_holds_for_a_leader_that_was_displaced() -> None:
    """The subcall failed: the root call leads again, but not before its time."""
    talk = _out(1, 2)
    retry = armed(talk.fail("t/1", retryable=True))
    talk.begin("t/0", [2], FUNCTION)
    talk.fail("t/0/sub-1", "BUDGET_EXCEEDED")
    assert talk.turns() == []
    talk.retry(retry)
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


def test_a_back_off_that_ends_while_displaced_waits_for_the_subcall() -> None:
    """Equal calls run one at a time."""
    talk = _out(1, 2)
    retry = armed(talk.fail("t/1", retryable=True))
    talk.begin("t/0", [2], FUNCTION)
    talk.retry(retry)
    assert talk.turns() == []
    talk.fail("t/0/sub-1", "BUDGET_EXCEEDED")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


@pytest.mark.parametrize("how", ["fails", "is lost", "is given back", "is refused"])
def test_a_subcall_runs_itself_when_its_leader_loses_its_executor(how: str) -> None:
    """The leader will have to queue, and waiting for a queued call may have no end."""
    talk = _out(1, 2, executors=2)
    assert talk.ask("t/0", [2], FUNCTION) == []
    assert talk.where("t/1") == "exec-1"
    retries = []
    if how == "fails":
        out = talk.fail("t/1", retryable=True)
    elif how == "is lost":
        out = talk.lose("exec-1", exit_code=-9)
    elif how == "is given back":
        out = talk.give_back("t/1")
    else:
        out = talk.refuse("t/1")
    retries = of(out, ArmCallRetry)
    assert dispatched(out) == {"exec-0": ["t/0/sub-1"]}
    for retry in retries:
        talk.retry(retry)
    assert talk.turns() == []
    talk.complete("t/0/sub-1", output=b"4")
    talk.turns()
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1", b"4"]


def test_two_calls_that_call_each_other_both_end() -> None:
    """f(1) → g(2) beside g(2) → f(1): one follows, the other runs itself and meets itself above."""
    talk = Talk()
    talk.attach("exec-0", "exec-1")
    talk.start("t", [[1], [2]], COLLECT_ALL)  # t/0 is f(1), t/1 plays g(2)
    talk.turns()
    assert talk.ask("t/0", [2], FUNCTION) == []  # follows t/1
    (executor,) = dispatched(talk.ask("t/1", [1], FUNCTION)).values()
    assert executor == ["t/1/sub-2"]  # t/0 waits for t/1: it runs itself
    talk.ask("t/1/sub-2", [2], FUNCTION)
    assert _kind(talk.answer()) == "SUBCALL_CYCLE"
    talk.complete("t/1/sub-2", output=b"1")
    talk.complete("t/1", output=b"2")
    talk.turns()
    assert talk.answer(1) == b"2"
    talk.complete("t/0", output=b"3")
    talk.turns()
    assert talk.outputs["t"] == [b"3", b"2"]


def test_who_has_a_result_first_answers_for_the_key() -> None:
    """A subcall that ran beside the leader: those that wait for the leader need not wait longer."""
    talk = _out(1, 2, 3)
    talk.ask("t/0", [2], FUNCTION)
    beside = talk.begin("t/1", [1], FUNCTION)
    assert talk.ask("t/2", [1], FUNCTION) == []  # follows t/0
    talk.complete(beside, output=b"1")
    talk.turns()
    assert talk.answer(3) == b"1"
    talk.ask("t/2", [1], FUNCTION)
    assert talk.answer() == b"1"
    talk.complete("t/1", output=b"2")
    talk.turns()
    talk.complete("t/0", output=b"5")
    talk.complete("t/2")
    talk.turns()
    assert talk.outputs["t"] == [b"5", b"2", b"null"]


def test_a_circle_over_three_trees_is_seen() -> None:
    """A waits for B, B for C: C's subcall must not wait for A."""
    talk = _out(1, 2, 3)
    assert talk.ask("t/0", [2], FUNCTION) == []
    assert talk.ask("t/1", [3], FUNCTION) == []
    assert dispatched(talk.ask("t/2", [1], FUNCTION)) == {"exec-0": ["t/2/sub-3"]}
    talk.complete("t/2/sub-3")
    talk.complete("t/2", output=b"3")
    talk.turns()
    talk.complete("t/1", output=b"2")
    talk.turns()
    assert talk.answer(1) == b"2"


def test_a_circle_through_a_subtree_is_seen() -> None:
    """The leader waits through a subcall of a subcall."""
    talk = _out(1, 2)
    child = talk.begin("t/0", [5])
    assert talk.ask(child, [2], FUNCTION) == []
    grandchild = talk.begin("t/1", [6])
    assert dispatched(talk.ask(grandchild, [5])) == {"exec-0": [f"{grandchild}/sub-4"]}
    assert talk.ask(grandchild, [7]) != []


def test_waiting_for_a_leader_that_waits_for_others_is_fine() -> None:
    """Only a circle is a reason to run twice."""
    talk = _out(1, 2, 3)
    child = talk.begin("t/1", [5])
    assert talk.ask("t/0", [2], FUNCTION) == []
    assert talk.ask("t/2", [5]) == []
    talk.complete(child, output=b"5")
    talk.turns()
    assert talk.answer(3) == b"5"


def test_a_queued_leader_that_was_overtaken_need_not_run() -> None:
    """The subcall ran beside it while it ran; then it failed, and the subcall's result is there before its retry."""
    talk = _out(1, 2)
    assert talk.ask("t/1", [1], FUNCTION) == []  # t/1 waits for t/0
    beside = talk.begin("t/0", [2], FUNCTION)  # so it does not wait for t/1
    retry = armed(talk.fail("t/1", retryable=True))
    talk.complete(beside, output=b"4")
    talk.turns()
    assert dropped(talk.retry(retry)) == [("call is over", 1)]
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1", b"4"]
    assert talk.ends["t"].statistic.cache_hits == 1


@pytest.mark.parametrize("cached", [True, False])
def test_a_leader_that_was_overtaken_while_it_ran_takes_the_result_when_it_fails(cached: bool) -> None:
    """It does not lead any more, so it looks again before it runs again."""
    talk = _out(1, 2, call_cache_bytes=1 << 20 if cached else 0)
    assert talk.ask("t/1", [1], FUNCTION) == []
    talk.complete(talk.begin("t/0", [2], FUNCTION), output=b"4")
    retry = armed(talk.fail("t/1", retryable=True))
    talk.turns()
    assert dropped(talk.retry(retry)) == ([("call is over", 1)] if cached else [])
    talk.turns()
    talk.complete("t/0")
    assert talk.out() == ([] if cached else ["t/1"])
