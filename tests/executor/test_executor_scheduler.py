"""The scheduler's rules, without a process."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_executor.calls import NEVER, BudgetExceeded, Call, CallCancelled, CallState, new_call
from blockx_executor.scheduler import Scheduler
from blockx_executor.waits import Answer
from blockx_executor.wire.messages import ExecuteCall, ExecuteCallPayload

ANSWER = Answer(msgspec.Raw(b"1"))


def make_call(call_id: str, digest: str = "d", parent: str | None = None, budget_ms: int = 5) -> Call:
    payload = ExecuteCallPayload(
        task_id="t", function_id="m.f", function_code_digest=digest, entry_selector="f", args=msgspec.Raw(b"[]"),
        call_budget_ms=budget_ms, attempt_seq=1, call_no=1, parent_call_id=parent,
    )  # fmt: skip
    return new_call(ExecuteCall(call_id, payload))


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(max_inflight=4, max_runnable=3)


def admit(
    scheduler: Scheduler, call_id: str, digest: str = "d", parent: str | None = None, budget_ms: int = 5
) -> Call:
    call = make_call(call_id, digest, parent, budget_ms)
    assert scheduler.admit(call) is None
    return call


def start(scheduler: Scheduler, call: Call) -> Call:
    """Make ``call`` ready and take it, as the engine does."""
    scheduler.make_ready(call)
    assert scheduler.ready.popleft() is call
    call.state = CallState.RUNNING
    return call


def test_room_is_the_tighter_of_inflight_and_runnable(scheduler: Scheduler) -> None:
    """Waiting calls take inflight room only."""
    assert scheduler.available_contexts == 3
    scheduler.make_ready(admit(scheduler, "a"))
    assert scheduler.available_contexts == 2
    for name in "bcd":
        scheduler.await_code(admit(scheduler, name))
    assert scheduler.available_contexts == 0
    assert "already holds 4 calls" in str(scheduler.admit(make_call("e")))


def test_one_request_for_each_digest(scheduler: Scheduler) -> None:
    """The first call of a digest asks, the others join."""
    a, b, c = admit(scheduler, "a"), admit(scheduler, "b"), admit(scheduler, "c", "other")
    wait = scheduler.await_code(a)
    assert wait is not None
    assert scheduler.await_code(b) is None
    assert scheduler.await_code(c) is not None
    assert scheduler.code_wait(wait.request_id) is wait
    scheduler.end_code_wait(wait)
    assert list(wait.waiting.values()) == [a, b]
    assert scheduler.code_wait(wait.request_id) is None
    assert scheduler.code_wait(99) is None


def test_a_cancelled_asker_hands_its_request_over(scheduler: Scheduler) -> None:
    """The next call asks anew; both requests lead to the same wait; the last one out ends it."""
    a, b = admit(scheduler, "a"), admit(scheduler, "b")
    wait = scheduler.await_code(a)
    scheduler.await_code(b)
    assert wait is not None
    first = wait.request_id
    assert scheduler.cancel(a, "why", 0) is wait
    assert (a.state, wait.asker, list(wait.waiting.values())) == (CallState.DONE, b, [b])
    assert wait.request_id != first
    assert scheduler.code_wait(first) is wait
    assert scheduler.cancel(b, "why", 0) is None
    assert scheduler.code_wait(wait.request_id) is None
    assert scheduler.calls == {}


def test_cancel_by_state(scheduler: Scheduler) -> None:
    """Ready: done. Sleeping: made ready with a stop. Running: marked. The first reason counts."""
    ready, sleeping, running = (admit(scheduler, name) for name in "abc")
    scheduler.make_ready(ready)
    scheduler.cancel(ready, "x", 0)
    assert (ready.state, list(scheduler.ready)) == (CallState.DONE, [])
    start(scheduler, sleeping)
    scheduler.sleep(sleeping, 100)
    scheduler.cancel(sleeping, "first", 0)
    scheduler.cancel(sleeping, "second", 0)
    assert (sleeping.state, sleeping.stop, sleeping.stop_reason) == (
        CallState.RESUMABLE,
        CallCancelled,
        "first",
    )
    assert list(scheduler.ready) == [sleeping]
    running.state = CallState.RUNNING
    scheduler.cancel(running, "x", 0)
    assert (running.state, running.stop) == (CallState.RUNNING, CallCancelled)


def test_a_sleeper_that_was_woken_early_is_not_woken_twice(scheduler: Scheduler) -> None:
    """Its old time passes; a new sleep has its own."""
    call = start(scheduler, admit(scheduler, "a"))
    scheduler.sleep(call, 100)
    scheduler.cancel(call, "x", 0)
    scheduler.ready.clear()
    call.state = CallState.RUNNING
    scheduler.wake(100)
    assert not scheduler.ready
    scheduler.sleep(call, 200)
    scheduler.wake(199)
    assert not scheduler.ready
    scheduler.wake(200)
    assert list(scheduler.ready) == [call]
    assert scheduler.next_wake_ns() == NEVER


@given(st.lists(st.integers(0, 50), max_size=30))
def test_sleepers_wake_in_order_of_time_then_of_arrival(times: list[int]) -> None:
    """Whatever the order in which they lay down."""
    scheduler = Scheduler(max_inflight=100, max_runnable=100)
    calls = [start(scheduler, admit(scheduler, str(i))) for i in range(len(times))]
    for call, wake_ns in zip(calls, times, strict=True):
        scheduler.sleep(call, wake_ns)
    assert scheduler.next_wake_ns() == (min(times) if times else NEVER)
    scheduler.wake(50)
    expected = sorted(range(len(times)), key=lambda i: times[i])
    assert [int(call.call_id) for call in scheduler.ready] == expected


# --- subcalls ---------------------------------------------------------------------------------------------------


def take_all(scheduler: Scheduler) -> list[str]:
    return [scheduler.take().call_id for _ in range(scheduler.runnable)]


def test_subcalls_are_let_in_while_their_parent_is_here(scheduler: Scheduler) -> None:
    """However many there are; they take no room of root calls, and without a parent there is no favour."""
    parent = admit(scheduler, "a")
    for i in range(20):
        admit(scheduler, f"a/{i}", parent="a")
    for name in "bcd":
        admit(scheduler, name)
    assert scheduler.admit(make_call("e")) is not None
    assert scheduler.admit(make_call("x/0", parent="x")) is not None
    assert scheduler.available_contexts == 0
    scheduler.finish(parent)
    for i in range(20):
        scheduler.finish(scheduler.calls[f"a/{i}"])
    assert scheduler.admit(make_call("e")) is None
    assert scheduler.admit(make_call("f")) is not None


def test_subcalls_and_calls_whose_wait_is_over_go_ahead(scheduler: Scheduler) -> None:
    """Each of the two queues is first in, first out; sleepers have no favour but for subcalls."""
    waiter, sleeper = (
        start(scheduler, admit(scheduler, "waiter")),
        start(scheduler, admit(scheduler, "sleeper")),
    )
    scheduler.make_ready(admit(scheduler, "root"))
    subcall = admit(scheduler, "sub", parent="waiter")
    scheduler.make_ready(subcall)
    [request] = scheduler.wait(waiter, 1, 0).open
    scheduler.sleep(sleeper, 5)
    scheduler.answer("waiter", request, ANSWER, used_ns=0, now_ns=1)
    scheduler.wake(5)
    assert take_all(scheduler) == ["sub", "waiter", "root", "sleeper"]


def test_a_long_run_of_subcalls_lets_others_in(scheduler: Scheduler) -> None:
    """One in 256."""
    admit(scheduler, "a")
    for i in range(1000):
        scheduler.make_ready(admit(scheduler, f"a/{i}", parent="a"))
    for name in "bcd":
        scheduler.make_ready(admit(scheduler, name))
    order = take_all(scheduler)
    assert [order.index(name) for name in "bcd"] == [256, 513, 770]


def test_calls_that_were_to_start_are_given_back(scheduler: Scheduler) -> None:
    """Not those of one digest, not subcalls, not those that go on; the queue is the same object."""
    queue = scheduler.ready
    sleeper = start(scheduler, admit(scheduler, "s"))
    scheduler.sleep(sleeper, 0)
    for name, digest in [("a", "d"), ("b", "kept"), ("c", "d")]:
        scheduler.make_ready(admit(scheduler, name, digest))
    scheduler.make_ready(admit(scheduler, "s/0", parent="s"))
    scheduler.wake(0)
    assert [call.call_id for call in scheduler.give_back(but_digest="kept")] == ["a", "c"]
    assert [call.call_id for call in queue] == ["b", "s"]
    assert sorted(scheduler.calls) == ["b", "s", "s/0"]
    assert [call.call_id for call in scheduler.give_back(but_digest=None)] == ["b"]
    assert scheduler.give_back(but_digest=None) == []


# --- waits ------------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_its_last_answer(scheduler: Scheduler) -> None:
    """Doubled, foreign and late answers change nothing."""
    call = start(scheduler, admit(scheduler, "a", budget_ms=0))
    wait = scheduler.wait(call, 2, 0)
    first, second = wait.open
    assert (call.state, scheduler.waiting, scheduler.runnable) == (CallState.WAITING, 1, 0)
    scheduler.answer("a", second, ANSWER, used_ns=1, now_ns=10)
    for call_id, request in [("a", second), ("b", first), ("a", 99)]:
        scheduler.answer(call_id, request, ANSWER, used_ns=1000, now_ns=10)
    assert wait.answers == [None, ANSWER]
    scheduler.answer("a", first, ANSWER, used_ns=2, now_ns=10)
    assert (call.state, scheduler.waiting, call.used_ns) == (CallState.RESUMABLE, 0, 3)
    scheduler.answer("a", first, ANSWER, used_ns=2, now_ns=10)
    assert (call.used_ns, scheduler.runnable) == (3, 1)


def test_a_cancel_ends_a_wait(scheduler: Scheduler) -> None:
    """What was used until then is charged; the other answers come too late."""
    call = start(scheduler, admit(scheduler, "a"))
    wait = scheduler.wait(call, 2, 0)
    first, second = wait.open
    scheduler.answer("a", first, ANSWER, used_ns=7, now_ns=10)
    scheduler.cancel(call, "why", 10)
    assert (call.state, call.stop, call.used_ns, scheduler.waiting) == (
        CallState.RESUMABLE,
        CallCancelled,
        7,
        0,
    )
    scheduler.answer("a", second, ANSWER, used_ns=7, now_ns=10)
    scheduler.cancel(call, "again", 10)
    assert (call.used_ns, scheduler.runnable) == (7, 1)


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=20), st.integers(0, 10_000_000), st.randoms())
def test_what_a_wait_costs(used: list[int], passed: int, random: Random) -> None:
    """One: what it says. Several: their sum, but no more than the time that passed or the longest of them."""
    scheduler = Scheduler(max_inflight=4, max_runnable=4)
    call = start(scheduler, admit(scheduler, "a", budget_ms=5))
    requests = list(scheduler.wait(call, len(used), 0).open)
    pairs = list(zip(requests, used, strict=True))
    random.shuffle(pairs)
    answered: list[int] = []
    for request, used_ns in pairs:
        if call.state is CallState.WAITING:
            answered.append(used_ns)
            scheduler.answer("a", request, ANSWER, used_ns=used_ns, now_ns=passed)
    assert call.state is CallState.RESUMABLE
    assert call.used_ns == min(sum(answered), max([*answered, passed]))
    assert (call.stop is BudgetExceeded) == (call.used_ns > 5_000_000)
    assert len(answered) == len(used) or call.stop is BudgetExceeded
    assert not scheduler._requests
