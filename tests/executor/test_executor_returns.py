"""Calls that wait behind a slow one go back, those that began do not, and each runs exactly once."""

from __future__ import annotations

import random
import re

from blockx_executor.wire.messages import CallCompleted, CallsReturned
from tests.executor.driver import ExecutorDriver, module, running_executor

SLOW = module("""
    import time

    from blockx_executor import sdk

    runs = []
    def busy(ms):
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end: pass
        return ms
    def quick(i):
        runs.append(i)
        return i
    def nap_then(i):
        runs.append(i)
        sdk.sleep(0.001)
        return i
    def ask(i):
        runs.append(i)
        return sdk.io("store", "get", n=i)
    def take_runs():
        taken = list(runs)
        runs.clear()
        return taken
""")


def ids(returned: list[CallsReturned]) -> list[str]:
    return [call.call_id for message in returned for call in message.payload.calls]


def test_calls_behind_a_slow_one_go_back_in_order() -> None:
    """With the reason and each call's attempt; a heartbeat follows that no longer counts them."""
    with running_executor("--heartbeat-interval-ms", "60000") as executor:
        executor.resends = False
        digest = executor.define(SLOW)
        executor.call(digest, "quick", 0)
        slow = executor.execute_message(digest, "busy", 400)
        behind = [executor.execute_message(digest, "quick", i) for i in range(1, 6)]
        executor.send(slow, *behind)
        executor.wait_for(lambda: len(executor.heartbeats) == 2)
        [returned] = executor.returned
        assert ids([returned]) == [call.call_id for call in behind]
        assert {(call.task_id, call.attempt_seq) for call in returned.payload.calls} == {("t-1", 1)}
        assert f"Call {slow.call_id} of functions.busy has run for " in returned.payload.reason
        beat = executor.heartbeats[1].payload
        assert (beat.running_call_id, beat.inflight_count, beat.runnable_count) == (slow.call_id, 1, 1)
        assert beat.running_for_ms >= 20
        assert executor.value(slow.call_id) == 400
        assert executor.call(digest, "take_runs") == [0]
        executor.send(*behind)
        assert [executor.value(call.call_id) for call in behind] == [1, 2, 3, 4, 5]


def test_what_has_begun_and_subcalls_stay(executor: ExecutorDriver) -> None:
    """Sleepers, waiting calls and subcalls of a parent aboard."""
    executor.resends = False
    digest = executor.define(SLOW)
    waiter = executor.execute(digest, "ask", 1)
    [waiting] = executor.wait()
    sleepers = [executor.execute_message(digest, "nap_then", i) for i in (2, 3)]
    slow = executor.execute_message(digest, "busy", 150)
    subcall = executor.execute_message(digest, "quick", 4, parent=waiter)
    root = executor.execute_message(digest, "quick", 5)
    executor.send(*sleepers, slow, root)
    executor.send(subcall)
    executor.resume(waiting, b"1")
    executor.wait_for(lambda: executor.returned)
    assert ids(executor.returned) == [root.call_id]
    for call in (waiter, *(sleeper.call_id for sleeper in sleepers), slow.call_id, subcall.call_id):
        executor.value(call)
    runs = executor.call(digest, "take_runs")
    assert isinstance(runs, list)
    assert sorted(runs) == [1, 2, 3, 4]


def test_nothing_goes_back_behind_a_call_that_has_not_run_for_20_ms(executor: ExecutorDriver) -> None:
    """Whatever comes back, as this machine may be slow, says for how long one call had run."""
    digest = executor.define(SLOW)
    calls = [executor.execute_message(digest, "busy", i % 4) for i in range(100)]
    executor.send(*calls)
    for call in calls:
        executor.value(call.call_id)
    reasons = [re.search(r"has run for (\d+) ms", returned.payload.reason) for returned in executor.returned]
    assert all(reason is not None and int(reason[1]) >= 20 for reason in reasons)


def test_calls_that_come_while_one_runs_go_back_less_and_less(executor: ExecutorDriver) -> None:
    """There is no other executor: they are sent again and again, and it does not come to hundreds of times."""
    digest = executor.define(SLOW)
    executor.call(digest, "quick", 0)
    slow = executor.execute(digest, "busy", 700)
    executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == slow)
    calls = [executor.execute(digest, "quick", i) for i in range(10)]
    assert executor.value(slow) == 700
    assert [executor.value(call) for call in calls] == list(range(10))
    assert 1 <= len(executor.returned) <= 8
    runs = executor.call(digest, "take_runs")
    assert runs == [0, *range(10)]


def test_calls_of_the_code_that_is_loaded_stay() -> None:
    """They would have to load it elsewhere too; calls of other code go back."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        executor.resends = False
        quick = executor.define(SLOW)
        executor.call(quick, "quick", 0)
        loading = executor.define("import time\ntime.sleep(0.3)\ndef f(i): return i\n")
        calls = [executor.execute_message(loading, "f", i) for i in range(3)]
        other = executor.execute_message(quick, "quick", 1)
        executor.send(*calls)
        executor.wait_for(lambda: executor.heartbeats[-1].payload.running_load)
        executor.send(other)
        executor.wait_for(lambda: executor.returned)
        assert ids(executor.returned) == [other.call_id]
        assert "has loaded its code for" in executor.returned[0].payload.reason
        assert [executor.value(call.call_id) for call in calls] == [0, 1, 2]


def test_a_cancel_that_crosses_a_return_changes_nothing(executor: ExecutorDriver) -> None:
    """The call is no longer here; its next attempt is not cancelled by it."""
    executor.resends = False
    digest = executor.define(SLOW)
    slow = executor.execute_message(digest, "busy", 100)
    behind = executor.execute_message(digest, "quick", 1)
    executor.send(slow, behind)
    executor.wait_for(lambda: executor.returned)
    executor.cancel(behind.call_id)
    executor.resends = True
    executor.send(behind)
    outcome = executor.outcome(behind.call_id)
    assert isinstance(outcome, CallCompleted)
    executor.value(slow.call_id)
    executor.call(digest, "take_runs")


def test_hundreds_of_returns_that_race_with_the_end(executor: ExecutorDriver) -> None:
    """The slow call ends about when the monitor looks; each call behind it runs once, here or after its return."""
    digest = executor.define(SLOW)
    executor.call(digest, "take_runs")
    random.seed(11)
    expected = []
    for round_ in range(100):
        slow = executor.execute_message(digest, "busy", random.uniform(15, 27))
        behind = [executor.execute_message(digest, "quick", round_ * 10 + i) for i in range(3)]
        executor.send(slow, *behind[:2])
        executor.send(behind[2])
        for call in (slow, *behind):
            executor.value(call.call_id)
        expected += [round_ * 10 + i for i in range(3)]
    runs = executor.call(digest, "take_runs")
    assert isinstance(runs, list)
    assert sorted(runs) == expected
    assert executor.returned
