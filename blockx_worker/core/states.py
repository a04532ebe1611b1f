"""States and transitions of slots and tasks, as data: the machine looks up every move here, and the docs draw it.

A task id has one *stage*. Clients see a coarser picture of it, a state and a phase: `VISIBLE` is that mapping. The
stages beyond the visible phases are `LEASED` (a slot is held for the id, nothing was submitted yet), the
`COMMITTING` stages (a writer may commit batches while calls still run), and `RELEASED` (the slot was given back before anything was submitted).

How the ends of a task read in the table: from a stage that may be interrupted they lead to an ended stage; from a
committing stage they lead back to that stage, which means *put off*.
"""

from __future__ import annotations

from enum import StrEnum

from blockx_worker.model.tasks import TaskPhase, TaskState

__all__ = [
    "COMMITTING_STAGES",
    "ENDED_STAGES",
    "INITIAL_SLOT_STATE",
    "INITIAL_STAGE",
    "SLOT_TRANSITIONS",
    "TASK_TRANSITIONS",
    "VISIBLE",
    "DropReason",
    "Move",
    "SlotMove",
    "SlotState",
    "Stage",
]


class SlotState(StrEnum):
    """One place for a task."""

    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    RUNNING = "RUNNING"


class SlotMove(StrEnum):
    """What happens to a slot."""

    LEASED = "leased"
    LEASE_RENEWED = "lease renewed"
    ACTIVATED = "activation prepared"
    FREED = "lease over or task ended"


INITIAL_SLOT_STATE = SlotState.FREE

SLOT_TRANSITIONS: dict[tuple[SlotState, str], SlotState] = {
    (SlotState.FREE, SlotMove.LEASED): SlotState.ALLOCATED,
    (SlotState.ALLOCATED, SlotMove.LEASE_RENEWED): SlotState.ALLOCATED,
    (SlotState.ALLOCATED, SlotMove.ACTIVATED): SlotState.RUNNING,
    (SlotState.ALLOCATED, SlotMove.FREED): SlotState.FREE,
    (SlotState.RUNNING, SlotMove.FREED): SlotState.FREE,
}


class Stage(StrEnum):
    """Where a task id stands, from the lease of its slot to its end."""

    LEASED = "LEASED"
    PREPARING = "PREPARING"
    BUILDER = "BUILDER"
    CALLS = "CALLS"
    CALLS_COMMITTING = "CALLS_COMMITTING"
    PLUGIN = "PLUGIN"
    COMMITTING = "COMMITTING"
    COMMITTING_FINAL = "COMMITTING_FINAL"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    RELEASED = "RELEASED"


class Move(StrEnum):
    """What happens to a task."""

    SUBMITTED = "submitted"
    ACTIVATION_PREPARED = "activation prepared"
    ACTIVATION_FAILED = "activation failed"
    LEASE_EXPIRED = "lease expired"
    BUILDER_SUCCEEDED = "builder succeeded"
    BUILDER_FAILED = "builder failed"
    CALLS_SUCCEEDED = "calls succeeded"
    CALLS_FAILED = "calls failed"
    PLUGIN_SUCCEEDED = "plugin succeeded"
    PLUGIN_FAILED = "plugin failed"
    COMMIT_STARTED = "commit started"
    FINAL_COMMIT_STARTED = "final commit started"
    COMMIT_ENDED = "commit ended"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    WATCH_GRACE_EXPIRED = "watch grace expired"
    DRAIN_EXPIRED = "drain expired"


INITIAL_STAGE = Stage.LEASED

ENDED_STAGES = (Stage.SUCCEEDED, Stage.FAILED, Stage.TIMED_OUT, Stage.CANCELLED)

_INTERRUPTS = {
    Move.TIMED_OUT: Stage.TIMED_OUT,
    Move.CANCELLED: Stage.CANCELLED,
    Move.WATCH_GRACE_EXPIRED: Stage.CANCELLED,
    Move.DRAIN_EXPIRED: Stage.CANCELLED,
}
_INTERRUPTIBLE = (Stage.PREPARING, Stage.BUILDER, Stage.CALLS, Stage.PLUGIN)
_COMMITTING = (Stage.COMMITTING, Stage.COMMITTING_FINAL)
COMMITTING_STAGES = (Stage.CALLS_COMMITTING, *_COMMITTING)

TASK_TRANSITIONS: dict[tuple[Stage, str], Stage] = {
    (Stage.LEASED, Move.SUBMITTED): Stage.PREPARING,
    (Stage.LEASED, Move.LEASE_EXPIRED): Stage.RELEASED,
    (Stage.LEASED, Move.CANCELLED): Stage.RELEASED,
    (Stage.LEASED, Move.DRAIN_EXPIRED): Stage.RELEASED,
    (Stage.PREPARING, Move.ACTIVATION_PREPARED): Stage.BUILDER,
    (Stage.PREPARING, Move.ACTIVATION_FAILED): Stage.FAILED,
    (Stage.PREPARING, Move.LEASE_EXPIRED): Stage.FAILED,
    (Stage.BUILDER, Move.BUILDER_SUCCEEDED): Stage.CALLS,
    (Stage.BUILDER, Move.BUILDER_FAILED): Stage.FAILED,
    (Stage.CALLS, Move.CALLS_SUCCEEDED): Stage.PLUGIN,
    (Stage.CALLS, Move.CALLS_FAILED): Stage.FAILED,
    (Stage.CALLS, Move.COMMIT_STARTED): Stage.CALLS_COMMITTING,
    (Stage.CALLS_COMMITTING, Move.COMMIT_ENDED): Stage.CALLS,
    (Stage.CALLS_COMMITTING, Move.CALLS_FAILED): Stage.FAILED,
    (Stage.CALLS_COMMITTING, Move.PLUGIN_FAILED): Stage.FAILED,
    (Stage.PLUGIN, Move.COMMIT_STARTED): Stage.COMMITTING,
    (Stage.PLUGIN, Move.FINAL_COMMIT_STARTED): Stage.COMMITTING_FINAL,
    (Stage.COMMITTING, Move.COMMIT_ENDED): Stage.PLUGIN,
    **{(stage, Move.PLUGIN_SUCCEEDED): Stage.SUCCEEDED for stage in (Stage.PLUGIN, *_COMMITTING)},
    **{(stage, Move.PLUGIN_FAILED): Stage.FAILED for stage in (Stage.PLUGIN, *_COMMITTING)},
    **{(stage, move): end for stage in _INTERRUPTIBLE for move, end in _INTERRUPTS.items()},
    **{(stage, move): stage for stage in COMMITTING_STAGES for move in _INTERRUPTS},
}

VISIBLE: dict[Stage, tuple[TaskState, TaskPhase | None]] = {
    Stage.LEASED: (TaskState.ALLOCATED, None),
    Stage.PREPARING: (TaskState.ALLOCATED, TaskPhase.PREPARING),
    Stage.BUILDER: (TaskState.RUNNING, TaskPhase.BUILDER),
    Stage.CALLS: (TaskState.RUNNING, TaskPhase.CALLS),
    Stage.CALLS_COMMITTING: (TaskState.RUNNING, TaskPhase.CALLS),
    Stage.PLUGIN: (TaskState.RUNNING, TaskPhase.PLUGIN),
    Stage.COMMITTING: (TaskState.RUNNING, TaskPhase.PLUGIN),
    Stage.COMMITTING_FINAL: (TaskState.RUNNING, TaskPhase.PLUGIN),
    Stage.SUCCEEDED: (TaskState.SUCCEEDED, TaskPhase.DONE),
    Stage.FAILED: (TaskState.FAILED, TaskPhase.DONE),
    Stage.TIMED_OUT: (TaskState.TIMED_OUT, TaskPhase.DONE),
    Stage.CANCELLED: (TaskState.CANCELLED, TaskPhase.DONE),
    Stage.RELEASED: (TaskState.CANCELLED, TaskPhase.DONE),
}


class DropReason(StrEnum):
    """Why an event changed nothing; few and fixed, because drops are counted by them."""

    UNKNOWN_TASK = "unknown task"
    TASK_ENDED = "the task has ended"
    NOT_SUBMITTED = "nothing was submitted yet"
    OTHER_PHASE = "the task is in another phase"
    OTHER_SLOT = "the task holds another slot"
    NO_SUCH_LEASE = "no such lease"
    SLOT_RUNNING = "the slot is running"
    TOO_EARLY = "before its time"
    COMMIT_UNDER_WAY = "a commit is under way"
    NO_COMMIT = "no commit that others may follow is under way"
    ALREADY_PUT_OFF = "another end is put off already"
    OUTCOME_FIRST = "the writer's outcome came first"
    GRACE_NOT_ARMED = "no watch grace is armed"
    NO_WATCHER = "no owning watcher is attached"
    ALREADY_DRAINING = "draining already"
    NOT_DRAINING = "not draining"
