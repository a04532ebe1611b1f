"""Batches of streaming builders: made on credit, so that no more of them lie about than are settled.

A task grants ``max_outstanding_batches`` at its start and one more for each batch that settles. What is made without
credit, after the end or for a task that stops is dropped. A task that stops does not wait for its builder: it is told
to stop, and what it still makes is dropped.
"""

from __future__ import annotations

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.commands import DispatchCommand, GrantProduction
from blockx_worker.dispatch.ends import stop
from blockx_worker.dispatch.events import CallBatchProduced, CallProductionEnded
from blockx_worker.dispatch.records import TaskCalls
from blockx_worker.dispatch.source import StreamSource
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure

__all__ = ["batch_produced", "grant_batches", "production_ended"]


def grant_batches(task: TaskCalls, batches: int, out: list[DispatchCommand]) -> None:
    """Let a streaming builder make so many more batches; nothing for other sources and after the end."""
    if task.stream is not None and task.stream.total is None:
        task.credit += batches
        out.append(GrantProduction(task_id=task.task_id, batches=batches))


def batch_produced(books: DispatchBooks, event: CallBatchProduced, out: list[DispatchCommand]) -> None:
    """The next batch is here."""
    task = books.tasks.get(event.task_id)
    stream = _open_stream(books, task, "CallBatchProduced", out)
    if task is None or stream is None:
        return
    if not task.credit:
        books.drop(out, "CallBatchProduced", "no credit for a batch")
        return
    first = event.batch.first_index
    if first != stream.made:
        stop(books, task, _out_of_order(task, first, stream.made))
        return
    task.credit -= 1
    stream.add(event.batch)
    books.wake(task)


def production_ended(books: DispatchBooks, event: CallProductionEnded, out: list[DispatchCommand]) -> None:
    """There are no more batches; a failure of the builder stops the task."""
    task = books.tasks.get(event.task_id)
    stream = _open_stream(books, task, "CallProductionEnded", out)
    if task is None or stream is None:
        return
    stream.end()
    task.credit = 0
    if event.failure is not None:
        stop(books, task, event.failure)
    else:
        books.wake(task)


def _open_stream(
    books: DispatchBooks, task: TaskCalls | None, event: str, out: list[DispatchCommand]
) -> StreamSource | None:
    """The stream that may still grow, or None: then the event was dropped."""
    if task is None:
        reason = "task is not known"
    elif task.stream is None:
        reason = "calls of the task are not streamed"
    elif task.stopping:
        reason = "task is stopping"
    elif task.stream.total is not None:
        reason = "production has ended"
    else:
        return task.stream
    books.drop(out, event, reason)
    return None


def _out_of_order(task: TaskCalls, first: int, expected: int) -> TaskFailure:
    return TaskFailure(
        code=TaskFailureCode.BUILDER_FAILED,
        message=f"the builder made a batch of {task.function.function_id} that begins with call {first}, after"
        f" {expected} calls; batches must follow each other without gaps",
    )
