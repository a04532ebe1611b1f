"""Slot requests: leases, capacity, expiry."""

from __future__ import annotations

import pytest

from blockx_worker.core.commands import AnswerSnapshot, Dropped, PublishTask
from blockx_worker.core.events import CancelTaskRequested, DrainStarted, SlotLeaseExpired, SlotRequested
from blockx_worker.core.views import WorkerCounts
from blockx_worker.model.errors import ErrorCode
from blockx_worker.model.tasks import TaskPhase, TaskSnapshot, TaskState
from tests.core.core_talk import Talk


def test_a_slot_request_leases_the_first_free_slot_for_the_ttl(talk):
    assert talk.say(SlotRequested(task_id="t", ttl_ms=500), at=100) == [
        AnswerSnapshot(
            snapshot=TaskSnapshot(
                task_id="t", slot_id="slot-0-1", state=TaskState.ALLOCATED, phase=None, lease_remaining_ms=500
            ),
            created=True,
        )
    ]
    assert talk.core.next_deadline() == (600, "lease of slot slot-0-1")
    assert talk.core.version_of("t") > 0
    assert not talk.core.is_active("t")


def test_ttl_zero_means_the_default(talk):
    assert talk.ask(SlotRequested(task_id="t")).lease_remaining_ms == 30_000


def test_a_known_leased_id_gets_its_slot_again_and_its_lease_runs_on(talk):
    slot_id = talk.lease(ttl_ms=500)
    version = talk.core.version_of("t")
    assert talk.say(SlotRequested(task_id="t", ttl_ms=9_000), at=200) == [
        AnswerSnapshot(
            snapshot=TaskSnapshot(
                task_id="t", slot_id=slot_id, state=TaskState.ALLOCATED, lease_remaining_ms=300
            ),
            created=False,
        )
    ]
    assert talk.core.version_of("t") == version


def test_a_lease_past_its_end_is_renewed_in_place_by_a_request_for_the_same_id(talk):
    slot_id = talk.lease(ttl_ms=500)
    version = talk.core.version_of("t")
    answer = talk.ask(SlotRequested(task_id="t", ttl_ms=700), at=500)
    assert (answer.slot_id, answer.lease_remaining_ms) == (slot_id, 700)
    assert talk.core.version_of("t") > version
    assert talk.core.expired_slots(1_199) == ()
    assert talk.core.expired_slots(1_200) == (slot_id,)


def test_a_lease_past_its_end_is_not_renewed_while_draining(talk):
    talk.lease(ttl_ms=500)
    talk.say(DrainStarted())
    assert talk.ask(SlotRequested(task_id="t"), at=499).lease_remaining_ms == 1
    assert talk.refusal(SlotRequested(task_id="t"), at=500).code is ErrorCode.UNAVAILABLE


def test_a_slot_request_never_renews_the_lease_of_a_submitted_task(talk):
    slot_id = talk.submit("t")
    assert talk.ask(SlotRequested(task_id="t"), at=30_000).lease_remaining_ms == 0
    assert talk.core.expired_slots(30_000) == (slot_id,)


def test_a_slot_request_for_a_task_shows_the_task(talk):
    slot_id = talk.run("t", until=TaskPhase.CALLS)
    answer = talk.ask(SlotRequested(task_id="t"))
    assert answer == TaskSnapshot(
        task_id="t", slot_id=slot_id, state=TaskState.RUNNING, phase=TaskPhase.CALLS
    )


def test_a_slot_request_for_an_ended_task_shows_its_result(talk):
    talk.complete("t")
    answer = talk.ask(SlotRequested(task_id="t"))
    assert (answer.state, answer.phase) == (TaskState.SUCCEEDED, TaskPhase.DONE)
    assert answer.result.state is TaskState.SUCCEEDED


def test_when_every_slot_is_taken_new_ids_are_refused_and_known_ones_answered():
    talk = Talk(task_slots=2)
    talk.lease("a")
    talk.run("b")
    refusal = talk.refusal(SlotRequested(task_id="c"))
    assert refusal.code is ErrorCode.NO_SLOT
    assert "all 2 task slots are taken" in refusal.message
    assert talk.ask(SlotRequested(task_id="a")).state is TaskState.ALLOCATED
    assert talk.ask(SlotRequested(task_id="b")).state is TaskState.RUNNING


def test_slots_are_given_out_in_order_and_a_freed_one_is_found_again():
    talk = Talk(task_slots=3)
    assert [talk.lease(task_id) for task_id in "abc"] == ["slot-0-1", "slot-1-2", "slot-2-3"]
    talk.say(CancelTaskRequested(task_id="b"))
    assert talk.lease("d") == "slot-1-4"


def test_draining_comes_before_capacity_and_after_known_ids():
    talk = Talk(task_slots=1)
    talk.lease("a")
    talk.say(DrainStarted())
    assert talk.refusal(SlotRequested(task_id="b")).code is ErrorCode.UNAVAILABLE
    assert talk.ask(SlotRequested(task_id="a")).state is TaskState.ALLOCATED


@pytest.mark.parametrize("ttl_ms", [-1, 600_001])
def test_a_ttl_out_of_range_is_refused_with_field_value_and_range(talk, ttl_ms):
    refusal = talk.refusal(SlotRequested(task_id="t", ttl_ms=ttl_ms))
    assert refusal.code is ErrorCode.INVALID_ARGUMENT
    assert refusal.message == f"ttl_ms is {ttl_ms}; 0 (the default) to 600000 is accepted"


@pytest.mark.parametrize(
    ("task_id", "shown"),
    [
        ("", "''"),
        ("x" * 257, "(259 characters)"),
        ("a\nb", r"'a\nb'"),
        ("a\x00", r"'a\x00'"),
        ("\ud800", r"'\ud800'"),
    ],
)
def test_a_task_id_that_is_empty_overlong_or_not_printable_is_refused(talk, task_id, shown):
    refusal = talk.refusal(SlotRequested(task_id=task_id))
    assert refusal.code is ErrorCode.INVALID_ARGUMENT
    assert refusal.message.startswith("task_id is ")
    assert shown in refusal.message
    assert refusal.message.endswith("1 to 256 printable characters are accepted")
    refusal.message.encode()


@pytest.mark.parametrize("task_id", ["x" * 200, "zurück/é 表 #1"])
def test_any_printable_text_up_to_the_limit_is_a_task_id(talk, task_id):
    assert talk.lease(task_id)


def test_an_expired_lease_frees_the_slot_and_wakes_whoever_watches_the_id(talk):
    slot_id = talk.lease(ttl_ms=500)
    assert talk.say(SlotLeaseExpired(slot_id=slot_id), at=500) == [PublishTask(task_id="t")]
    assert talk.core.snapshot("t", 500) is None
    assert talk.core.version_of("t") == 0
    assert talk.core.counts(500).allocated == 0


def test_a_lease_before_its_end_a_running_slot_and_an_unknown_lease_do_not_expire(talk):
    slot_id = talk.lease("a", ttl_ms=500)
    running = talk.run("b")
    assert talk.say(SlotLeaseExpired(slot_id=slot_id), at=499) == [
        Dropped(event="SlotLeaseExpired", reason="before its time", task_id="a")
    ]
    assert talk.say(SlotLeaseExpired(slot_id=running), at=99_999) == [
        Dropped(event="SlotLeaseExpired", reason="the slot is running", task_id="b")
    ]
    for unknown in ("slot-9-9", ""):
        assert talk.say(SlotLeaseExpired(slot_id=unknown)) == [
            Dropped(event="SlotLeaseExpired", reason="no such lease")
        ]
    assert talk.core.dropped == {
        ("SlotLeaseExpired", "before its time"): 1,
        ("SlotLeaseExpired", "the slot is running"): 1,
        ("SlotLeaseExpired", "no such lease"): 2,
    }


def test_the_id_of_an_earlier_lease_does_not_expire_the_next_one_in_the_same_place():
    talk = Talk(task_slots=1)
    old = talk.lease(ttl_ms=500)
    talk.say(SlotLeaseExpired(slot_id=old), at=500)
    talk.lease(ttl_ms=500)
    assert talk.say(SlotLeaseExpired(slot_id=old), at=1_000) == [
        Dropped(event="SlotLeaseExpired", reason="no such lease")
    ]


def test_counts_tell_how_many_leases_wait_for_the_sweep():
    talk = Talk(task_slots=4)
    talk.lease("a", ttl_ms=100)
    talk.lease("b", ttl_ms=200)
    talk.run("c")
    assert talk.core.counts(150) == WorkerCounts(
        slots=4, allocated=2, running=1, expired=1, retained_results=0, retained_bytes=0, draining=False
    )


def test_sweeps_and_deadlines_go_in_the_order_of_the_slots():
    talk = Talk(task_slots=3)
    talk.lease("z", ttl_ms=100)
    talk.lease("a", ttl_ms=100)
    assert talk.core.expired_slots(100) == ("slot-0-1", "slot-1-2")
    assert talk.core.next_deadline() == (100, "lease of slot slot-0-1")
