"""What clients ask for: a slot, a task, the end of a task. Each request gets exactly one answer, as the first command.

Order of answers: malformed request → known id → draining → slot and capacity. Nothing is changed before the last check
has passed.
"""

from __future__ import annotations

from blockx_worker.core.books import Books
from blockx_worker.core.commands import (
    AnswerSnapshot,
    ArmTaskDeadline,
    PrepareTaskActivation,
    PublishTask,
    Refuse,
    WorkerCommand,
)
from blockx_worker.core.ends import finish_or_put_off
from blockx_worker.core.entries import End, Entry
from blockx_worker.core.events import CancelTaskRequested, SlotRequested, SubmitRequested
from blockx_worker.core.refusals import (
    conflict,
    draining,
    invalid_slot,
    malformed_request,
    malformed_slot_request,
    no_slot,
    not_found,
    slot_uncertain,
)
from blockx_worker.core.states import VISIBLE, Move, Stage
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure, TaskRequest, TaskResult, TaskSnapshot

__all__ = ["cancel_task_requested", "slot_requested", "submit_requested"]


def slot_requested(books: Books, event: SlotRequested, now_ms: int) -> list[WorkerCommand]:
    """Lease a slot. A known id gets what it has; its lease is renewed, in place, only when it is past its end."""
    refusal = malformed_slot_request(books.limits, event)
    if refusal is not None:
        return [refusal]
    entry = books.entries.get(event.task_id)
    lapsed = entry is not None and not entry.submitted and entry.slot.lease_over(now_ms)
    known = books.snapshot(event.task_id, now_ms)
    if known is not None and not lapsed:
        return [AnswerSnapshot(snapshot=known, created=False)]
    if books.draining:
        return [draining()]
    end_ms = now_ms + (event.ttl_ms or books.limits.default_ttl_ms)
    if entry is not None:
        books.renew(entry, end_ms)
        return [AnswerSnapshot(snapshot=books.entry_snapshot(entry, now_ms), created=False)]
    if not books.slots.free_capacity:
        return [no_slot(books.limits)]
    entry = books.lease(event.task_id, end_ms)
    return [AnswerSnapshot(snapshot=books.entry_snapshot(entry, now_ms), created=True)]


def submit_requested(books: Books, event: SubmitRequested, now_ms: int) -> list[WorkerCommand]:
    """Accept a task on its leased slot, or on one leased inline."""
    request = event.request
    refusal = malformed_request(books.limits, request)
    if refusal is not None:
        return [refusal]
    if (fingerprint := _known_fingerprint(books, request.task_id)) is not None:
        return [_answer_known(books, request, fingerprint, now_ms)]
    leased = books.entries.get(request.task_id)
    refusal = _refused_slot(books, request, leased, now_ms)
    if refusal is not None:
        return [refusal]
    entry = leased or books.lease(request.task_id, now_ms + books.limits.default_ttl_ms)
    books.submit(entry, request, now_ms)
    commands: list[WorkerCommand] = [
        AnswerSnapshot(snapshot=books.entry_snapshot(entry, now_ms), created=True),
        PrepareTaskActivation(task_id=entry.task_id, slot_id=entry.slot.slot_id, request=request),
        ArmTaskDeadline(task_id=entry.task_id, deadline_ms=entry.deadline_ms),
    ]
    if leased is not None:  # only an id that was known before can have watchers
        commands.append(PublishTask(task_id=entry.task_id))
    return commands


def cancel_task_requested(books: Books, event: CancelTaskRequested, now_ms: int) -> list[WorkerCommand]:
    """End a task, or give a leased slot back; during a commit the answer shows the task still running."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        ended = books.snapshot(event.task_id, now_ms)
        return [not_found(event.task_id) if ended is None else AnswerSnapshot(snapshot=ended, created=False)]
    if not entry.submitted:
        return _give_back(books, entry)
    because = f" ({event.reason})" if event.reason else ""
    message = f"the client cancelled the task{because}; it was in phase {entry.phase}"
    failure = TaskFailure(code=TaskFailureCode.CANCELLED_BY_CLIENT, message=message)
    end = End(event="CancelTaskRequested", move=Move.CANCELLED, failure=failure)
    commands = finish_or_put_off(books, entry, end, now_ms)
    after = books.snapshot(event.task_id, now_ms)
    assert after is not None
    return [AnswerSnapshot(snapshot=after, created=False), *commands]


def _known_fingerprint(books: Books, task_id: str) -> str | None:
    """Fingerprint of the task that was submitted under this id; None for an id that is new or only leased."""
    entry = books.entries.get(task_id)
    if entry is not None:
        return None if entry.request is None else entry.request.fingerprint
    kept = books.results.get(task_id)
    return None if kept is None else kept.fingerprint


def _answer_known(books: Books, request: TaskRequest, fingerprint: str, now_ms: int) -> WorkerCommand:
    if fingerprint != request.fingerprint:
        return conflict(request.task_id)
    snapshot = books.snapshot(request.task_id, now_ms)
    assert snapshot is not None
    return AnswerSnapshot(snapshot=snapshot, created=False)


def _refused_slot(books: Books, request: TaskRequest, leased: Entry | None, now_ms: int) -> Refuse | None:
    if books.draining:
        return draining()
    if request.slot_id is not None and (leased is None or leased.slot.slot_id != request.slot_id):
        return invalid_slot(request)
    if leased is None:
        return None if books.slots.free_capacity else no_slot(books.limits)
    if leased.slot.lease_over(now_ms):
        return slot_uncertain(leased.slot, now_ms)
    return None


def _give_back(books: Books, entry: Entry) -> list[WorkerCommand]:
    # No task was submitted, so nothing is retained: the id is free for a new request. The answer still has the form of
    # an ended task, because that is what the caller asked for.
    state, phase = VISIBLE[Stage.RELEASED]
    failure = TaskFailure(
        code=TaskFailureCode.CANCELLED_BY_CLIENT,
        message=f"slot {entry.slot.slot_id} was given back before a task was submitted",
    )
    result = TaskResult(task_id=entry.task_id, state=state, failure=failure)
    snapshot = TaskSnapshot(
        task_id=entry.task_id, slot_id=entry.slot.slot_id, state=state, phase=phase, result=result
    )
    return [AnswerSnapshot(snapshot=snapshot, created=False), books.release(entry, Move.CANCELLED)]
