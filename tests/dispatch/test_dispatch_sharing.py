"""Equal calls of a task: the cache, and one run for all that are in flight."""

from __future__ import annotations

import pytest

from blockx_worker.dispatch.cache import ENTRY_OVERHEAD_BYTES, CallCache
from blockx_worker.dispatch.source import ResolvedFunction
from tests.dispatch.driver import COLLECT_ALL, DIGEST, Talk, armed, dispatched


def test_equal_calls_in_flight_run_once() -> None:
    """The first runs, the others wait for it and share its output."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [1], [1]])
    assert dispatched(talk.turns()) == {"exec-0": ["t/0", "t/1"]}
    talk.complete("t/0", output=b"7")
    talk.complete("t/1", output=b"8")
    talk.turns()
    assert talk.outputs["t"] == [b"7", b"8", b"7", b"7"]
    statistic = talk.ends["t"].statistic
    assert (statistic.succeeded, statistic.attempts, statistic.cache_hits) == (4, 2, 2)
    assert statistic.output_bytes == 4


def test_a_cached_result_needs_no_executor() -> None:
    """Also when all executors are full, a known result is served."""
    talk = Talk(executor_max_inflight=1)
    talk.attach("exec-0")
    talk.start("t", [[1], [1], [1]], rows=1)
    talk.turns()
    talk.complete("t/0", output=b"7")
    talk.start("u", [[5]])
    talk.turn(1)
    talk.turns()
    assert talk.outputs["t"] == [b"7", b"7", b"7"]
    assert talk.ends["t"].statistic.cache_hits == 2


def test_followers_are_served_in_slices() -> None:
    """A turn touches no more calls than it may, however cheap they are."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]] * 10)
    talk.turns()
    talk.complete("t/0", output=b"7")
    talk.turn(4)
    progress = talk.core.progress("t")
    assert progress is not None
    assert progress.succeeded == 5
    assert talk.core.turn_pending
    talk.turns(4)
    assert talk.outputs["t"] == [b"7"] * 10


def test_followers_stand_in_the_window() -> None:
    """Waiting for an equal call takes a place, so a task of equal calls is bounded like any other."""
    talk = Talk(task_max_inflight_calls=3, call_cache_bytes=0)
    talk.attach("exec-0")
    talk.start("t", [[1]] * 7)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}
    talk.complete("t/0", output=b"7")
    assert dispatched(talk.turns()) == {"exec-0": ["t/3"]}
    talk.complete("t/3", output=b"8")
    assert dispatched(talk.turns()) == {"exec-0": ["t/6"]}
    talk.complete("t/6", output=b"9")
    talk.turns()
    assert talk.outputs["t"] == [b"7"] * 3 + [b"8"] * 3 + [b"9"]


def test_tasks_share_nothing() -> None:
    """Equal calls of two tasks run twice: each is pinned to its own code epoch."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("a", [[1]])
    talk.start("b", [[1]])
    talk.turns()
    assert talk.out() == ["a/0", "b/0"]


def test_an_uncacheable_function_always_runs() -> None:
    """Equal arguments mean nothing then, neither in flight nor later."""
    talk = Talk(task_max_inflight_calls=2)
    talk.attach("exec-0")
    talk.start("t", [[1]] * 3, function=ResolvedFunction("m.f", DIGEST, "f", no_cache=True))
    talk.turns()
    assert talk.out() == ["t/0", "t/1"]
    talk.complete("t/0", output=b"1")
    talk.turns()
    talk.complete("t/1", "t/2", output=b"2")
    talk.turns()
    assert talk.outputs["t"] == [b"1", b"2", b"2"]


def test_a_final_user_error_is_shared() -> None:
    """Equal calls would fail alike; each is listed."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [1], [1]], COLLECT_ALL)
    talk.turns()
    talk.fail("t/0", message="no")
    talk.turns()
    assert talk.out() == []
    end = talk.ends["t"]
    assert [(failed.index, failed.message) for failed in end.failed_calls] == [
        (0, "no"),
        (1, "no"),
        (2, "no"),
    ]
    assert end.statistic.failed == 3
    assert end.statistic.attempts == 1


@pytest.mark.parametrize(
    ("kind", "retryable"), [("BUDGET_EXCEEDED", False), ("CANCELLED", False), ("USER_ERROR", True)]
)
def test_an_unshared_failure_hands_the_key_over(kind: str, retryable: bool) -> None:
    """The next in waiting order runs itself, and the rest wait for that one."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [1], [1], [1]], COLLECT_ALL, attempts=1)
    talk.turns()
    talk.fail("t/0", kind, retryable=retryable)
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}
    talk.fail("t/1", kind, retryable=retryable)
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}
    talk.complete("t/2", output=b"7")
    talk.turns()
    assert talk.outputs["t"] == [None, None, b"7", b"7"]


def test_a_leader_in_back_off_keeps_its_followers() -> None:
    """A retry is still the run that the others wait for."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [1]])
    talk.turns()
    retry = armed(talk.fail("t/0", retryable=True))
    assert talk.turns() == []
    talk.retry(retry)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}
    talk.complete("t/0", output=b"7")
    talk.turns()
    assert talk.outputs["t"] == [b"7", b"7"]


def test_failures_are_not_cached() -> None:
    """A later equal call runs again after the failed one is done."""
    talk = Talk(task_max_inflight_calls=1)
    talk.attach("exec-0")
    talk.start("t", [[1], [1]], COLLECT_ALL)
    talk.turns()
    talk.fail("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


def test_the_cache_forgets_the_least_recently_used() -> None:
    """Bounded by bytes, entries' overhead counted."""
    cache = CallCache(3 * (ENTRY_OVERHEAD_BYTES + 2))
    for name in (b"a", b"b", b"c"):
        cache.put(("f", name), b"1")
    assert cache.get(("f", b"a")) == b"1"
    cache.put(("f", b"d"), b"1")
    assert [cache.get(("f", name)) for name in (b"a", b"b", b"c", b"d")] == [b"1", None, b"1", b"1"]
    assert cache.used_bytes == cache.counted_bytes()


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    """One huge output does not push everything else out for nothing."""
    cache = CallCache(2 * (ENTRY_OVERHEAD_BYTES + 2))
    cache.put(("f", b"a"), b"1")
    cache.put(("f", b"b"), b"1" * 1000)
    assert len(cache) == 1
    assert cache.get(("f", b"a")) == b"1"


def test_an_ended_tasks_cache_is_taken_apart_in_turns() -> None:
    """A full cache is large: freeing it at once would hold up everybody."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(100)])
    talk.turns()
    talk.complete(*talk.out())
    talk.turn(1000)
    talk.start("u", [[i] for i in range(100)])
    talk.turns()
    talk.complete(*talk.out()[:50])
    talk.drop("u")
    assert talk.core.turn_pending
    talk.turn(1)
    assert talk.core.turn_pending
    talk.turns(1)
