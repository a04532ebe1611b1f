"""Submits: acceptance, idempotency, slots named by clients, refusals."""

from __future__ import annotations

import pytest

from blockx_worker.core.commands import (
    AnswerSnapshot,
    ArmTaskDeadline,
    ForgetResult,
    PrepareTaskActivation,
    PublishTask,
)
from blockx_worker.core.events import (
    DrainStarted,
    ResultRetentionElapsed,
    SlotLeaseExpired,
    SlotRequested,
    SubmitRequested,
)
from blockx_worker.model.errors import ErrorCode
from blockx_worker.model.tasks import TaskPhase, TaskSnapshot, TaskState, TypedConfig
from tests.core.core_talk import Talk, kinds, request


def allocated(slot_id: str, remaining_ms: int, task_id: str = "t") -> TaskSnapshot:
    return TaskSnapshot(
        task_id=task_id,
        slot_id=slot_id,
        state=TaskState.ALLOCATED,
        phase=TaskPhase.PREPARING,
        lease_remaining_ms=remaining_ms,
    )


def test_a_submit_without_a_slot_leases_one_inline_and_orders_activation(talk):
    wanted = request(timeout_ms=5_000)
    assert talk.say(SubmitRequested(request=wanted), at=100) == [
        AnswerSnapshot(snapshot=allocated("slot-0-1", 30_000), created=True),
        PrepareTaskActivation(task_id="t", slot_id="slot-0-1", request=wanted),
        ArmTaskDeadline(task_id="t", deadline_ms=5_100),
    ]
    assert talk.core.is_active("t")
    assert talk.core.active_tasks() == ("t",)


@pytest.mark.parametrize("named", [True, False])
def test_a_submit_for_a_leased_id_uses_its_slot_named_or_not(talk, named):
    slot_id = talk.lease(ttl_ms=500)
    wanted = request(slot_id=slot_id if named else None)
    assert talk.say(SubmitRequested(request=wanted), at=499) == [
        AnswerSnapshot(snapshot=allocated(slot_id, 1), created=True),
        PrepareTaskActivation(task_id="t", slot_id=slot_id, request=wanted),
        ArmTaskDeadline(task_id="t", deadline_ms=60_499),
        PublishTask(task_id="t"),
    ]


def test_the_same_request_again_shows_the_task_wherever_it_stands(talk):
    for phase in (TaskPhase.BUILDER, TaskPhase.CALLS, TaskPhase.PLUGIN):
        talk.run(str(phase), until=phase)
        commands = talk.say(SubmitRequested(request=request(str(phase))))
        assert commands == [AnswerSnapshot(snapshot=talk.snapshot(str(phase)), created=False)]
    talk.submit("preparing")
    (answer,) = talk.say(SubmitRequested(request=request("preparing")))
    assert not answer.created
    assert answer.snapshot.phase is TaskPhase.PREPARING


def test_the_same_request_after_the_end_shows_the_result(talk):
    talk.complete("t")
    (answer,) = talk.say(SubmitRequested(request=request()))
    assert not answer.created
    assert answer.snapshot.state is TaskState.SUCCEEDED
    assert answer.snapshot.result == talk.snapshot().result


def test_slot_and_labels_do_not_make_another_request(talk):
    talk.run("t")
    (answer,) = talk.say(SubmitRequested(request=request(slot_id="elsewhere", labels={"a": "b"})))
    assert isinstance(answer, AnswerSnapshot)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_ms": 1_000},
        {"function_call_config": TypedConfig("CallListCallConfig", b"{}")},
        {"result_handler": TypedConfig("ReturnValueResultHandler")},
        {"call_budget_ms": 1},
    ],
)
def test_another_request_under_the_same_id_is_a_conflict(talk, ended, changes):
    talk.complete("t") if ended else talk.submit("t")
    refusal = talk.refusal(SubmitRequested(request=request(**changes)))
    assert refusal.code is ErrorCode.TASK_ID_CONFLICT
    assert "'t'" in refusal.message
    assert "new task_id" in refusal.message


def test_an_id_can_be_used_again_once_its_result_is_forgotten(talk):
    talk.complete("t")
    version = talk.core.version_of("t")
    assert talk.say(ResultRetentionElapsed(), at=600_000) == [ForgetResult(task_id="t")]
    assert talk.core.version_of("t") == 0
    talk.submit("t", timeout_ms=1_000)
    assert talk.core.version_of("t") > version


def test_a_slot_that_is_unknown_anothers_or_long_gone_is_invalid(talk):
    gone = talk.lease("t", ttl_ms=100)
    talk.say(SlotLeaseExpired(slot_id=gone), at=100)
    others = talk.lease("other")
    for slot_id in ("slot-7-7", "", gone, others):
        refusal = talk.refusal(SubmitRequested(request=request(slot_id=slot_id)))
        assert refusal.code is ErrorCode.INVALID_SLOT
        assert repr(slot_id) in refusal.message
    assert talk.core.counts(100).allocated == 1


def test_a_leased_id_with_a_wrong_slot_is_invalid_and_keeps_its_lease(talk):
    slot_id = talk.lease("t")
    assert talk.refusal(SubmitRequested(request=request(slot_id="slot-9-9"))).code is ErrorCode.INVALID_SLOT
    assert talk.submit("t", slot_id=slot_id) == slot_id


@pytest.mark.parametrize("named", [True, False])
def test_a_submit_on_a_lease_past_its_end_is_uncertain_until_the_sweep(talk, named):
    slot_id = talk.lease(ttl_ms=500)
    wanted = SubmitRequested(request=request(slot_id=slot_id if named else None))
    refusal = talk.refusal(wanted, at=520)
    assert refusal.code is ErrorCode.SLOT_UNCERTAIN
    assert "ended 20 ms ago" in refusal.message
    assert "same task_id" in refusal.message
    talk.say(SlotLeaseExpired(slot_id=slot_id))
    if named:
        assert talk.refusal(wanted).code is ErrorCode.INVALID_SLOT
    assert talk.submit("t") == "slot-0-2"


def test_a_renewed_lease_can_be_submitted_on(talk):
    slot_id = talk.lease(ttl_ms=500)
    talk.ask(SlotRequested(task_id="t"), at=600)
    assert talk.submit("t", slot_id=slot_id) == slot_id


def test_without_a_free_slot_a_new_task_is_refused_and_known_ones_are_answered():
    talk = Talk(task_slots=2)
    talk.run("a")
    talk.lease("b")
    assert talk.refusal(SubmitRequested(request=request("c"))).code is ErrorCode.NO_SLOT
    assert talk.ask(SubmitRequested(request=request("a"))).state is TaskState.RUNNING
    assert talk.submit("b")


def test_while_draining_known_tasks_are_answered_and_nothing_new_is_taken_not_even_on_a_lease(talk):
    talk.run("a")
    slot_id = talk.lease("b")
    talk.say(DrainStarted())
    assert talk.ask(SubmitRequested(request=request("a"))).state is TaskState.RUNNING
    for wanted in (
        request("b"),
        request("b", slot_id=slot_id),
        request("c"),
        request("c", slot_id="slot-9-9"),
    ):
        assert talk.refusal(SubmitRequested(request=wanted)).code is ErrorCode.UNAVAILABLE
    assert (
        talk.refusal(SubmitRequested(request=request("a", timeout_ms=1))).code is ErrorCode.TASK_ID_CONFLICT
    )


@pytest.mark.parametrize("timeout_ms", [-5, 0, 86_400_001])
def test_a_timeout_out_of_range_is_refused_with_field_value_and_range(talk, timeout_ms):
    refusal = talk.refusal(SubmitRequested(request=request(timeout_ms=timeout_ms)))
    assert refusal.code is ErrorCode.INVALID_ARGUMENT
    assert refusal.message == f"timeout_ms is {timeout_ms}; 1 to 86400000 is accepted"


def test_a_malformed_task_id_is_refused(talk):
    refusal = talk.refusal(SubmitRequested(request=request("a\tb")))
    assert refusal.code is ErrorCode.INVALID_ARGUMENT
    assert "task_id is 'a\\tb'" in refusal.message


def test_a_refused_submit_leaves_no_trace():
    talk = Talk(task_slots=1)
    talk.lease("a", ttl_ms=100)
    before = (talk.core.counts(0), talk.core.version_of("a"), talk.core.next_deadline(), talk.core.dropped)
    talk.refusal(SubmitRequested(request=request("b")))
    talk.refusal(SubmitRequested(request=request("a", slot_id="x")))
    talk.refusal(SubmitRequested(request=request("a", timeout_ms=0)))
    assert (
        talk.core.counts(0),
        talk.core.version_of("a"),
        talk.core.next_deadline(),
        talk.core.dropped,
    ) == before


def test_a_new_id_has_no_watchers_to_wake_but_a_leased_one_may(talk):
    assert kinds(talk.say(SubmitRequested(request=request("new"))))[-1] == "ArmTaskDeadline"
    talk.lease("leased")
    assert kinds(talk.say(SubmitRequested(request=request("leased"))))[-1] == "PublishTask"
