"""Why requests are refused: checks of their fields, and one sentence each that tells the caller what to do."""

from __future__ import annotations

from blockx_worker.core.commands import Refuse
from blockx_worker.core.events import SlotRequested
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.slots import Slot
from blockx_worker.model.errors import ErrorCode
from blockx_worker.model.tasks import TaskRequest

__all__ = [
    "MAX_TASK_ID_CHARS",
    "conflict",
    "draining",
    "invalid_slot",
    "malformed_request",
    "malformed_slot_request",
    "no_slot",
    "not_found",
    "slot_uncertain",
]

MAX_TASK_ID_CHARS = 256
"""Longest task id, in characters."""

_SHOWN_CHARS = 60


def malformed_slot_request(limits: WorkerLimits, event: SlotRequested) -> Refuse | None:
    """Refusal of a slot request that could never be served."""
    if not 0 <= event.ttl_ms <= limits.max_ttl_ms:
        return _invalid("ttl_ms", event.ttl_ms, f"0 (the default) to {limits.max_ttl_ms} is accepted")
    return _malformed_task_id(event.task_id)


def malformed_request(limits: WorkerLimits, request: TaskRequest) -> Refuse | None:
    """Refusal of a task that could never be accepted."""
    if not 1 <= request.timeout_ms <= limits.max_timeout_ms:
        return _invalid("timeout_ms", request.timeout_ms, f"1 to {limits.max_timeout_ms} is accepted")
    return _malformed_task_id(request.task_id)


def conflict(task_id: str) -> Refuse:
    """The id belongs to another request."""
    return Refuse(
        code=ErrorCode.TASK_ID_CONFLICT,
        message=(
            f"task_id {_shown(task_id)} was submitted before with another configuration, result handler, policy or"
            " time-out; submit this one under a new task_id"
        ),
    )


def draining() -> Refuse:
    """The worker takes no new work."""
    return Refuse(
        code=ErrorCode.UNAVAILABLE,
        message="the worker is shutting down and takes no new work; go to another worker with the same task_id",
    )


def no_slot(limits: WorkerLimits) -> Refuse:
    """Every slot is taken."""
    return Refuse(
        code=ErrorCode.NO_SLOT,
        message=f"all {limits.task_slots} task slots are taken; try again later, or on another worker",
    )


def invalid_slot(request: TaskRequest) -> Refuse:
    """The slot named by the client is not (or no longer) leased to this task."""
    return Refuse(
        code=ErrorCode.INVALID_SLOT,
        message=(
            f"slot_id {_shown(request.slot_id)} is not leased to task {_shown(request.task_id)};"
            " request a slot again, or submit without a slot_id"
        ),
    )


def slot_uncertain(slot: Slot, now_ms: int) -> Refuse:
    """The lease is past its end, but the slot has not been freed yet."""
    return Refuse(
        code=ErrorCode.SLOT_UNCERTAIN,
        message=(
            f"the lease of slot {slot.slot_id} ended {now_ms - slot.lease_end_ms} ms ago and the slot is about to be"
            " freed; submit again with the same task_id and without a slot_id"
        ),
    )


def not_found(task_id: str) -> Refuse:
    """The id is unknown."""
    return Refuse(
        code=ErrorCode.NOT_FOUND,
        message=(
            f"task {_shown(task_id)} is not known here: it was never submitted to this worker, or its result is no"
            " longer kept"
        ),
    )


def _malformed_task_id(task_id: str) -> Refuse | None:
    if task_id and len(task_id) <= MAX_TASK_ID_CHARS and task_id.isprintable():
        return None
    return _invalid("task_id", task_id, f"1 to {MAX_TASK_ID_CHARS} printable characters are accepted")


def _invalid(field: str, value: object, accepted: str) -> Refuse:
    return Refuse(code=ErrorCode.INVALID_ARGUMENT, message=f"{field} is {_shown(value)}; {accepted}")


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"
