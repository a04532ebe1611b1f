"""Binding one more attempt of a call to an executor."""

from __future__ import annotations

from blockx_executor.wire.messages import ExecuteCall, ExecuteCallPayload
from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import Call
from blockx_worker.dispatch.states import CallState

__all__ = ["launch", "move_on", "run_subcall"]

_RUNNING = CallState.RUNNING


def launch(books: DispatchBooks, call: Call, executor: Executor) -> None:
    """Bind one more attempt of a call; it leaves with the event that is being handled. The hot path for root calls."""
    task = call.task
    sub = call.sub
    if sub is None:
        function, budget_ms, parent_id = task.function, task.budget_ms, None
        task.attempts += 1
    else:
        function, budget_ms, parent_id = sub.function, sub.budget_ms, sub.parent.call_id
    books.last_call_no = call_no = books.last_call_no + 1
    seq = call.attempt_seq + 1
    call.state = _RUNNING
    call.executor = executor
    call.call_no = call_no
    call.attempt_seq = seq
    executor.aboard[call.call_id] = call
    executor.outgoing.append(
        ExecuteCall(
            call.call_id,
            ExecuteCallPayload(
                task_id=task.task_id,
                function_id=function.function_id,
                function_code_digest=function.digest,
                entry_selector=function.entry_selector,
                args=call.args,
                call_budget_ms=budget_ms,
                attempt_seq=seq,
                call_no=call_no,
                parent_call_id=parent_id,
            ),
        )
    )


def run_subcall(books: DispatchBooks, call: Call) -> None:
    """Send a subcall to its parent's executor, at once or when that one takes calls again."""
    sub = call.sub
    executor = None if sub is None else sub.parent.executor
    if executor is None:
        raise AssertionError(f"subcall {call.call_id} has no executor to run on")
    if executor.stuck:
        executor.held_back.append(call)
    else:
        _launch_subcall(books, call, executor)


def move_on(books: DispatchBooks, executor: Executor) -> None:
    """An executor that gave calls back has moved on: it takes calls again."""
    executor.stuck = False
    books.stirred = True
    calls, executor.held_back = executor.held_back, []
    for call in calls:
        if call.state is CallState.READY and not call.following:
            _launch_subcall(books, call, executor)


def _launch_subcall(books: DispatchBooks, call: Call, executor: Executor) -> None:
    if not call.attempt_seq:  # one that was given back counts once
        call.task.subcalls_made += 1
    books.posted = True
    launch(books, call, executor)
