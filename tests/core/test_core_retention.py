"""How long, how many and how large results are kept."""

from __future__ import annotations

import pytest

from blockx_worker.core.commands import ForgetResult
from blockx_worker.core.events import ResultRetentionElapsed
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.retention import RECORD_BYTES, record_bytes
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import FailedCall, TaskFailure, TaskResult, TaskState
from tests.core.core_talk import Talk, kinds


def kept(talk: Talk, task_ids: str) -> str:
    return "".join(task_id for task_id in task_ids if talk.core.snapshot(task_id, talk.now) is not None)


def test_results_go_when_their_time_is_over_oldest_first():
    talk = Talk(result_retention_ms=1_000)
    for task_id, at in (("b", 0), ("a", 100), ("c", 500)):
        talk.now = at
        talk.complete(task_id)
    assert talk.core.next_deadline() == (1_000, "retention of the oldest result")
    assert talk.say(ResultRetentionElapsed(), at=999) == []
    assert talk.say(ResultRetentionElapsed(), at=1_100) == [
        ForgetResult(task_id="b"),
        ForgetResult(task_id="a"),
    ]
    assert kept(talk, "abc") == "c"


def test_a_result_past_its_time_is_answered_until_the_sweep():
    talk = Talk(result_retention_ms=1_000)
    talk.complete("t")
    talk.now = 5_000
    assert talk.snapshot().state is TaskState.SUCCEEDED


def test_above_the_count_the_oldest_result_goes():
    talk = Talk(result_retention_count=2)
    assert kinds(talk.complete("a")) == ["ConvergeTask"]
    assert kinds(talk.complete("b")) == ["ConvergeTask"]
    assert talk.complete("c")[1:] == [ForgetResult(task_id="a")]
    assert kept(talk, "abc") == "bc"
    assert talk.core.counts(0).retained_results == 2


def test_above_the_bytes_the_oldest_results_go_outputs_counted():
    talk = Talk(result_retention_bytes=10_000)
    talk.complete("a", retained_bytes=2_000)
    talk.complete("b", retained_bytes=2_000)
    assert talk.core.counts(0).retained_bytes == 2 * (2_000 + RECORD_BYTES + 1)
    commands = talk.complete("c", retained_bytes=8_000)
    assert commands[1:] == [ForgetResult(task_id="a"), ForgetResult(task_id="b")]
    assert talk.core.counts(0).retained_bytes == 8_000 + RECORD_BYTES + 1


def test_a_result_above_the_whole_budget_is_kept_until_a_newer_one_comes():
    talk = Talk(result_retention_bytes=1_000)
    talk.complete("big", retained_bytes=50_000)
    assert talk.snapshot("big").state is TaskState.SUCCEEDED
    assert talk.complete("next")[1:] == [ForgetResult(task_id="big")]


def test_the_size_of_a_record_grows_with_its_texts():
    plain = TaskResult(task_id="t", state=TaskState.SUCCEEDED)
    full = TaskResult(
        task_id="t",
        state=TaskState.FAILED,
        failure=TaskFailure(
            code=TaskFailureCode.CALLS_FAILED,
            message="m" * 10,
            args_preview="a" * 20,
            stack="s" * 30,
            locals={"x": "y" * 39},
        ),
        failed_calls=(FailedCall(index=0, error_kind="USER_ERROR", message="m" * 50, args_preview="p" * 50),),
        plugin_results=b"r" * 60,
    )
    assert record_bytes(full) - record_bytes(plain) == 10 + 20 + 30 + 40 + (256 + 100) + 60


@pytest.mark.parametrize(
    "limits",
    [
        {"task_slots": 0},
        {"result_retention_count": 0},
        {"watch_disconnect_grace_ms": -1},
        {"default_ttl_ms": 0},
    ],
)
def test_limits_out_of_range_are_errors_that_name_the_field(limits):
    (field,) = limits
    with pytest.raises(ValueError, match=field):
        WorkerLimits(**limits)


def test_a_default_above_its_maximum_is_an_error_that_names_both():
    with pytest.raises(ValueError, match="default_ttl_ms is 30000, above max_ttl_ms = 1000"):
        WorkerLimits(max_ttl_ms=1_000)
