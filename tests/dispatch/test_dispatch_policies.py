"""FAST_FAIL, COLLECT_ALL, the limit of outputs, and batches."""

from __future__ import annotations

from blockx_executor.wire.messages import CallCompleted, CallFailed
from blockx_worker.dispatch.commands import BatchSettled, CancelCalls, ConvergeTaskCalls, StopCallProduction
from blockx_worker.dispatch.events import CallsFinished, TaskCallsStarted
from blockx_worker.dispatch.source import CallBatch, ResolvedFunction
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, FailedCall, TaskFailure
from tests.dispatch.driver import (
    COLLECT_ALL,
    FAST_FAIL,
    FUNCTION,
    Talk,
    cancelled,
    completed,
    dispatched,
    failed,
    of,
    raws,
)


def test_fast_fail_stops_at_the_first_final_failure() -> None:
    """Production stops, what is out is cancelled and waited for, the rest is cancelled by arithmetic."""
    talk = Talk(task_max_inflight_calls=4, executor_max_inflight=3)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(100)])
    talk.turns()
    assert talk.fail("t/1", message="bad row", error_stack="line 3", local_vars={"x": "1"}) == []
    stop, cancels = talk.turns()
    assert stop == StopCallProduction(task_id="t")
    assert isinstance(cancels, CancelCalls)
    assert [call.call_id for call in cancels.calls] == ["t/0", "t/2"]
    assert cancels.calls[0].payload.attempt_seq == 1
    assert not talk.core.turn_pending
    talk.fail("t/0", "CANCELLED")
    assert talk.turns() == []
    talk.complete("t/2")
    (end,) = talk.turns()
    assert isinstance(end, ConvergeTaskCalls)
    assert end.failure == TaskFailure(
        code=TaskFailureCode.CALLS_FAILED,
        message="call 1 of pkg.mod.fn failed: USER_ERROR: bad row",
        call_id="t/1",
        function_id="pkg.mod.fn",
        args_preview="[1]",
        error_kind="USER_ERROR",
        stack="line 3",
        locals={"x": "1"},
    )
    assert end.failed_calls == (
        FailedCall(index=1, error_kind="USER_ERROR", message="bad row", args_preview="[1]", attempts=1),
    )
    statistic = end.statistic
    assert (statistic.total, statistic.succeeded, statistic.failed, statistic.cancelled) == (100, 1, 1, 98)


def test_fast_fail_cancels_in_slices() -> None:
    """Cancels and purged calls count towards a turn like any other."""
    talk = Talk()
    talk.attach("exec-0", contexts=2)
    talk.start("t", [[i] for i in range(2)] + [[1]] * 8)
    talk.turns()
    talk.fail("t/0")
    for cancels in (2, 5):  # the first slice also cancels what is out
        talk.turn(3)
        statistic = talk.core.statistic("t")
        assert statistic is not None
        assert statistic.cancelled == cancels
        assert talk.core.turn_pending
    talk.turns(3)
    assert cancelled(talk.said) == {"exec-0": ["t/1"]}
    talk.fail("t/1", "CANCELLED")
    talk.turns()
    assert talk.ends["t"].statistic.cancelled == 9


def test_nothing_starts_after_a_stop() -> None:
    """Calls in back-off and in the ready queue are cancelled too."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [3]])
    talk.turns()
    talk.fail("t/0", retryable=True)
    talk.refuse("t/1")
    talk.fail("t/2")
    talk.turns()
    end = talk.ends["t"]
    assert (end.statistic.failed, end.statistic.cancelled) == (1, 2)


def test_a_call_that_fails_while_the_task_stops_is_not_tried_again() -> None:
    """A failure is a failure; a call that never ran is cancelled."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [3]])
    talk.turns()
    talk.fail("t/0")
    assert talk.fail("t/1", retryable=True) == []
    assert talk.refuse("t/2") == []
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.failed, statistic.cancelled) == (2, 1)


def test_only_batches_before_a_cancelled_call_settle() -> None:
    """What follows a hole cannot be in order."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(6)], rows=2)
    talk.turns()
    talk.complete("t/1", "t/3")
    talk.fail("t/2")
    talk.complete("t/0", output=b"0")
    settled = talk.turns()
    assert [batch.first_index for batch in of(settled, BatchSettled)] == [0, 2]
    assert talk.ends["t"].statistic.cancelled == 2

    talk.start("u", [[i] for i in range(4)], rows=2)
    talk.turns()
    talk.complete("u/0", "u/2")
    talk.fail("u/3")
    talk.turns()
    talk.fail("u/1", "CANCELLED")
    talk.turns()
    assert "u" not in talk.outputs


def test_collect_all_runs_everything() -> None:
    """Failed positions are None; failures are listed by index, the first one in the message."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(10)], COLLECT_ALL)
    talk.turns()
    for index in (7, 2, 5):
        talk.fail(f"t/{index}", message=f"no {index}", error_stack=f"line {index}")
    talk.complete(*talk.out(), output=b"1")
    talk.turns()
    end = talk.ends["t"]
    assert talk.outputs["t"] == [None if index in {2, 5, 7} else b"1" for index in range(10)]
    assert end.failure is not None
    assert end.failure.code is TaskFailureCode.CALLS_FAILED
    assert end.failure.message == (
        "3 of 10 calls failed; the first: call 2 of pkg.mod.fn failed: USER_ERROR: no 2"
    )
    assert (end.failure.call_id, end.failure.stack) == ("t/2", "line 2")
    assert [call.index for call in end.failed_calls] == [2, 5, 7]
    assert end.failed_calls_omitted == 0


def test_only_so_many_failures_are_listed() -> None:
    """Those with the smallest indexes, whatever came first; the rest is counted."""
    talk = Talk(failed_calls_kept=3)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(6)], COLLECT_ALL)
    talk.turns()
    for index in (5, 1, 4, 0, 3, 2):
        talk.fail(f"t/{index}")
    talk.turns()
    end = talk.ends["t"]
    assert [call.index for call in end.failed_calls] == [0, 1, 2]
    assert end.failed_calls_omitted == 3
    assert end.failure is not None
    assert end.failure.call_id == "t/0"


def test_texts_of_user_code_are_clipped() -> None:
    """A failure does not keep megabytes."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [["é" * 1000]])
    talk.turns()
    talk.fail("t/0", message="m" * 100_000, error_stack="s" * 1_000_000)
    talk.turns()
    failure = talk.ends["t"].failure
    assert failure is not None
    assert len(failure.args_preview) == 200
    assert failure.args_preview.startswith('["éé')
    assert failure.args_preview.endswith("…")
    assert len(failure.message) < 5_000
    assert len(failure.stack) <= 64_000
    assert len(talk.ends["t"].failed_calls[0].message) <= 500


def test_outputs_above_the_limit_end_the_task() -> None:
    """The message names both numbers; outputs are dropped, also those of calls that end later."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(4)], rows=2, max_output_bytes=10)
    talk.turns()
    talk.complete("t/0", "t/3", output=b"12345")
    assert talk.turns() == []
    talk.complete("t/1", output=b"1")
    stop, cancels = talk.turns()
    assert isinstance(stop, StopCallProduction)
    assert isinstance(cancels, CancelCalls)
    talk.complete("t/2", output=b"12345")
    (end,) = talk.turns()
    assert isinstance(end, ConvergeTaskCalls)
    assert end.failure is not None
    assert end.failure.code is TaskFailureCode.OUTPUT_BYTES_EXCEEDED
    assert "11 bytes" in end.failure.message
    assert "limit of 10" in end.failure.message
    assert end.statistic.succeeded == 4


def test_shared_and_cached_outputs_count_too() -> None:
    """Every position has its bytes, however it got them."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]] * 4, rows=1, max_output_bytes=10)
    talk.turns()
    talk.complete("t/0", output=b"1234")
    talk.turns()
    failure = talk.ends["t"].failure
    assert failure is not None
    assert "12 bytes" in failure.message
    assert talk.ends["t"].statistic.cancelled == 1


def test_cached_outputs_stop_at_the_limit() -> None:
    """The one that goes above it is the last, in the middle of a slice too."""
    talk = Talk(task_max_inflight_calls=1)
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [1], [1], [1]], max_output_bytes=10)
    talk.turns()
    talk.complete("t/0", output=b"1234")
    talk.turns()
    talk.complete("t/1", output=b"1234")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.succeeded, statistic.cancelled, statistic.output_bytes) == (3, 2, 12)


def test_a_limit_that_is_just_met_is_kept() -> None:
    """The limit is what is allowed."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2]], max_output_bytes=10)
    talk.turns()
    talk.complete("t/0", "t/1", output=b"12345")
    talk.turns()
    assert talk.ends["t"].failure is None


class _Credits:
    """A source without an end in sight that counts what is taken."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.function: ResolvedFunction = FUNCTION
        self.total: int | None = None
        self.taken = 0
        self._batches = batches
        self._first = 0

    def next_batch(self) -> CallBatch | None:
        if self.taken == len(self._batches):
            return None
        rows = self._batches[self.taken]
        self.taken += 1
        batch = CallBatch(self._first, raws([row] for row in rows))
        self._first += len(rows)
        return batch


def _start_source(talk: Talk, source: _Credits, policy: CallFailurePolicy = COLLECT_ALL) -> None:
    talk.say(
        TaskCallsStarted(
            task_id="t",
            instance_id="i",
            source=source,
            failure_policy=policy,
            retry_policy=CallRetryPolicy(),
            call_budget_ms=0,
        )
    )


def test_batches_are_taken_on_credit_and_settle_in_order() -> None:
    """At most ``max_outstanding_batches`` are taken and not settled; an empty one settles at once."""
    talk = Talk(max_outstanding_batches=2)
    talk.attach("exec-0")
    source = _Credits([[1, 2], [3], [], [4]])
    _start_source(talk, source)
    talk.turns()
    assert source.taken == 2
    talk.complete("t/2", output=b"2")
    assert talk.turns() == []
    talk.complete("t/1", output=b"1")
    talk.complete("t/0", output=b"0")
    settled = talk.turns()
    assert [(batch.first_index, len(batch.outputs)) for batch in of(settled, BatchSettled)] == [
        (0, 2),
        (2, 1),
        (3, 0),
    ]
    assert source.taken == 4
    progress = talk.core.progress("t")
    assert progress is not None
    assert progress.total is None
    talk.complete("t/3", output=b"3")
    talk.turns()
    assert talk.outputs["t"] == [b"0", b"1", b"2", b"3"]
    assert talk.ends["t"].statistic.total == 4


def test_one_batch_of_credit_is_enough() -> None:
    """The next batch is taken as the one before it settles."""
    talk = Talk(max_outstanding_batches=1)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(3)], rows=1)
    for index in range(3):
        assert dispatched(talk.turns()) == {"exec-0": [f"t/{index}"]}
        talk.complete(f"t/{index}")
    talk.turns()
    assert talk.ends["t"].failure is None


def test_a_stopped_source_without_a_known_total_counts_what_was_taken() -> None:
    """What was never produced is not counted at all."""
    talk = Talk()
    talk.attach("exec-0", contexts=1)
    source = _Credits([[1, 2, 3], [4], [5]])
    _start_source(talk, source, FAST_FAIL)
    talk.turns()
    talk.fail("t/0")
    talk.turns()
    assert source.taken == 1
    statistic = talk.ends["t"].statistic
    assert (statistic.total, statistic.failed, statistic.cancelled) == (3, 1, 2)


def test_frames_of_one_batch_are_booked_in_order() -> None:
    """A failure in the middle of a batch of frames stops the task, and the frames after it still count."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1], [2], [3]])
    talk.turns()
    calls = list(talk.aboard["exec-0"].values())
    talk.aboard["exec-0"].clear()
    frames: list[CallCompleted | CallFailed] = [completed(calls[0]), failed(calls[1]), completed(calls[2])]
    talk.say(CallsFinished(executor_id="exec-0", frames=frames))
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.succeeded, statistic.failed, statistic.cancelled) == (2, 1, 0)
