"""Calls that calls make: where they run, and which are refused."""

from __future__ import annotations

from blockx_executor.wire.messages import CallError
from blockx_worker.dispatch.commands import DispatchCalls
from blockx_worker.dispatch.events import SubcallRequested
from blockx_worker.dispatch.source import ResolvedFunction
from tests.dispatch.driver import (
    COLLECT_ALL,
    FAST_FAIL,
    FUNCTION,
    OTHER,
    Talk,
    armed,
    dispatched,
    dropped,
    of,
    waiting,
)


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
