"""Failed attempts: what is tried again, when, and what it costs."""

from __future__ import annotations

import pytest

from blockx_worker.dispatch.commands import ArmCallRetry
from blockx_worker.dispatch.events import CallRetryDue, CallsFinished, DispatchRefused
from blockx_worker.dispatch.failures import MAX_BACKOFF_MS, REFUSED_BACKOFF_MS, backoff_ms
from blockx_worker.model.errors import CALL_ERROR_RULES, CallErrorKind
from tests.dispatch.driver import COLLECT_ALL, Talk, armed, dispatched, dropped, failed, of


def test_a_retryable_failure_is_tried_again_after_a_back_off() -> None:
    """The call keeps its id, the attempt a new number; the back-off doubles."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], base_backoff_ms=10)
    talk.turns()
    first = armed(talk.fail("t/0", retryable=True))
    assert first == ArmCallRetry(task_id="t", call_id="t/0", attempt_seq=1, due_ms=10)
    assert talk.turns() == []
    assert talk.retry(first) == []
    talk.turns()
    assert (talk.sent("t/0").attempt_seq, talk.sent("t/0").call_no) == (2, 2)
    second = armed(talk.fail("t/0", retryable=True))
    assert second.due_ms == 10 + 20
    talk.retry(second)
    talk.turns()
    talk.complete("t/0", output=b"1")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.attempts, statistic.retries, statistic.failed) == (3, 2, 0)


def test_attempts_run_out() -> None:
    """The last attempt's failure is final, whatever it says."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], attempts=2)
    talk.turns()
    talk.retry(armed(talk.fail("t/0", retryable=True)))
    talk.turns()
    assert talk.fail("t/0", message="still no", retryable=True) == []
    talk.turns()
    (listed,) = talk.ends["t"].failed_calls
    assert (listed.index, listed.attempts, listed.message) == (0, 2, "still no")


@pytest.mark.parametrize("kind", [kind for kind, rule in CALL_ERROR_RULES.items() if rule.retryable is False])
def test_the_table_says_what_is_final(kind: CallErrorKind) -> None:
    """The frame's own word counts only for user errors."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], COLLECT_ALL)
    talk.turns()
    assert talk.fail("t/0", kind, retryable=True) == []
    talk.turns()
    (listed,) = talk.ends["t"].failed_calls
    assert listed.error_kind == kind


def test_an_unknown_kind_is_a_user_error() -> None:
    """An executor of another version may know more kinds."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], attempts=2)
    talk.turns()
    talk.retry(armed(talk.fail("t/0", "SOMETHING_NEW", retryable=True)))
    talk.turns()
    talk.fail("t/0", "SOMETHING_NEW")
    talk.turns()
    (listed,) = talk.ends["t"].failed_calls
    assert listed.error_kind == "USER_ERROR"


def test_a_cancel_that_nobody_ordered_is_a_failure() -> None:
    """The call was not run to its end, and nobody wanted that."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    talk.turns()
    talk.fail("t/0", "CANCELLED")
    talk.turns()
    end = talk.ends["t"]
    assert end.failure is not None
    assert end.failure.error_kind == "CANCELLED"
    assert (end.statistic.failed, end.statistic.cancelled) == (1, 0)


def test_frames_of_an_old_attempt_are_dropped() -> None:
    """Neither in back-off nor after the next dispatch does an old attempt count."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    talk.turns()
    old = talk.aboard["exec-0"]["t/0"]
    retry = armed(talk.fail("t/0", retryable=True))
    stale = CallsFinished(executor_id="exec-0", frames=[failed(old)])
    assert dropped(talk.say(stale)) == [("call is not bound to this executor", 1)]
    talk.retry(retry)
    talk.turns()
    assert dropped(talk.say(stale)) == [("attempt is not the current one", 1)]
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1"]


def test_a_retry_goes_off_once() -> None:
    """A timer of an old attempt, a second one, or one of an ended task changes nothing."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2]])
    talk.turns()
    retry = armed(talk.fail("t/0", retryable=True))
    early = CallRetryDue(task_id="t", call_id="t/0", attempt_seq=7)
    assert dropped(talk.say(early)) == [("attempt is not in back-off", 1)]
    assert talk.retry(retry) == []
    assert dropped(talk.retry(retry)) == [("attempt is not in back-off", 1)]
    talk.turns()
    again = armed(talk.fail("t/0", retryable=True))
    talk.fail("t/1")
    assert dropped(talk.retry(again)) == [("call is over", 1)], "the task stops"
    talk.turns()
    talk.drop("t")
    assert dropped(talk.retry(retry)) == [("call is over", 1)]


def test_a_refused_call_costs_no_attempt() -> None:
    """It tries again shortly, as often as it must; its attempt's number rises all the same."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], attempts=1)
    for number in range(1, 6):
        talk.turns()
        assert talk.sent("t/0").attempt_seq == number
        retry = armed(talk.refuse("t/0"))
        assert retry.due_ms == talk.now + REFUSED_BACKOFF_MS
        talk.retry(retry)
    talk.turns()
    talk.complete("t/0", output=b"1")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.attempts, statistic.retries) == (1, 0)


def test_an_executor_may_give_a_call_back() -> None:
    """A DISPATCH_REFUSED frame is the same as a send that was refused."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]], attempts=1)
    talk.turns()
    talk.retry(armed(talk.fail("t/0", "DISPATCH_REFUSED")))
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}


def test_refusals_of_what_is_not_there_are_dropped() -> None:
    """Unknown executors and calls are counted."""
    talk = Talk()
    talk.attach("exec-0")
    refused = talk.say(DispatchRefused(executor_id="exec-9", call_ids=["t/0", "t/1"]))
    assert dropped(refused) == [("executor is not attached", 2)]
    refused = talk.say(DispatchRefused(executor_id="exec-0", call_ids=["t/0"]))
    assert dropped(refused) == [("call is not bound to this executor", 1)]


def test_back_off_doubles_has_jitter_and_ends() -> None:
    """Base · 2^(n-1), up to 5 % more, at most a minute."""
    assert [backoff_ms(100, attempt, 0.0) for attempt in (1, 2, 3)] == [100, 200, 400]
    assert backoff_ms(100, 1, 1.0) == 105
    assert backoff_ms(0, 3, 1.0) == 0
    assert backoff_ms(100, 1000, 0.0) == MAX_BACKOFF_MS


def test_calls_in_back_off_keep_their_place_in_the_window() -> None:
    """A task of failing calls does not pile up records."""
    talk = Talk(task_max_inflight_calls=2)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(4)])
    talk.turns()
    retry = armed(talk.fail("t/0", retryable=True))
    assert talk.turns() == []
    talk.complete("t/1")
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}
    talk.retry(retry)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}
    assert of(talk.said, ArmCallRetry) == [retry]
