"""Time-outs, cancels, drain, and how a commit puts them off."""

from __future__ import annotations

import pytest

from blockx_worker.core.commands import AnswerSnapshot, CommitGranted, Dropped, PublishTask, WorkerCommand
from blockx_worker.core.events import (
    CancelTaskRequested,
    DrainExpired,
    DrainStarted,
    PhaseOutcome,
    SubmitRequested,
    TaskTimedOut,
    WatchAttached,
    WatchDetached,
    WatchGraceExpired,
    WriterCommitEnded,
    WriterCommitStarted,
)
from blockx_worker.model.errors import ErrorCode, TaskFailureCode
from blockx_worker.model.tasks import TaskFailure, TaskPhase, TaskSnapshot, TaskState
from tests.core.core_talk import PHASES, Talk, failed, failure_of, kinds, request, result_of

ALL_PHASES = (TaskPhase.PREPARING, *PHASES)


def enter(talk: Talk, phase: TaskPhase) -> None:
    talk.submit("t") if phase is TaskPhase.PREPARING else talk.run("t", until=phase)


@pytest.mark.parametrize("phase", ALL_PHASES)
def test_the_deadline_ends_a_task_in_any_phase_and_says_which(talk, phase):
    enter(talk, phase)
    commands = talk.say(TaskTimedOut(task_id="t"), at=60_000)
    assert result_of(commands).state is TaskState.TIMED_OUT
    assert failure_of(commands) == TaskFailure(
        code=TaskFailureCode.TASK_TIMED_OUT,
        message=f"the task ran longer than its timeout of 60000 ms; it was in phase {phase}",
    )
    assert talk.core.counts(60_000).allocated + talk.core.counts(60_000).running == 0


def test_the_deadline_counts_from_acceptance(talk):
    talk.lease("t")
    talk.now = 5_000
    talk.submit("t", timeout_ms=500)
    assert talk.core.next_deadline() == (5_500, "deadline of task t")
    assert talk.core.timed_out_tasks(5_499) == ()
    assert talk.core.timed_out_tasks(5_500) == ("t",)
    assert talk.say(TaskTimedOut(task_id="t"), at=5_499) == [
        Dropped(event="TaskTimedOut", reason="before its time", task_id="t")
    ]


def test_a_time_out_of_a_lease_an_ended_or_an_unknown_task_is_dropped(talk):
    talk.lease("leased")
    talk.complete("ended")
    reasons = {"leased": "nothing was submitted yet", "ended": "the task has ended", "never": "unknown task"}
    for task_id, reason in reasons.items():
        assert talk.say(TaskTimedOut(task_id=task_id)) == [
            Dropped(event="TaskTimedOut", reason=reason, task_id=task_id)
        ]


@pytest.mark.parametrize("phase", ALL_PHASES)
def test_a_cancel_ends_a_task_in_any_phase_and_answers_with_its_end(talk, phase):
    enter(talk, phase)
    answer, *rest = talk.say(CancelTaskRequested(task_id="t", reason="Ctrl-C"))
    assert answer == AnswerSnapshot(snapshot=talk.snapshot(), created=False)
    assert result_of(rest).state is TaskState.CANCELLED
    assert failure_of(rest) == TaskFailure(
        code=TaskFailureCode.CANCELLED_BY_CLIENT,
        message=f"the client cancelled the task (Ctrl-C); it was in phase {phase}",
    )
    assert talk.snapshot().result == result_of(rest)


def test_a_cancel_of_an_unknown_id_is_refused(talk):
    refusal = talk.refusal(CancelTaskRequested(task_id="t"))
    assert refusal.code is ErrorCode.NOT_FOUND
    assert "task 't' is not known here" in refusal.message


def test_a_cancel_of_an_ended_task_shows_how_it_ended(talk):
    talk.complete("t")
    assert talk.say(CancelTaskRequested(task_id="t")) == [
        AnswerSnapshot(snapshot=talk.snapshot(), created=False)
    ]
    assert talk.snapshot().state is TaskState.SUCCEEDED


def test_a_cancel_of_a_lease_gives_the_slot_back_and_forgets_the_id(talk):
    slot_id = talk.lease("t")
    answer, publish = talk.say(CancelTaskRequested(task_id="t"))
    assert publish == PublishTask(task_id="t")
    snapshot = answer.snapshot
    assert (snapshot.slot_id, snapshot.state, snapshot.phase) == (
        slot_id,
        TaskState.CANCELLED,
        TaskPhase.DONE,
    )
    assert snapshot.result.failure.code is TaskFailureCode.CANCELLED_BY_CLIENT
    assert talk.core.snapshot("t", 0) is None
    assert talk.core.counts(0).retained_results == 0
    talk.submit("t")


def test_a_commit_for_a_lease_is_dropped(talk):
    talk.lease("t")
    assert talk.say(WriterCommitStarted(task_id="t", final=True)) == [
        Dropped(event="WriterCommitStarted", reason="nothing was submitted yet", task_id="t")
    ]


@pytest.mark.parametrize("phase", [TaskPhase.PREPARING, TaskPhase.BUILDER, TaskPhase.CALLS])
def test_a_commit_in_another_phase_is_dropped(talk, phase):
    enter(talk, phase)
    assert talk.say(WriterCommitStarted(task_id="t", final=True)) == [
        Dropped(event="WriterCommitStarted", reason="the task is in another phase", task_id="t")
    ]


def test_a_commit_after_the_end_is_dropped_so_that_the_writer_rolls_back(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.say(TaskTimedOut(task_id="t"), at=60_000)
    for task_id, reason in (("t", "the task has ended"), ("never", "unknown task")):
        assert talk.say(WriterCommitStarted(task_id=task_id, final=True)) == [
            Dropped(event="WriterCommitStarted", reason=reason, task_id=task_id)
        ]


@pytest.mark.parametrize("final", [True, False])
def test_a_commit_is_granted_and_does_not_change_what_clients_see(talk, final):
    talk.run("t", until=TaskPhase.PLUGIN)
    version = talk.core.version_of("t")
    assert talk.say(WriterCommitStarted(task_id="t", final=final)) == [CommitGranted(task_id="t")]
    assert (talk.core.phase_of("t"), talk.core.version_of("t")) == (TaskPhase.PLUGIN, version)


def test_a_second_commit_while_one_is_under_way_is_dropped(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=False)
    assert talk.say(WriterCommitStarted(task_id="t", final=True)) == [
        Dropped(event="WriterCommitStarted", reason="a commit is under way", task_id="t")
    ]


def test_commits_may_follow_one_another(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    for _ in range(3):
        talk.commit(final=False)
        assert talk.say(WriterCommitEnded(task_id="t")) == []
    talk.commit(final=True)
    assert result_of(talk.finish_phase(TaskPhase.PLUGIN)).state is TaskState.SUCCEEDED


def test_the_end_of_a_commit_that_nobody_started_or_that_is_the_final_one_is_dropped(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    reason = "no commit that others may follow is under way"
    dropped = [Dropped(event="WriterCommitEnded", reason=reason, task_id="t")]
    assert talk.say(WriterCommitEnded(task_id="t")) == dropped
    talk.commit(final=True)
    assert talk.say(WriterCommitEnded(task_id="t")) == dropped
    assert talk.say(WriterCommitEnded(task_id="never")) == [
        Dropped(event="WriterCommitEnded", reason="unknown task", task_id="never")
    ]


def interrupt(talk: Talk, event: str) -> list[WorkerCommand]:
    """Make a running task end from outside; what was ordered, without answers."""
    if event == "DrainExpired":
        talk.say(DrainStarted())
        return talk.say(DrainExpired())
    if event == "CancelTaskRequested":
        answer, *rest = talk.say(CancelTaskRequested(task_id="t"))
        assert isinstance(answer, AnswerSnapshot)
        return rest
    if event == "WatchGraceExpired":
        talk.say(WatchAttached(task_id="t"))
        talk.say(WatchDetached(task_id="t"))
        return talk.say(WatchGraceExpired(task_id="t"), at=talk.now + 30_000)
    return talk.say(TaskTimedOut(task_id="t"), at=max(talk.now, 60_000))


ENDS = [
    ("TaskTimedOut", TaskState.TIMED_OUT, TaskFailureCode.TASK_TIMED_OUT),
    ("CancelTaskRequested", TaskState.CANCELLED, TaskFailureCode.CANCELLED_BY_CLIENT),
    ("WatchGraceExpired", TaskState.CANCELLED, TaskFailureCode.WATCH_DISCONNECTED),
    ("DrainExpired", TaskState.CANCELLED, TaskFailureCode.WORKER_SHUTDOWN),
]


@pytest.mark.parametrize(("event", "state", "code"), ENDS)
def test_before_a_commit_every_end_strikes_at_once(talk, event, state, code):
    talk.run("t", until=TaskPhase.PLUGIN)
    commands = interrupt(talk, event)
    assert (result_of(commands).state, failure_of(commands).code) == (state, code)


@pytest.mark.parametrize(("event", "state", "code"), ENDS)
@pytest.mark.parametrize("succeeds", [True, False])
def test_during_the_final_commit_the_writers_outcome_is_the_tasks_outcome(talk, event, state, code, succeeds):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=True)
    assert interrupt(talk, event) == []
    assert talk.core.is_active("t")
    outcome = PhaseOutcome() if succeeds else failed(TaskFailureCode.PLUGIN_FAILED)
    commands = talk.finish_phase(TaskPhase.PLUGIN, outcome=outcome)
    assert result_of(commands).state is (TaskState.SUCCEEDED if succeeds else TaskState.FAILED)
    assert commands[1:] == [Dropped(event=event, reason="the writer's outcome came first", task_id="t")]
    assert talk.core.dropped == {(event, "the writer's outcome came first"): 1}


@pytest.mark.parametrize(("event", "state", "code"), ENDS)
def test_after_a_commit_that_is_not_the_final_one_the_end_strikes_as_soon_as_it_returns(
    talk, event, state, code
):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=False)
    assert interrupt(talk, event) == []
    commands = talk.say(WriterCommitEnded(task_id="t"))
    assert (result_of(commands).state, failure_of(commands).code) == (state, code)
    assert failure_of(commands).message.endswith("; the commit then under way was waited for")
    assert kinds(talk.say(WriterCommitStarted(task_id="t", final=True))) == ["Dropped"]


@pytest.mark.parametrize(("event", "state", "code"), ENDS)
@pytest.mark.parametrize("during", [True, False])
def test_an_end_after_a_commit_tells_what_is_written(talk, event, state, code, during):
    """The end knows nothing of the writer; the failure says both, whether it struck during the commit or later."""
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=False)
    talk.say(WriterCommitEnded(task_id="t", written="block 1 stays"))
    talk.commit(final=False)
    commands = interrupt(talk, event) if during else []
    assert commands == []
    commands = talk.say(WriterCommitEnded(task_id="t", written="blocks 1 to 2 stay"))
    commands = commands or interrupt(talk, event)
    assert failure_of(commands).code is code
    assert failure_of(commands).message.endswith("; blocks 1 to 2 stay")


def test_the_writers_outcome_also_wins_when_it_comes_before_the_end_of_a_commit(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=False)
    interrupt(talk, "TaskTimedOut")
    commands = talk.finish_phase(TaskPhase.PLUGIN, outcome=failed(TaskFailureCode.PLUGIN_FAILED))
    assert failure_of(commands).code is TaskFailureCode.PLUGIN_FAILED
    assert kinds(commands) == ["ConvergeTask", "Dropped"]


def test_only_the_first_end_is_put_off_and_nothing_is_due_meanwhile(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.commit(final=False)
    answer = talk.ask(CancelTaskRequested(task_id="t"))
    assert answer.state is TaskState.RUNNING
    assert talk.core.timed_out_tasks(60_000) == ()
    assert talk.core.next_deadline() is None
    assert talk.say(TaskTimedOut(task_id="t"), at=60_000) == [
        Dropped(event="TaskTimedOut", reason="another end is put off already", task_id="t")
    ]
    answer, dropped = talk.say(CancelTaskRequested(task_id="t"))
    assert answer.snapshot.state is TaskState.RUNNING
    assert dropped == Dropped(
        event="CancelTaskRequested", reason="another end is put off already", task_id="t"
    )
    assert failure_of(talk.say(WriterCommitEnded(task_id="t"))).code is TaskFailureCode.CANCELLED_BY_CLIENT


def test_a_drain_waits_for_tasks_and_not_for_leases(talk):
    assert not talk.core.drained
    talk.run("a")
    talk.lease("b")
    assert talk.say(DrainStarted()) == []
    assert not talk.core.drained
    talk.say(CancelTaskRequested(task_id="a"))
    assert talk.core.drained
    assert talk.core.counts(0).allocated == 1


def test_a_task_that_is_not_activated_yet_holds_up_a_drain(talk):
    talk.submit("t")
    talk.say(DrainStarted())
    assert not talk.core.drained


def test_the_end_of_a_drain_ends_all_in_slot_order_and_frees_leases(talk):
    talk.run("z", until=TaskPhase.CALLS)
    talk.lease("leased")
    talk.run("m", until=TaskPhase.PLUGIN)
    talk.commit("m", final=True)
    talk.submit("a")
    talk.say(DrainStarted())
    first, publish, second = talk.say(DrainExpired())
    assert publish == PublishTask(task_id="leased")
    assert [first.task_id, second.task_id] == ["z", "a"]
    assert {first.result.failure.code, second.result.failure.code} == {TaskFailureCode.WORKER_SHUTDOWN}
    assert "phase CALLS" in first.result.failure.message
    assert talk.core.active_tasks() == ("m",)
    assert not talk.core.drained
    talk.finish_phase(TaskPhase.PLUGIN, "m")
    assert talk.core.drained
    assert talk.say(DrainExpired()) == []


def test_a_drain_starts_once_and_ends_only_after_it_started(talk):
    assert talk.say(DrainExpired()) == [Dropped(event="DrainExpired", reason="not draining")]
    talk.say(DrainStarted())
    assert talk.say(DrainStarted()) == [Dropped(event="DrainStarted", reason="draining already")]
    assert talk.core.counts(0).draining


def test_cancel_and_results_work_while_draining(talk):
    talk.run("a")
    talk.complete("b")
    talk.say(DrainStarted())
    assert talk.ask(CancelTaskRequested(task_id="a")).state is TaskState.CANCELLED
    assert isinstance(talk.ask(SubmitRequested(request=request("b"))), TaskSnapshot)


@pytest.mark.parametrize(("event", "state", "code"), ENDS)
def test_a_batch_that_is_committed_while_calls_run_puts_ends_off_too(talk, event, state, code):
    talk.run("t", until=TaskPhase.CALLS)
    talk.commit(final=False)
    assert interrupt(talk, event) == []
    commands = talk.say(WriterCommitEnded(task_id="t"))
    assert (result_of(commands).state, failure_of(commands).code) == (state, code)


def test_while_calls_run_a_commit_cannot_be_the_final_one(talk):
    talk.run("t", until=TaskPhase.CALLS)
    assert kinds(talk.say(WriterCommitStarted(task_id="t", final=True))) == ["Dropped"]


def test_the_calls_phase_does_not_succeed_in_the_middle_of_a_commit(talk):
    """The shell waits for the writer first; if it did not, the event would change nothing."""
    talk.run("t", until=TaskPhase.CALLS)
    talk.commit(final=False)
    assert kinds(talk.finish_phase(TaskPhase.CALLS)) == ["Dropped"]
    talk.say(WriterCommitEnded(task_id="t"))
    assert kinds(talk.finish_phase(TaskPhase.CALLS)) == ["StartWriterPhase", "PublishTask"]


@pytest.mark.parametrize("phase", [TaskPhase.CALLS, TaskPhase.PLUGIN])
def test_a_commit_that_hangs_while_calls_run_fails_the_task(talk, phase):
    talk.run("t", until=TaskPhase.CALLS)
    talk.commit(final=False)
    commands = talk.finish_phase(phase, outcome=failed(TaskFailureCode.PLUGIN_FAILED))
    assert failure_of(commands).code is TaskFailureCode.PLUGIN_FAILED
