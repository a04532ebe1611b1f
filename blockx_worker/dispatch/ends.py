"""How root calls end: one function writes it into the books, for calls with and without a record.

`subcalls` has the same for subcalls, which are in no total.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from enum import IntEnum

from blockx_worker.dispatch.books import DispatchBooks, advance
from blockx_worker.dispatch.failures import AttemptFailure, failed_call, task_failure
from blockx_worker.dispatch.flights import share_failure, share_output
from blockx_worker.dispatch.records import Batch, Call, TaskCalls
from blockx_worker.dispatch.states import CallState
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, FailedCall, TaskFailure

__all__ = ["Outcome", "cancel_call", "complete_call", "end_call", "fail_call", "stop"]


class Outcome(IntEnum):
    """How a call ended."""

    SUCCEEDED = 0
    FAILED = 1
    CANCELLED = 2


_SUCCEEDED, _FAILED = Outcome.SUCCEEDED, Outcome.FAILED
_DONE = CallState.DONE


def end_call(  # noqa: PLR0917  # on the hot path, where keywords cost
    books: DispatchBooks, task: TaskCalls, batch: Batch, index: int, outcome: Outcome, output: bytes | None
) -> None:
    """Write a root call's end into the books: the only place, for calls with and without a record.

    A cancelled call stays open in its batch, which therefore never settles.
    """
    if outcome is _SUCCEEDED:
        task.succeeded += 1
        task.output_bytes += len(output)  # type: ignore[arg-type]  # a success has an output
        if task.output_limit and task.output_bytes > task.output_limit and not task.stopping:
            stop(books, task, _too_many_bytes(task))
        if not task.outputs_dropped:
            batch.outputs[index - batch.first_index] = output
    elif outcome is _FAILED:
        task.failed += 1
    else:
        task.cancelled += 1
        return
    batch.remaining -= 1
    if not batch.remaining:
        books.soil(task)


def complete_call(books: DispatchBooks, call: Call, output: bytes) -> None:
    """A running call returned a value. This is the hot path: one call of this per call."""
    task = call.task
    call.state = _DONE
    del task.calls[call.call_id]
    if not task.stopping:
        if task.window_full:
            books.wake(task)
        share_output(books, call, output)
    elif not task.calls:
        books.soil(task)
    end_call(books, task, call.batch, call.index, _SUCCEEDED, output)


def fail_call(books: DispatchBooks, call: Call, failure: AttemptFailure) -> None:
    """A call failed for good: list it, share the failure or hand the key over, stop the task if it must."""
    task = call.task
    _close(books, call, "failed")
    _list_failure(books, call, failure)
    end_call(books, task, call.batch, call.index, Outcome.FAILED, None)
    if task.stopping:
        return
    if task.failure_policy is CallFailurePolicy.FAST_FAIL:
        stop(books, task, task_failure(call, failure))
    else:
        share_failure(books, call, failure)


def cancel_call(books: DispatchBooks, call: Call) -> None:
    """A call of a stopping task ends as cancelled."""
    _close(books, call, "cancelled")
    end_call(books, call.task, call.batch, call.index, Outcome.CANCELLED, None)


def stop(books: DispatchBooks, task: TaskCalls, failure: TaskFailure) -> None:
    """Nothing of this task starts any more; the next turns cancel what there is."""
    task.stopping = True
    task.failure = failure
    task.outputs_dropped = failure.code is TaskFailureCode.OUTPUT_BYTES_EXCEEDED
    if task.outputs_dropped:
        for batch in task.batches:
            batch.outputs.clear()
    task.draining = deque(task.calls.values())
    task.ready.clear()
    task.answers.clear()
    task.flights.clear()
    books.discard_cache(task)
    books.soil(task)


def _close(books: DispatchBooks, call: Call, step: str) -> None:
    """Take the record of a call that ends out of its task."""
    task = call.task
    if call.state is CallState.READY:
        task.parked -= 1
    advance(call, step)
    del task.calls[call.call_id]
    if task.window_full:
        books.wake(task)
    if not task.calls:
        books.soil(task)


def _list_failure(books: DispatchBooks, call: Call, failure: AttemptFailure) -> None:
    """Keep the failures with the smallest indexes, whatever order they come in."""
    task = call.task
    first = task.first_failure
    if first is None or call.index < first[0]:
        task.first_failure = (call.index, task_failure(call, failure))
    listed = task.failed_calls
    if len(listed) >= books.config.failed_calls_kept and (not listed or call.index > listed[-1].index):
        return
    insort(listed, failed_call(call, failure), key=_index)
    del listed[books.config.failed_calls_kept :]


def _index(call: FailedCall) -> int:
    return call.index


def _too_many_bytes(task: TaskCalls) -> TaskFailure:
    return TaskFailure(
        code=TaskFailureCode.OUTPUT_BYTES_EXCEEDED,
        message=f"the outputs of the task have {task.output_bytes} bytes, more than its limit of {task.output_limit};"
        " return less per call, split the task, or write the results with a write handler",
    )
