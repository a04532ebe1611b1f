"""How a task goes on: activation, the end of each phase, and the commits of its writer.

Once a task is activated, every failure is a terminal result. The failure that a phase reports is the task's failure,
word for word; a phase without one succeeded. The calls phase always goes on to the writer phase.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from blockx_worker.core.books import Books
from blockx_worker.core.commands import (
    CommitGranted,
    PublishTask,
    StartBuilderPhase,
    StartCallPhase,
    StartWriterPhase,
    WorkerCommand,
)
from blockx_worker.core.entries import Entry, merged
from blockx_worker.core.events import (
    TaskActivationFailed,
    TaskActivationPrepared,
    TaskMeasured,
    TaskPhaseFinished,
    WriterCommitEnded,
    WriterCommitStarted,
)
from blockx_worker.core.states import COMMITTING_STAGES, DropReason, Move, Stage
from blockx_worker.model.tasks import TaskFailure, TaskPhase

__all__ = [
    "activation_failed",
    "activation_prepared",
    "commit_ended",
    "commit_started",
    "measured",
    "phase_finished",
]

_FINISHED: dict[tuple[TaskPhase, bool], Move] = {
    (TaskPhase.BUILDER, True): Move.BUILDER_SUCCEEDED,
    (TaskPhase.BUILDER, False): Move.BUILDER_FAILED,
    (TaskPhase.CALLS, True): Move.CALLS_SUCCEEDED,
    (TaskPhase.CALLS, False): Move.CALLS_FAILED,
    (TaskPhase.PLUGIN, True): Move.PLUGIN_SUCCEEDED,
    (TaskPhase.PLUGIN, False): Move.PLUGIN_FAILED,
}

_START: dict[Stage, Callable[[str], WorkerCommand]] = {
    Stage.CALLS: lambda task_id: StartCallPhase(task_id=task_id),
    Stage.PLUGIN: lambda task_id: StartWriterPhase(task_id=task_id),
}


def activation_prepared(books: Books, event: TaskActivationPrepared, _now_ms: int) -> list[WorkerCommand]:
    """The task runs. A lease past its end that was not swept yet does not matter: activation came first."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("TaskActivationPrepared", event.task_id)]
    if entry.after(Move.ACTIVATION_PREPARED) is None:
        return [_drop_misplaced(books, "TaskActivationPrepared", entry)]
    if entry.slot.slot_id != event.slot_id:
        return [books.drop("TaskActivationPrepared", DropReason.OTHER_SLOT, event.task_id)]
    books.activate(entry, event.epoch)
    return [StartBuilderPhase(task_id=entry.task_id), PublishTask(task_id=entry.task_id)]


def activation_failed(books: Books, event: TaskActivationFailed, now_ms: int) -> list[WorkerCommand]:
    """The task ends with the code that the shell gives."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("TaskActivationFailed", event.task_id)]
    if entry.after(Move.ACTIVATION_FAILED) is None:
        return [_drop_misplaced(books, "TaskActivationFailed", entry)]
    failure = TaskFailure(code=event.code, message=event.message)
    return books.finish(entry, Move.ACTIVATION_FAILED, failure, now_ms)


def phase_finished(books: Books, event: TaskPhaseFinished, now_ms: int) -> list[WorkerCommand]:
    """Go on to the next phase, or end the task."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("TaskPhaseFinished", event.task_id)]
    failure = event.outcome.failure
    move = _FINISHED.get((event.phase, failure is None))
    after = None if move is None else entry.after(move)
    if move is None or after is None:
        return [_drop_misplaced(books, "TaskPhaseFinished", entry)]
    entry.outcome = merged(entry.outcome, event.outcome)
    if after in _START:
        books.advance(entry, move)
        return [_START[after](entry.task_id), PublishTask(task_id=entry.task_id)]
    commands = books.finish(entry, move, failure, now_ms)
    if entry.put_off is not None:
        commands.append(books.drop(entry.put_off.event, DropReason.OUTCOME_FIRST, entry.task_id))
    return commands


def measured(books: Books, event: TaskMeasured, _now_ms: int) -> list[WorkerCommand]:
    """Take note of what a task has cost so far; its failure, if any, is not one that ends the task."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("TaskMeasured", event.task_id)]
    if not entry.submitted:
        return [books.drop("TaskMeasured", DropReason.NOT_SUBMITTED, event.task_id)]
    entry.outcome = merged(entry.outcome, attrs.evolve(event.outcome, failure=None))
    return []


def commit_started(books: Books, event: WriterCommitStarted, _now_ms: int) -> list[WorkerCommand]:
    """Let the writer commit; from now on ends are put off."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("WriterCommitStarted", event.task_id)]
    move = Move.FINAL_COMMIT_STARTED if event.final else Move.COMMIT_STARTED
    if entry.after(move) is None:
        return [_drop_misplaced(books, "WriterCommitStarted", entry)]
    books.advance(entry, move)
    return [CommitGranted(task_id=entry.task_id)]


def commit_ended(books: Books, event: WriterCommitEnded, now_ms: int) -> list[WorkerCommand]:
    """A commit that others may follow has returned: an end that was put off happens now."""
    entry = books.entries.get(event.task_id)
    if entry is None:
        return [books.drop_absent("WriterCommitEnded", event.task_id)]
    if entry.after(Move.COMMIT_ENDED) is None:
        return [books.drop("WriterCommitEnded", DropReason.NO_COMMIT, event.task_id)]
    books.advance(entry, Move.COMMIT_ENDED)
    entry.written = event.written or entry.written
    if (end := entry.put_off) is None:
        return []
    waited = attrs.evolve(
        end.failure, message=f"{end.failure.message}; the commit then under way was waited for"
    )
    return books.finish(entry, end.move, entry.telling_what_stays(waited), now_ms)


def _drop_misplaced(books: Books, event: str, entry: Entry) -> WorkerCommand:
    if not entry.submitted:
        reason = DropReason.NOT_SUBMITTED
    elif event == "WriterCommitStarted" and entry.stage in COMMITTING_STAGES:
        reason = DropReason.COMMIT_UNDER_WAY
    else:
        reason = DropReason.OTHER_PHASE
    return books.drop(event, reason, entry.task_id)
