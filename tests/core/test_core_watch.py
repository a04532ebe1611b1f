"""Owning watchers and the grace after the last one went away."""

from __future__ import annotations

from blockx_worker.core.commands import ArmWatchGrace, DisarmWatchGrace, Dropped
from blockx_worker.core.events import WatchAttached, WatchDetached, WatchGraceExpired, WriterCommitEnded
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskPhase, TaskState
from tests.core.core_talk import Talk, failure_of, result_of

ATTACHED = WatchAttached(task_id="t")
DETACHED = WatchDetached(task_id="t")
EXPIRED = WatchGraceExpired(task_id="t")


def test_the_last_owner_that_leaves_arms_the_grace_and_its_end_cancels_the_task(talk):
    talk.run("t", until=TaskPhase.CALLS)
    assert talk.say(ATTACHED) == []
    assert talk.say(DETACHED, at=1_000) == [ArmWatchGrace(task_id="t", deadline_ms=31_000)]
    assert talk.core.next_deadline() == (31_000, "watch grace of task t")
    assert talk.core.grace_expired_tasks(30_999) == ()
    assert talk.core.grace_expired_tasks(31_000) == ("t",)
    commands = talk.say(EXPIRED, at=31_000)
    failure = failure_of(commands)
    assert result_of(commands).state is TaskState.CANCELLED
    assert failure.code is TaskFailureCode.WATCH_DISCONNECTED
    assert "within 30000 ms" in failure.message
    assert "phase CALLS" in failure.message


def test_a_new_owner_within_the_grace_keeps_the_task(talk):
    talk.run("t")
    talk.say(ATTACHED)
    talk.say(DETACHED)
    assert talk.say(ATTACHED, at=29_999) == [DisarmWatchGrace(task_id="t")]
    assert talk.say(EXPIRED, at=30_000) == [
        Dropped(event="WatchGraceExpired", reason="no watch grace is armed", task_id="t")
    ]
    assert talk.say(DETACHED) == [ArmWatchGrace(task_id="t", deadline_ms=60_000)]


def test_only_the_last_of_several_owners_matters(talk):
    talk.run("t")
    talk.say(ATTACHED)
    talk.say(ATTACHED)
    assert talk.say(DETACHED) == []
    assert talk.say(DETACHED) == [ArmWatchGrace(task_id="t", deadline_ms=30_000)]


def test_a_task_that_never_had_an_owner_never_expires(talk):
    talk.run("t")
    assert talk.core.grace_expired_tasks(10**9) == ()
    assert talk.say(EXPIRED, at=10**9) == [
        Dropped(event="WatchGraceExpired", reason="no watch grace is armed", task_id="t")
    ]


def test_a_grace_before_its_end_is_dropped(talk):
    talk.run("t")
    talk.say(ATTACHED)
    talk.say(DETACHED)
    assert talk.say(EXPIRED, at=29_999) == [
        Dropped(event="WatchGraceExpired", reason="before its time", task_id="t")
    ]


def test_grace_zero_is_off():
    talk = Talk(watch_disconnect_grace_ms=0)
    talk.run("t")
    talk.say(ATTACHED)
    assert talk.say(DETACHED) == []
    assert talk.core.next_deadline() == (60_000, "deadline of task t")


def test_an_owner_of_a_lease_counts_for_the_task_but_its_leaving_arms_nothing_yet(talk):
    talk.lease("t")
    talk.say(ATTACHED)
    assert talk.say(DETACHED) == []
    talk.say(ATTACHED)
    talk.submit("t")
    assert talk.say(DETACHED) == [ArmWatchGrace(task_id="t", deadline_ms=30_000)]


def test_watchers_of_unknown_and_ended_tasks_are_dropped_and_so_is_one_leave_too_many(talk):
    for event in (ATTACHED, DETACHED, EXPIRED):
        assert talk.say(event) == [Dropped(event=type(event).__name__, reason="unknown task", task_id="t")]
    talk.run("t", until=TaskPhase.PLUGIN)
    assert talk.say(DETACHED) == [
        Dropped(event="WatchDetached", reason="no owning watcher is attached", task_id="t")
    ]
    talk.finish_phase(TaskPhase.PLUGIN)
    for event in (ATTACHED, DETACHED, EXPIRED):
        assert talk.say(event) == [
            Dropped(event=type(event).__name__, reason="the task has ended", task_id="t")
        ]


def test_an_owner_who_comes_back_after_the_grace_does_not_undo_an_end_that_a_commit_puts_off(talk):
    talk.run("t", until=TaskPhase.PLUGIN)
    talk.say(ATTACHED)
    talk.say(DETACHED)
    talk.commit(final=False)
    assert talk.say(EXPIRED, at=30_000) == []
    assert talk.core.grace_expired_tasks(30_000) == ()
    talk.say(ATTACHED)
    assert failure_of(talk.say(WriterCommitEnded(task_id="t"))).code is TaskFailureCode.WATCH_DISCONNECTED
