"""The scheduler's rules, without a process."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_executor.calls import NEVER, Call, CallCancelled, CallState, new_call
from blockx_executor.scheduler import Scheduler
from blockx_executor.wire.messages import ExecuteCall, ExecuteCallPayload


def make_call(call_id: str, digest: str = "d") -> Call:
    payload = ExecuteCallPayload(
        task_id="t", function_id="m.f", function_code_digest=digest, entry_selector="f", args=msgspec.Raw(b"[]"),
        call_budget_ms=5, attempt_seq=1, call_no=1,
    )  # fmt: skip
    return new_call(ExecuteCall(call_id, payload))


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(max_inflight=4, max_runnable=3)


def admit(scheduler: Scheduler, call_id: str, digest: str = "d") -> Call:
    call = make_call(call_id, digest)
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
