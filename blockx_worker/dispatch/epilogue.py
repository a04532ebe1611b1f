"""The end of a turn: stop production, drain, settle batches, converge. Convergence happens nowhere else.

Draining cancels what an executor holds and ends what none holds; what never entered the window is cancelled by
arithmetic. A stopped task converges once the executors have reported the ends of all that was cancelled.
"""

from __future__ import annotations

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.commands import (
    BatchSettled,
    CallsStatistic,
    ConvergeTaskCalls,
    DispatchCommand,
    StopCallProduction,
)
from blockx_worker.dispatch.ends import cancel_call
from blockx_worker.dispatch.records import TaskCalls
from blockx_worker.dispatch.states import CallState
from blockx_worker.dispatch.streams import grant_batches
from blockx_worker.dispatch.trees import bury, cancel_bound
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure

__all__ = ["drop_task", "run_epilogue", "statistic_of"]

_STOPPED = "the task has failed"


def run_epilogue(books: DispatchBooks, budget: int, now_ms: int, out: list[DispatchCommand]) -> int:
    """Look after all dirty tasks while the budget lasts; what is left of it."""
    for task in list(books.dirty.values()):
        if task.stopping:
            budget = _drain(books, task, budget, now_ms, out)
            if task.draining:
                continue
        del books.dirty[task.task_id]
        _settle(books, task, out)
        _converge(books, task, out)
    return budget


def drop_task(books: DispatchBooks, task: TaskCalls, reason: str, now_ms: int) -> None:
    """Forget a task. What executors hold of it is cancelled and keeps its context as a zombie."""
    for call in [*task.calls.values(), *task.subcalls.values()]:
        if call.waits and call.executor is not None:
            call.executor.waiting -= 1
        call.waits = None
        bury(books, call, reason, now_ms)
    books.order.forget(task)
    books.dirty.pop(task.task_id, None)
    books.done_before += task.succeeded + task.failed
    del books.tasks[task.task_id]
    books.discard_cache(task)
    for records in (task.calls, task.flights, task.ready, task.answers, task.draining):
        records.clear()  # the records point at the task and it at them


def statistic_of(task: TaskCalls) -> CallsStatistic:
    """The books of a task as they stand."""
    return CallsStatistic(
        total=task.total,
        succeeded=task.succeeded,
        failed=task.failed,
        cancelled=task.cancelled,
        attempts=task.attempts,
        retries=task.retries,
        cache_hits=task.cache_hits,
        output_bytes=task.output_bytes,
        run_us=task.run_us,
        subcalls=task.subcalls_made,
        io_requests=task.io_requests,
    )


def _drain(
    books: DispatchBooks, task: TaskCalls, budget: int, now_ms: int, out: list[DispatchCommand]
) -> int:
    if not task.stop_announced:
        task.stop_announced = True
        task.cancelled += task.not_entered
        out.append(StopCallProduction(task_id=task.task_id))
    while task.draining and budget > 0:
        call = task.draining.popleft()
        if call.state is CallState.DONE:
            continue
        budget -= 1
        if call.executor is None:
            cancel_call(books, call)
        else:
            budget -= cancel_bound(books, call, _STOPPED, now_ms)
    return budget


def _settle(books: DispatchBooks, task: TaskCalls, out: list[DispatchCommand]) -> None:
    """Settle the batches at the head that are done; each gives the source a credit."""
    settled = 0
    while task.batches and not task.batches[0].remaining:
        settled += 1
        batch = task.batches.popleft()
        if batch is task.entering:
            task.entering = None
        if not task.outputs_dropped:
            out.append(
                BatchSettled(
                    task_id=task.task_id,
                    first_index=batch.first_index,
                    outputs=batch.outputs,
                    blocks_done=batch.blocks_done,
                )
            )
    if settled and not task.exhausted and not task.stopping:
        books.wake(task)
        grant_batches(task, settled, out)


def _converge(books: DispatchBooks, task: TaskCalls, out: list[DispatchCommand]) -> None:
    if task.converged or task.calls:
        return
    if not task.stopping and (task.batches or not task.exhausted):
        return
    task.converged = True
    books.discard_cache(task)
    task.batches.clear()
    task.entering = None
    listed = tuple(task.failed_calls)
    out.append(
        ConvergeTaskCalls(
            task_id=task.task_id,
            failure=task.failure if task.stopping else _failures(task),
            failed_calls=listed,
            failed_calls_omitted=task.failed - len(listed),
            statistic=statistic_of(task),
        )
    )


def _failures(task: TaskCalls) -> TaskFailure | None:
    """What COLLECT_ALL makes of failed calls; the call fields are those of the failed call with the smallest index."""
    if task.first_failure is None:
        return None
    first = task.first_failure[1]
    return TaskFailure(
        code=TaskFailureCode.CALLS_FAILED,
        message=f"{task.failed} of {task.total} calls failed; the first: {first.message}",
        call_id=first.call_id,
        function_id=first.function_id,
        args_preview=first.args_preview,
        error_kind=first.error_kind,
        stack=first.stack,
        locals=first.locals,
    )
