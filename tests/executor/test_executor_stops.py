"""Stopping user code: by budget and by cancel, in whatever it does, without harm to the process or to the next call.

The fixture runs a call after each test, in the same process.
"""

from __future__ import annotations

import random

import pytest

from blockx_executor.wire.messages import CallCompleted
from tests.executor.driver import ExecutorDriver, module, running_executor

STUBBORN = module("""
    import asyncio
    import queue
    import threading
    import time

    from blockx_executor import sdk

    def spin():
        while True: pass

    def swallow_exceptions():
        while True:
            try:
                while True: pass
            except Exception:
                pass

    def swallow_everything_for_a_while():
        swallowed = 0
        while True:
            try:
                while swallowed < 4: pass
                return swallowed
            except BaseException:
                swallowed += 1

    def swallow_everything(forever=True):
        while forever:
            try:
                time.sleep(60)  # an interrupt between the lines would end the loop
            except BaseException:
                continue

    def return_after_swallowing():
        try:
            while True: pass
        except BaseException:
            return "nothing happened"

    def raise_another():
        try:
            while True: pass
        except BaseException:
            raise ValueError("something else")

    def clean_up():
        try:
            while True: pass
        finally:
            sum(range(1000))

    def nap(): time.sleep(60)
    def sdk_nap(): sdk.sleep(60)
    def many_sdk_naps():
        while True: sdk.sleep(0)
    def print_all_the_time():
        while True: print("x")
    def ask_all_the_time():
        while True: sdk.current()
    def wait_for_a_lock():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    def wait_for_a_queue(): queue.Queue().get()
    def wait_in_asyncio(): asyncio.run(asyncio.sleep(60))
    def slow_repr():
        class Slow:
            def __repr__(self):
                while True: pass
        mine, other = Slow(), 5
        raise ValueError("bad row")
    def endless_str():
        class Endless(Exception):
            def __str__(self):
                while True: pass
        raise Endless
    def endless_output():
        class Endless(list):
            def __iter__(self):
                while True: yield 1
        return Endless([1])
    def inc(i): return i + 1
    def busy(ms):
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end: pass
        return ms
    def deep_busy(ms):
        try:
            return busy(ms)
        finally:
            [i for i in range(100)]
""")

ENTRIES = [
    "spin", "swallow_exceptions", "swallow_everything_for_a_while", "return_after_swallowing", "raise_another",
    "clean_up", "nap", "sdk_nap", "many_sdk_naps", "print_all_the_time", "ask_all_the_time", "wait_for_a_lock",
    "wait_for_a_queue", "wait_in_asyncio", "endless_output",
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_budget_stops_it(executor: ExecutorDriver, entry: str) -> None:
    """Whatever the code does with the interrupt, the call fails for its budget."""
    pid = executor.pid
    failure = executor.fail(executor.define(STUBBORN), entry, budget_ms=60).payload
    assert failure.error_kind == "BUDGET_EXCEEDED"
    assert not failure.retryable
    assert "its budget of 60 ms" in failure.error_message
    assert failure.budget_used_ms >= 60
    assert executor.pid == pid


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_cancel_stops_it(executor: ExecutorDriver, entry: str) -> None:
    """The call has no budget; the cancel arrives while it runs or sleeps."""
    call = executor.execute(executor.define(STUBBORN), entry, budget_ms=0)
    seen = len(executor.heartbeats)
    executor.wait_for(lambda: any(beat.payload.inflight_count for beat in executor.heartbeats[seen:]))
    executor.cancel(call, reason="the task was cancelled by its client")
    failure = executor.failure(call).payload
    assert failure.error_kind == "CANCELLED"
    assert "the task was cancelled by its client" in failure.error_message


def test_a_loop_that_swallows_all_is_seen_from_outside() -> None:
    """What never ends by itself is left to the worker: the black box shows the call and its limit all the while."""
    with running_executor("--heartbeat-interval-ms", "50") as own:
        call = own.execute(own.define(STUBBORN), "swallow_everything", budget_ms=60)
        own.wait_for(lambda: own.heartbeats[-1].payload.running_call_id == call)
        own.wait_for(lambda: own.heartbeats[-1].payload.running_for_ms > 400)
        first, second = own.blackbox(), own.blackbox()
        assert first == second
        assert first.call_no == 1
        assert 0 < first.limit_ms <= 61


@pytest.mark.parametrize("entry", ["slow_repr", "endless_str"])
def test_a_report_that_never_ends_is_cut_short(executor: ExecutorDriver, entry: str) -> None:
    """The failure is told with what was there when the report's own limit struck."""
    failure = executor.fail(executor.define(STUBBORN), entry).payload
    assert failure.error_kind == "USER_ERROR"
    assert failure.error_type in ("ValueError", "endless_str.<locals>.Endless")
    assert failure.error_message


def test_a_sleeper_and_a_runner_are_stopped_apart(executor: ExecutorDriver) -> None:
    """The cancel of one leaves the others alone."""
    digest = executor.define(STUBBORN)
    sleepers = [executor.execute(digest, "sdk_nap") for _ in range(3)]
    assert executor.call(digest, "inc", 1) == 2
    executor.cancel(sleepers[1])
    assert executor.failure(sleepers[1]).payload.error_kind == "CANCELLED"
    runner = executor.execute(digest, "spin")
    for call in (sleepers[0], runner, sleepers[2]):
        executor.cancel(call)
    for call in (sleepers[0], runner, sleepers[2]):
        assert executor.failure(call).payload.error_kind == "CANCELLED"


def test_a_call_that_has_not_started_is_answered_at_once(executor: ExecutorDriver) -> None:
    """It waits behind a call that spins; its cancel does not wait, and it never runs."""
    digest = executor.define(STUBBORN)
    runner = executor.execute(digest, "spin")
    waiting = executor.execute(digest, "inc", 1)
    executor.cancel(waiting)
    failure = executor.failure(waiting).payload
    assert failure.error_kind == "CANCELLED"
    assert "before it started" in failure.error_message
    assert failure.run_us == 0
    executor.cancel(runner)
    assert executor.failure(runner).payload.error_kind == "CANCELLED"


def test_calls_that_arrive_while_another_spins_run_after_it(executor: ExecutorDriver) -> None:
    """They are given back and sent again, as there is no other executor; each runs once."""
    digest = executor.define(STUBBORN)
    runner = executor.execute(digest, "spin", budget_ms=150)
    executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == runner)
    calls = [executor.execute(digest, "inc", i) for i in range(5)]
    assert executor.failure(runner).payload.error_kind == "BUDGET_EXCEEDED"
    assert [executor.value(call) for call in calls] == [1, 2, 3, 4, 5]


def test_results_do_not_wait_for_a_call_that_spins(executor: ExecutorDriver) -> None:
    """Finished calls of the same batch are sent while the next one runs."""
    digest = executor.define(STUBBORN)
    messages = [executor.execute_message(digest, "inc", i) for i in range(3)]
    runner = executor.execute_message(digest, "spin")
    executor.send(*messages, runner)
    assert [executor.value(message.call_id) for message in messages] == [1, 2, 3]
    executor.cancel(runner.call_id)
    executor.failure(runner.call_id)


def test_a_cancel_of_an_old_attempt_or_an_unknown_call_does_nothing(executor: ExecutorDriver) -> None:
    """Only the attempt that is named."""
    digest = executor.define(STUBBORN)
    call = executor.execute(digest, "busy", 30)
    executor.attempts |= {call: 0, "t-1/never": 1}
    executor.cancel(call)
    executor.cancel("t-1/never")
    assert executor.value(call) == 30


def test_budget_counts_owning_and_sleeping_only(executor: ExecutorDriver) -> None:
    """Ten calls of 30 ms each with a budget of 200 ms: the last one queues for 270 ms, for free."""
    digest = executor.define(STUBBORN)
    calls = [executor.execute_message(digest, "busy", 30, budget_ms=200) for _ in range(10)]
    executor.send(*calls)
    assert [executor.value(call.call_id) for call in calls] == [30] * 10


def test_hundreds_of_budgets_that_strike_near_the_end(executor: ExecutorDriver) -> None:
    """Each call is busy for about its budget; each ends once, one way or the other, and no neighbour is hit."""
    digest = executor.define(STUBBORN)
    random.seed(7)
    batch = []
    for i in range(100):
        batch.append(executor.execute_message(digest, "deep_busy", random.uniform(1.5, 2.5), budget_ms=2))
        batch.append(executor.execute_message(digest, "inc", i))
    for start in range(0, len(batch), 100):
        executor.send(*batch[start : start + 100])
        outcomes = [executor.outcome(message.call_id) for message in batch[start : start + 100]]
        assert all(isinstance(outcome, CallCompleted) for outcome in outcomes[1::2])
        for outcome in outcomes[::2]:
            assert isinstance(outcome, CallCompleted) or outcome.payload.error_kind == "BUDGET_EXCEEDED"


def test_hundreds_of_cancels_that_race_with_the_end(executor: ExecutorDriver) -> None:
    """Exactly one terminal frame a call, and the calls in between are right."""
    digest = executor.define(STUBBORN)
    random.seed(8)
    for i in range(150):
        first = executor.execute(digest, "busy", random.choice([0, 0.05, 0.3]), budget_ms=0)
        second = executor.execute(digest, "inc", i)
        executor.cancel(first)
        outcome = executor.outcome(first)
        assert isinstance(outcome, CallCompleted) or outcome.payload.error_kind == "CANCELLED"
        assert executor.value(second) == i + 1


def test_cancels_that_strike_running_calls_hit_only_those(executor: ExecutorDriver) -> None:
    """Calls long enough for the monitor to interrupt, cancelled around their end, quick ones behind them."""
    digest = executor.define(STUBBORN)
    random.seed(9)
    for i in range(25):
        call = executor.execute(digest, "deep_busy", random.uniform(20, 45), budget_ms=0)
        quick = [executor.execute(digest, "inc", n) for n in range(5)]
        if i % 2:
            executor.cancel(call)
        assert executor.outcome(call).call_id == call
        assert [executor.value(each) for each in quick] == [1, 2, 3, 4, 5]
