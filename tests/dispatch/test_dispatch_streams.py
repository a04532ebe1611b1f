"""Streaming builders: batches on credit, and ends in all orders."""

from __future__ import annotations

from blockx_worker.dispatch.commands import BatchSettled, GrantProduction, StopCallProduction
from blockx_worker.dispatch.events import CallBatchProduced
from blockx_worker.dispatch.source import CallBatch
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure
from tests.dispatch.driver import COLLECT_ALL, Talk, cancelled, dispatched, dropped, of, raws

BROKEN = TaskFailure(code=TaskFailureCode.BUILDER_FAILED, message="table logs cannot be read")


def _stream(**config: int) -> Talk:
    talk = Talk(**config)
    talk.attach("exec-0")
    talk.stream("t", COLLECT_ALL)
    return talk


def _total(talk: Talk) -> int | None:
    progress = talk.core.progress("t")
    assert progress is not None
    return progress.total


def test_a_task_begins_with_credit() -> None:
    """As many batches as may be outstanding, at once."""
    talk = Talk(max_outstanding_batches=3)
    talk.attach("exec-0")
    assert talk.stream("t") == [GrantProduction(task_id="t", batches=3)]
    assert talk.turns() == []


def test_each_settled_batch_gives_a_credit() -> None:
    """Batches settle in order, each with what its builder said of blocks; calls run as they come."""
    talk = _stream()
    assert talk.produce("t", [[0], [1]], 0, blocks_done=17) == []
    assert dispatched(talk.turns()) == {"exec-0": ["t/0", "t/1"]}
    talk.produce("t", [[2]], 2, blocks_done=18)
    talk.turns()
    talk.complete("t/2", output=b"2")
    assert talk.turns() == []
    talk.complete("t/0", "t/1", output=b"1")
    out = talk.turns()
    assert [(settled.first_index, settled.blocks_done) for settled in of(out, BatchSettled)] == [
        (0, 17),
        (2, 18),
    ]
    assert of(out, GrantProduction) == [GrantProduction(task_id="t", batches=2)]
    assert talk.outputs["t"] == [b"1", b"1", b"2"]
    assert talk.ends == {}


def test_a_task_converges_when_production_has_ended_and_all_is_settled() -> None:
    """In this order or the other; the total is known from the end of production."""
    talk = _stream()
    talk.produce("t", [[0]], 0)
    talk.turns()
    assert _total(talk) is None
    talk.complete("t/0")
    talk.turns()
    assert talk.ends == {}
    talk.produce("t", [[1]], 1)
    talk.turns()
    assert talk.end_stream("t") == []
    assert _total(talk) == 2
    talk.turns()
    assert talk.ends == {}
    talk.complete("t/1")
    out = talk.turns()
    assert of(out, GrantProduction) == []
    assert talk.ends["t"].failure is None
    assert talk.ends["t"].statistic.total == 2


def test_production_may_end_after_all_is_settled() -> None:
    """Then the end itself is what lets the task converge."""
    talk = _stream()
    talk.produce("t", [[0]], 0)
    talk.turns()
    talk.complete("t/0")
    talk.turns()
    talk.end_stream("t")
    talk.turns()
    assert talk.ends["t"].statistic.succeeded == 1


def test_a_stream_without_calls_ends_at_once() -> None:
    """No rows in the whole range: a success with no outputs."""
    talk = _stream()
    talk.end_stream("t")
    talk.turns()
    assert talk.ends["t"].failure is None
    assert talk.ends["t"].statistic.total == 0


def test_an_empty_batch_settles_at_once() -> None:
    """It says that blocks are done which have no rows."""
    talk = _stream()
    talk.produce("t", [], 0, blocks_done=5)
    out = talk.turns()
    assert [settled.blocks_done for settled in of(out, BatchSettled)] == [5]
    assert talk.credits["t"] == 3


def test_a_batch_without_credit_is_dropped() -> None:
    """The builder must wait; what it makes anyway does not fill the memory."""
    talk = _stream(max_outstanding_batches=1)
    talk.produce("t", [[0]], 0)
    assert dropped(talk.produce("t", [[1]], 1)) == [("no credit for a batch", 1)]
    talk.turns()
    talk.complete("t/0")
    talk.turns()
    assert talk.produce("t", [[1]], 1) == []


def test_nothing_comes_after_the_end() -> None:
    """Neither a batch nor a second end."""
    talk = _stream()
    talk.end_stream("t")
    assert dropped(talk.produce("t", [[0]], 0)) == [("production has ended", 1)]
    assert dropped(talk.end_stream("t")) == [("production has ended", 1)]


def test_batches_must_have_a_task_that_streams() -> None:
    """Unknown, dropped, or with a list of calls."""
    talk = Talk()
    talk.start("u", [[0]])
    batch = CallBatch(0, raws([[0]]))
    for task_id, reason in (("t", "task is not known"), ("u", "calls of the task are not streamed")):
        assert dropped(talk.say(CallBatchProduced(task_id=task_id, batch=batch))) == [(reason, 1)]
        assert dropped(talk.end_stream(task_id)) == [(reason, 1)]


def test_a_failing_builder_stops_the_task() -> None:
    """As a failed call would; the failure is the builder's, and what ran before is cancelled."""
    talk = _stream()
    talk.produce("t", [[0], [1]], 0)
    talk.produce("t", [[2]], 2)
    talk.turn(1)
    assert talk.out() == ["t/0"]
    assert talk.end_stream("t", BROKEN) == []
    assert cancelled(talk.turns()) == {"exec-0": ["t/0"]}
    talk.fail("t/0", "CANCELLED")
    talk.turns()
    end = talk.ends["t"]
    assert end.failure == BROKEN
    assert (end.statistic.total, end.statistic.cancelled) == (3, 3)


def test_a_stopping_task_takes_nothing_more() -> None:
    """Its builder is told to stop and need not answer; what it still makes is dropped."""
    talk = Talk()
    talk.attach("exec-0")
    talk.stream("t")
    talk.produce("t", [[0]], 0)
    talk.turns()
    talk.fail("t/0")
    assert dropped(talk.produce("t", [[1]], 1)) == [("task is stopping", 1)]
    assert of(talk.turns(), StopCallProduction) == [StopCallProduction(task_id="t")]
    end = talk.ends["t"]
    assert end.failure is not None
    assert end.failure.code is TaskFailureCode.CALLS_FAILED
    assert end.statistic.total == 1
    assert dropped(talk.end_stream("t", BROKEN)) == [("task is stopping", 1)]


def test_batches_follow_each_other_without_gaps() -> None:
    """A builder that counts wrong fails its task, with the numbers."""
    talk = _stream()
    talk.produce("t", [[0], [1]], 0)
    talk.produce("t", [[3]], 3)
    talk.turns()
    failure = talk.ends["t"].failure
    assert failure is not None
    assert failure.code is TaskFailureCode.BUILDER_FAILED
    assert "begins with call 3, after 2 calls" in failure.message


def test_a_dropped_stream_is_forgotten() -> None:
    """A builder that outlives its task makes nothing of any use."""
    talk = _stream()
    talk.produce("t", [[0]], 0)
    talk.turns()
    talk.drop("t")
    assert dropped(talk.produce("t", [[1]], 1)) == [("task is not known", 1)]


def test_the_cache_works_from_batch_to_batch() -> None:
    """A stream of equal calls runs once."""
    talk = _stream()
    talk.produce("t", [[7]], 0)
    talk.turns()
    talk.complete("t/0", output=b"49")
    talk.turns()
    talk.produce("t", [[7], [7]], 1)
    talk.turns()
    assert talk.out() == []
    assert talk.outputs["t"] == [b"49"] * 3


def test_a_batch_waits_for_the_window() -> None:
    """Rows of the second batch enter when the first is done with the window."""
    talk = _stream(task_max_inflight_calls=2)
    talk.produce("t", [[0], [1]], 0)
    talk.produce("t", [[2], [3]], 2)
    talk.turns()
    assert talk.out() == ["t/0", "t/1"]
    talk.complete("t/1")
    talk.turns()
    assert talk.out() == ["t/0", "t/2"]
