"""Calls that calls make: where they run, what they share, and what ends with what."""

from __future__ import annotations

import pytest

from blockx_executor.wire.messages import CallError
from blockx_worker.dispatch.commands import ArmCallRetry, CancelCalls, DispatchCalls
from blockx_worker.dispatch.events import CallRetryDue, CallsFinished, SubcallRequested
from blockx_worker.dispatch.source import ResolvedFunction
from tests.dispatch.driver import (
    COLLECT_ALL,
    DIGEST,
    FAST_FAIL,
    FUNCTION,
    OTHER,
    Talk,
    armed,
    cancelled,
    completed,
    dispatched,
    dropped,
    of,
    waiting,
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


# --- the plain way


def test_a_subcall_runs_beside_its_parent_and_answers_it() -> None:
    """It leaves with the event that asks for it, with the budget that was granted, and its time is reported back."""
    talk = _out(1)
    (sent,) = of(talk.ask("t/0", [7], budget_ms=300), DispatchCalls)
    (call,) = sent.calls
    assert (sent.executor_id, call.call_id, call.payload.parent_call_id) == ("exec-0", "t/0/sub-1", "t/0")
    assert (call.payload.function_id, call.payload.entry_selector) == (OTHER.function_id, "other")
    assert (call.payload.call_budget_ms, bytes(call.payload.args)) == (300, b"[7]")
    talk.complete("t/0/sub-1", output=b"49", budget_used_ms=12)
    assert talk.answer() == b"49"
    assert talk.answers[1].budget_used_ms == 12
    talk.complete("t/0", output=b"50")
    talk.turns()
    assert talk.outputs["t"] == [b"50"]
    statistic = talk.ends["t"].statistic
    assert (statistic.total, statistic.succeeded, statistic.attempts, statistic.subcalls) == (1, 1, 1, 1)
    assert (statistic.output_bytes, statistic.cache_hits) == (2, 0)


def test_ids_rise_over_the_whole_worker() -> None:
    """No two subcalls ever have one number, so nothing of an old one is taken for a new one's."""
    talk = _out(1, 2)
    assert talk.begin("t/0", [1]) == "t/0/sub-1"
    assert talk.begin("t/1", [2]) == "t/1/sub-2"
    talk.start("u", [[1]])
    talk.turns()
    assert talk.begin("u/0", [1]) == "u/0/sub-3"
    assert talk.begin("u/0/sub-3", [2]) == "u/0/sub-3/sub-4"


def test_a_subcall_that_fails_is_its_parents_affair() -> None:
    """Even where the first failure stops the task: the parent may go on without it."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], FAST_FAIL)
    talk.turns()
    talk.begin("t/0", [7])
    talk.fail("t/0/sub-1", message="no such row", retryable=True)
    error = talk.answer()
    assert isinstance(error, CallError)
    assert (error.kind, error.message, error.retryable) == ("USER_ERROR", "no such row", True)
    assert talk.turns() == []
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.ends["t"].failure is None
    assert talk.ends["t"].failed_calls == ()


def test_a_gather_waits_for_all() -> None:
    """Several requests of one call are open at once; each answer is sent when it is there."""
    talk = _out(1)
    for arg in range(3):
        talk.begin("t/0", [arg])
    talk.complete("t/0/sub-2", output=b"2")
    view = talk.core.call("t/0")
    assert view is not None
    assert (view.state.value, view.open_requests) == ("WAITING", 2)
    talk.complete("t/0/sub-1", "t/0/sub-3")
    view = talk.core.call("t/0")
    assert view is not None
    assert view.state.value == "RUNNING"


def test_executor_time_of_subcalls_counts_for_the_task() -> None:
    """It is the task that makes the executor work."""
    talk = _out(1)
    talk.begin("t/0", [7])
    talk.complete("t/0/sub-1", run_us=300)
    talk.complete("t/0", run_us=20)
    talk.turns()
    assert talk.ends["t"].statistic.run_us == 320


def test_a_subcall_is_shown_with_its_parent() -> None:
    """A view by id, for code and for people."""
    talk = _out(1)
    talk.begin("t/0", [7])
    view = talk.core.call("t/0/sub-1")
    assert view is not None
    assert (view.parent_call_id, view.index, view.function) == ("t/0", 0, OTHER)
    assert talk.core.call("t/0/sub-9") is None
    progress = talk.core.progress("t")
    assert progress is not None
    assert (progress.total, progress.inflight) == (1, 1)


def test_code_of_a_subcall_may_be_asked_for() -> None:
    """Its function has a digest of its own."""
    talk = _out(1)
    far = ResolvedFunction("pkg.far.fn", "e" * 64, "fn")
    assert not talk.core.digest_bound("exec-0", "e" * 64)
    talk.begin("t/0", [7], far)
    assert talk.core.digest_bound("exec-0", "e" * 64)
    assert talk.core.code_wanted("exec-0", "t/0/sub-1", "e" * 64) == far


# --- room


def test_parents_that_fill_an_executor_get_their_subcalls() -> None:
    """A subcall needs its parent's binding and nothing else: 128 parents do not wait for one another for ever."""
    talk = _out(*range(128), executor_max_inflight=128)
    assert len(talk.out()) == 128
    for index in range(128):
        talk.begin(f"t/{index}", [index])
    assert len(talk.out()) == 256
    for index in range(128):
        talk.complete(f"t/{index}/sub-{index + 1}", output=b"1")
    assert len(talk.answers) == 128


def test_subcalls_take_room_from_root_calls() -> None:
    """They are aboard like others, so an executor full of them gets no new root calls."""
    talk = _out(1, 2, 3, executor_max_inflight=2)
    talk.begin("t/0", [1])
    talk.complete("t/1")
    assert talk.turns() == []
    talk.complete("t/0/sub-1")
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}


def test_subcalls_do_not_stand_in_the_window() -> None:
    """The window is for root calls."""
    talk = _out(1, 2, 3, task_max_inflight_calls=2)
    for arg in range(5):
        talk.begin("t/0", [arg])
    talk.complete("t/1")
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}


# --- refusals


def test_a_function_that_cannot_be_had_is_refused_at_once() -> None:
    """With the reason that came with the request, else with the name."""
    talk = _out(1)
    talk.ask("t/0", [1], None, error=CallError(kind="FUNCTION_NOT_FOUND", message="did you mean other?"))
    error = talk.answer()
    assert isinstance(error, CallError)
    assert error.message == "did you mean other?"
    talk.ask("t/0", [1], None)
    assert _kind(talk.answer()) == "FUNCTION_NOT_FOUND"
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert statistic.subcalls == 0


def test_a_subcall_has_fewer_ancestors_than_the_limit() -> None:
    """With a depth of 3 a root call, its subcall and one below; the next is refused."""
    talk = _out(1, max_subcall_depth=3)
    deepest = talk.begin(talk.begin("t/0", [1]), [2])
    talk.ask(deepest, [3])
    error = talk.answer()
    assert isinstance(error, CallError)
    assert error.kind == "SUBCALL_DEPTH"
    assert "depth 3" in error.message
    assert "below 3" in error.message


def test_a_call_above_itself_is_a_circle() -> None:
    """The same function with the same arguments among the ancestors, the caller included."""
    talk = _out(1)
    talk.ask("t/0", [1], FUNCTION)
    assert _kind(talk.answer()) == "SUBCALL_CYCLE"
    child = talk.begin("t/0", [2])
    grandchild = talk.begin(child, [3])
    talk.ask(grandchild, [1], FUNCTION)
    error = talk.answer()
    assert isinstance(error, CallError)
    assert "pkg.mod.fn → pkg.mod.other → pkg.mod.other → pkg.mod.fn" in error.message
    assert not error.retryable
    talk.ask(grandchild, [2])
    assert _kind(talk.answer()) == "SUBCALL_CYCLE"
    talk.begin(grandchild, [4], FUNCTION)


def test_a_request_of_an_old_attempt_is_dropped() -> None:
    """From an executor that the parent is no longer bound to, or of an earlier attempt on the same one."""
    talk = _out(1, executors=2)
    old = talk.aboard["exec-0"]["t/0"]
    talk.retry(armed(talk.fail("t/0", retryable=True)))
    talk.turns()
    for executor_id, reason in (
        ("exec-0", "attempt is not the current one"),
        ("exec-1", "call is not bound to this executor"),
        ("exec-2", "executor is not attached"),
    ):
        event = SubcallRequested(
            executor_id=executor_id, frame=waiting(old, 1, "subcall"), function=OTHER, error=None
        )
        assert dropped(talk.say(event)) == [(reason, 1)]
    assert talk.out() == ["t/0"]


# --- sharing


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


# --- no circle, no dead end


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


# --- ends of parents


def _tree() -> tuple[Talk, str, str]:
    """One call with a subcall, and one below that."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], COLLECT_ALL)
    talk.turns()
    child = talk.begin("t/0", [2])
    return talk, child, talk.begin(child, [3])


@pytest.mark.parametrize("how", ["completes", "fails", "retries"])
def test_a_parents_end_ends_all_below_it(how: str) -> None:
    """They are told to stop and keep their contexts until they have; their late answers go nowhere."""
    talk, child, grandchild = _tree()
    calls = dict(talk.aboard["exec-0"])
    out = talk.complete("t/0") if how == "completes" else talk.fail("t/0", retryable=how == "retries")
    assert cancelled(out) == {"exec-0": [child, grandchild]}
    assert talk.core.executors()[0].inflight == 2
    frames = [completed(calls[child]), completed(calls[grandchild])]
    assert talk.say(CallsFinished(executor_id="exec-0", frames=frames)) == []
    assert talk.core.executors()[0].inflight == 0
    assert talk.answers == {}
    for retry in of(out, ArmCallRetry):
        talk.retry(retry)
    talk.turns()
    assert ("t" in talk.ends) is (how != "retries")


def test_a_parent_that_is_cancelled_takes_its_tree_along() -> None:
    """All are cancelled with one command; only the root call is waited for."""
    talk, child, grandchild = _tree()
    talk.start("u", [[1], [2]])
    talk.turns()
    talk.begin("u/0", [1])
    talk.fail("u/1")
    assert cancelled(talk.turns()) == {"exec-0": ["u/0/sub-3", "u/0"]}
    talk.fail("u/0", "CANCELLED")
    talk.turns()
    statistic = talk.ends["u"].statistic
    assert (statistic.total, statistic.failed, statistic.cancelled) == (2, 1, 1)
    assert talk.out() == ["t/0", child, grandchild, "u/0/sub-3"]


def test_a_dropped_task_takes_its_trees_along() -> None:
    """Nothing of it runs on unwatched."""
    talk, child, grandchild = _tree()
    assert cancelled(talk.drop("t")) == {"exec-0": ["t/0", child, grandchild]}
    assert talk.core.executors()[0].inflight == 3


def test_a_dead_subcall_does_not_stop_the_executor_from_being_killed() -> None:
    """A cancelled subcall that goes on is like any cancelled call."""
    talk, child, _ = _tree()
    talk.complete("t/0")
    number = talk.aboard["exec-0"][child].payload.call_no
    talk.observe("exec-0", call_no=number, at=0)
    talk.observe("exec-0", call_no=number, at=2500)
    (kill,) = talk.sweep()
    assert getattr(kill, "call_id", "") == child


def test_a_follower_whose_parent_ends_is_passed_over() -> None:
    """Nobody runs for it, and nobody is answered."""
    talk = _out(1, 2, 3)
    first = talk.begin("t/0", [7])
    talk.ask("t/1", [7])
    talk.ask("t/2", [7])
    assert of(talk.complete("t/1"), CancelCalls) == []
    assert dispatched(talk.fail(first, "BUDGET_EXCEEDED")) == {"exec-0": ["t/2/sub-3"]}
    talk.complete("t/2/sub-3", output=b"1")
    assert set(talk.answers) == {1, 3}


def test_a_follower_that_is_owed_an_answer_may_end_before_it() -> None:
    """Between the leader's end and the next turn."""
    talk = _out(1, 2)
    first = talk.begin("t/0", [7])
    talk.ask("t/1", [7])
    talk.complete(first, output=b"1")
    talk.complete("t/1")
    talk.turns()
    assert set(talk.answers) == {1}
    talk.complete("t/0")
    talk.turns()
    assert talk.ends["t"].failure is None


def test_a_leader_that_ends_with_its_parent_hands_over() -> None:
    """Those of other parents that wait for it go on."""
    talk = _out(1, 2, executors=2)
    talk.begin("t/0", [7])
    talk.ask("t/1", [7])
    out = talk.complete("t/0")
    assert dispatched(out) == {"exec-1": ["t/1/sub-2"]}
    assert cancelled(out) == {"exec-0": ["t/0/sub-1"]}


def test_a_batch_settles_when_its_calls_are_done() -> None:
    """Subcalls belong to the batch of their root call; what was cancelled with a parent is done."""
    talk = _out(1, 2)
    talk.begin("t/0", [7])
    talk.complete("t/1", output=b"2")
    assert talk.turns() == []
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1", b"2"]


# --- losses


def test_parents_and_subcalls_are_lost_together() -> None:
    """Only the root call runs again; it asks anew, and nothing is cancelled on a dead executor."""
    talk, _, _ = _tree()
    talk.attach("exec-1")
    assert talk.lose("exec-0", exit_code=-9) == []
    assert dispatched(talk.turns()) == {"exec-1": ["t/0"]}
    assert talk.begin("t/0", [2]) == "t/0/sub-3"
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert (statistic.attempts, statistic.retries, statistic.subcalls) == (2, 1, 3)


def test_a_root_call_answers_for_its_subcalls() -> None:
    """The process died in a subcall: its root call is charged, the neighbour is innocent."""
    talk = _out(1, 2)
    child = talk.begin("t/0", [7])
    retry = armed(talk.lose("exec-0", exit_code=-11, running=child))
    assert retry.call_id == "t/0"
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/1"]}


def test_a_wedged_subcall_fails_its_root_call() -> None:
    """The limit is the granted budget; the message names the subcall."""
    talk = _out(1, 2, wedge_grace_ms=500, heartbeat_timeout_ms=60_000)
    child = talk.begin("t/0", [7])
    talk.observe("exec-0", child, at=0)
    talk.observe("exec-0", child, at=1501)
    (kill,) = talk.sweep()
    assert getattr(kill, "call_id", "") == child
    talk.lose("exec-0", exit_code=-9, by_us=True)
    talk.attach("exec-1")
    talk.turns()
    talk.complete("t/1")
    talk.turns()
    (listed,) = talk.ends["t"].failed_calls
    assert (listed.index, listed.error_kind) == (0, "EXECUTOR_WEDGED")
    assert child in listed.message


def test_followers_of_lost_subcalls_go_on_elsewhere() -> None:
    """The key goes to a parent that lives; one on the dead executor gets nothing."""
    talk = _out(1, 2, 3, executors=2)
    assert [talk.where(f"t/{index}") for index in range(3)] == ["exec-0", "exec-1", "exec-0"]
    talk.begin("t/0", [7])
    talk.ask("t/2", [7])
    talk.ask("t/1", [7])
    assert dispatched(talk.lose("exec-0", exit_code=-9)) == {"exec-1": ["t/1/sub-3"]}
    talk.turns()
    assert talk.where("t/0") == talk.where("t/2") == "exec-1"


def test_a_subcall_that_could_not_be_sent_tries_again() -> None:
    """It never ran, so its one attempt is not used up; it stays with its parent."""
    talk = _out(1)
    child = talk.begin("t/0", [7])
    retry = armed(talk.refuse(child))
    assert dispatched(talk.retry(retry)) == {"exec-0": [child]}
    talk.complete(child, output=b"49")
    assert talk.answer() == b"49"
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert statistic.subcalls == 1


def test_a_back_off_of_a_subcall_ends_with_its_parent() -> None:
    """The timer finds nothing."""
    talk = _out(1)
    retry = armed(talk.refuse(talk.begin("t/0", [7])))
    talk.complete("t/0")
    event = CallRetryDue(task_id="t", call_id=retry.call_id, attempt_seq=retry.attempt_seq)
    assert dropped(talk.say(event)) == [("call is over", 1)]


def test_subcalls_of_a_stopping_task_may_still_end() -> None:
    """Between the failure and the turn that cancels: the answer goes to the parent, nothing is shared."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2]])
    talk.turns()
    first = talk.begin("t/0", [7])
    talk.ask("t/0", [7])
    talk.fail("t/1")
    talk.complete(first, output=b"49")
    assert talk.answer(1) == b"49"
    assert cancelled(talk.turns()) == {"exec-0": ["t/0"]}
    talk.fail("t/0", "CANCELLED")
    talk.turns()
    assert talk.ends["t"].statistic.cancelled == 1


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
