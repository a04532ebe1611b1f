"""What ends with a parent, and what a lost executor means for trees of calls."""

from __future__ import annotations

import pytest

from blockx_executor.wire.messages import CallError
from blockx_worker.dispatch.commands import ArmCallRetry, CancelCalls
from blockx_worker.dispatch.events import CallRetryDue, CallsFinished
from tests.dispatch.driver import (
    COLLECT_ALL,
    FAST_FAIL,
    Talk,
    armed,
    cancelled,
    completed,
    dispatched,
    dropped,
    of,
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


@pytest.mark.parametrize("comes_back", ["refused", "given back"])
def test_a_subcall_that_comes_back_to_a_stopping_task_is_shared_with_nobody(comes_back: str) -> None:
    """The task has failed, and its calls are not cancelled yet; the subcall ends with its parent."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2]], FAST_FAIL)
    talk.turns()
    child = talk.begin("t/0", [3])
    talk.fail("t/1")
    if comes_back == "refused":
        talk.refuse(child)
    else:
        talk.give_back(child)
    assert cancelled(talk.turns()) == {"exec-0": ["t/0"]}
    talk.fail("t/0", "CANCELLED")
    talk.turns()
    assert talk.ends["t"].statistic.cancelled == 1
