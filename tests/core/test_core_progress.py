"""Activation and phases: what follows on what, what a result collects, what is dropped."""

from __future__ import annotations

import pytest

from blockx_worker.core.commands import (
    ConvergeTask,
    Dropped,
    PublishTask,
    StartBuilderPhase,
    StartCallPhase,
    StartWriterPhase,
)
from blockx_worker.core.events import (
    PhaseOutcome,
    SlotLeaseExpired,
    TaskActivationFailed,
    TaskActivationPrepared,
    TaskMeasured,
    TaskPhaseFinished,
    TaskTimedOut,
)
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import FailedCall, TaskFailure, TaskPhase, TaskResult, TaskState, TaskStatistic
from tests.core.core_talk import PHASES, failed, failure_of, result_of


def test_a_task_goes_from_activation_through_all_phases_to_success(talk):
    slot_id = talk.submit("t")
    assert talk.snapshot().state is TaskState.ALLOCATED
    prepared = TaskActivationPrepared(task_id="t", slot_id=slot_id, epoch=7)
    assert talk.say(prepared, at=10) == [StartBuilderPhase(task_id="t"), PublishTask(task_id="t")]
    assert (talk.snapshot().state, talk.snapshot().phase) == (TaskState.RUNNING, TaskPhase.BUILDER)
    assert talk.core.epoch_of("t") == 7
    assert talk.finish_phase(TaskPhase.BUILDER) == [StartCallPhase(task_id="t"), PublishTask(task_id="t")]
    assert talk.finish_phase(TaskPhase.CALLS) == [StartWriterPhase(task_id="t"), PublishTask(task_id="t")]
    assert talk.finish_phase(TaskPhase.PLUGIN) == [
        ConvergeTask(task_id="t", result=TaskResult(task_id="t", state=TaskState.SUCCEEDED))
    ]
    ended = talk.snapshot()
    assert (ended.state, ended.phase, ended.slot_id) == (TaskState.SUCCEEDED, TaskPhase.DONE, slot_id)
    assert (ended.lease_remaining_ms, ended.result.state) == (0, TaskState.SUCCEEDED)
    assert talk.core.counts(talk.now).running == 0
    assert talk.core.phase_of("t") is TaskPhase.DONE
    assert talk.core.epoch_of("t") is None
    assert not talk.core.is_active("t")


def test_the_version_rises_with_every_change_that_clients_see(talk):
    slot_id = talk.submit("t")
    seen = [talk.core.version_of("t")]
    talk.say(TaskActivationPrepared(task_id="t", slot_id=slot_id, epoch=1))
    seen.append(talk.core.version_of("t"))
    for phase in PHASES:
        talk.finish_phase(phase)
        seen.append(talk.core.version_of("t"))
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("code", [TaskFailureCode.ACTIVATION_FAILED, TaskFailureCode.IO_SCOPE_FAILED])
def test_a_failed_activation_ends_the_task_with_its_code(talk, code):
    talk.submit("t")
    commands = talk.say(TaskActivationFailed(task_id="t", code=code, message="no epoch"))
    assert commands == [
        ConvergeTask(
            task_id="t",
            result=TaskResult(
                task_id="t", state=TaskState.FAILED, failure=TaskFailure(code=code, message="no epoch")
            ),
        )
    ]
    assert talk.core.counts(0).allocated == 0


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (TaskPhase.BUILDER, TaskFailureCode.FUNCTION_NOT_FOUND),
        (TaskPhase.CALLS, TaskFailureCode.OUTPUT_BYTES_EXCEEDED),
        (TaskPhase.PLUGIN, TaskFailureCode.PLUGIN_NOT_FOUND),
    ],
)
def test_the_failure_of_a_phase_is_the_failure_of_the_task(talk, phase, code):
    talk.run("t", until=phase)
    result = result_of(talk.finish_phase(phase, outcome=failed(code, "because")))
    assert (result.state, result.failure) == (TaskState.FAILED, TaskFailure(code=code, message="because"))


def test_a_result_collects_what_the_phases_report_and_a_later_silence_takes_nothing_back(talk):
    talk.run("t")
    talk.finish_phase(TaskPhase.BUILDER, outcome=PhaseOutcome(statistic=TaskStatistic(build_ms=3)))
    statistic = TaskStatistic(build_ms=3, calls_total=2)
    talk.finish_phase(
        TaskPhase.CALLS,
        outcome=PhaseOutcome(statistic=statistic, output_count=2, output_bytes=40, retained_bytes=64),
    )
    result = result_of(
        talk.finish_phase(TaskPhase.PLUGIN, outcome=PhaseOutcome(plugin_results=b'{"rows":2}'))
    )
    assert result == TaskResult(
        task_id="t",
        state=TaskState.SUCCEEDED,
        plugin_results=b'{"rows":2}',
        statistic=statistic,
        output_count=2,
        output_bytes=40,
    )
    assert talk.core.counts(0).retained_bytes > 64


def test_the_last_statistic_wins(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    last = TaskStatistic(calls_total=5, write_ms=9)
    assert (
        result_of(talk.finish_phase(TaskPhase.PLUGIN, outcome=PhaseOutcome(statistic=last))).statistic == last
    )


def test_failed_calls_are_listed_in_the_result(talk):
    talk.run("t", until=TaskPhase.CALLS)
    calls = (FailedCall(index=3, error_kind="USER_ERROR", message="x"),)
    outcome = failed(TaskFailureCode.CALLS_FAILED, failed_calls=calls, failed_calls_omitted=4, output_count=9)
    result = result_of(talk.finish_phase(TaskPhase.CALLS, outcome=outcome))
    assert (result.failed_calls, result.failed_calls_omitted, result.output_count) == (calls, 4, 9)


def test_what_was_measured_before_an_end_from_outside_stands_in_the_result(talk):
    talk.run("t", until=TaskPhase.CALLS)
    statistic = TaskStatistic(calls_total=5, calls_succeeded=3)
    version = talk.core.version_of("t")
    outcome = failed(TaskFailureCode.CALLS_FAILED, statistic=statistic, output_count=3, retained_bytes=10)
    assert talk.say(TaskMeasured(task_id="t", outcome=outcome)) == []
    assert (talk.core.phase_of("t"), talk.core.version_of("t")) == (TaskPhase.CALLS, version)
    result = result_of(talk.say(TaskTimedOut(task_id="t"), at=60_000))
    assert (result.state, result.statistic, result.output_count) == (TaskState.TIMED_OUT, statistic, 3)


def test_an_activation_for_another_slot_is_dropped(talk):
    talk.submit("t")
    assert talk.say(TaskActivationPrepared(task_id="t", slot_id="slot-0-9", epoch=1)) == [
        Dropped(event="TaskActivationPrepared", reason="the task holds another slot", task_id="t")
    ]


def test_an_activation_wins_over_a_lease_past_its_end_that_was_not_swept(talk):
    slot_id = talk.submit("t")
    assert talk.core.expired_slots(40_000) == (slot_id,)
    talk.say(TaskActivationPrepared(task_id="t", slot_id=slot_id, epoch=1), at=40_000)
    assert talk.core.expired_slots(40_000) == ()
    assert talk.snapshot().state is TaskState.RUNNING


def test_a_lease_that_is_swept_before_activation_loses_the_task_and_a_late_activation_is_dropped(talk):
    slot_id = talk.submit("t")
    commands = talk.say(SlotLeaseExpired(slot_id=slot_id), at=30_000)
    assert result_of(commands).state is TaskState.FAILED
    assert failure_of(commands).code is TaskFailureCode.SLOT_LOST
    assert "PREPARING" in failure_of(commands).message
    assert talk.say(TaskActivationPrepared(task_id="t", slot_id=slot_id, epoch=1)) == [
        Dropped(event="TaskActivationPrepared", reason="the task has ended", task_id="t")
    ]


@pytest.mark.parametrize("now_in", [TaskPhase.BUILDER, TaskPhase.CALLS, TaskPhase.PLUGIN])
@pytest.mark.parametrize("ends", list(TaskPhase))
def test_the_end_of_another_phase_is_dropped(talk, now_in, ends):
    if ends is now_in:
        return
    talk.run("t", until=now_in)
    version = talk.core.version_of("t")
    for outcome in (PhaseOutcome(output_count=5), failed(TaskFailureCode.BUILDER_FAILED)):
        assert talk.finish_phase(ends, outcome=outcome) == [
            Dropped(event="TaskPhaseFinished", reason="the task is in another phase", task_id="t")
        ]
    assert (talk.core.phase_of("t"), talk.core.version_of("t")) == (now_in, version)


def test_a_second_activation_is_dropped(talk):
    slot_id = talk.run("t")
    dropped = "the task is in another phase"
    assert talk.say(TaskActivationPrepared(task_id="t", slot_id=slot_id, epoch=2)) == [
        Dropped(event="TaskActivationPrepared", reason=dropped, task_id="t")
    ]
    activation_failed = TaskActivationFailed(task_id="t", code=TaskFailureCode.ACTIVATION_FAILED, message="")
    assert talk.say(activation_failed) == [Dropped(event="TaskActivationFailed", reason=dropped, task_id="t")]
    assert talk.core.epoch_of("t") == 7


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda talk: None, "unknown task"),
        (lambda talk: talk.lease("t"), "nothing was submitted yet"),
        (lambda talk: talk.complete("t"), "the task has ended"),
    ],
)
def test_facts_about_an_id_without_an_unfinished_task_are_dropped(talk, prepare, reason):
    prepare(talk)
    for event in (
        TaskActivationPrepared(task_id="t", slot_id="slot-0-1", epoch=1),
        TaskActivationFailed(task_id="t", code=TaskFailureCode.ACTIVATION_FAILED, message=""),
        TaskPhaseFinished(task_id="t", phase=TaskPhase.BUILDER, outcome=PhaseOutcome()),
        TaskMeasured(task_id="t", outcome=PhaseOutcome(output_count=1)),
    ):
        assert talk.say(event) == [Dropped(event=type(event).__name__, reason=reason, task_id="t")]
