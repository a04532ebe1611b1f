"""Requests to back ends: a call waits until the answer is here, or it is over.

What asks must be bound to the executor that the question came from, in that attempt; everything else is an old
attempt's question or answer, is counted, and changes nothing. A task that stops asks nothing more.
"""

from __future__ import annotations

from blockx_executor.wire.messages import CallWaiting
from blockx_worker.dispatch.books import DispatchBooks, post_resume
from blockx_worker.dispatch.commands import DispatchCommand, ServeCallIo
from blockx_worker.dispatch.events import CallWaitOver, CallWaitRequested
from blockx_worker.dispatch.launch import move_on
from blockx_worker.dispatch.records import Call
from blockx_worker.dispatch.trees import close_wait, open_wait

__all__ = ["asking_call", "wait_over", "wait_requested"]


def wait_requested(books: DispatchBooks, event: CallWaitRequested, out: list[DispatchCommand]) -> None:
    """A running call asks a back end."""
    call = asking_call(books, event.executor_id, event.frame, "CallWaitRequested", out)
    if call is None:
        return
    open_wait(call, event.frame.request_id, None)
    call.task.io_requests += 1
    out.append(ServeCallIo(executor_id=event.executor_id, frame=event.frame))


def wait_over(books: DispatchBooks, event: CallWaitOver, out: list[DispatchCommand]) -> None:
    """A back end has answered."""
    call = _bound_call(books, event.executor_id, event.call_id, event.task_id, event.attempt_seq)
    if isinstance(call, str):
        books.drop(out, "CallWaitOver", call, event.call_id)
    elif not call.waits or call.waits.get(event.request_id, call) is not None:
        books.drop(out, "CallWaitOver", "call does not wait for this answer", event.call_id)
    else:
        close_wait(call, event.request_id)
        post_resume(books, call, event.request_id, event.payload, event.sidecar)


def asking_call(
    books: DispatchBooks, executor_id: str, frame: CallWaiting, event: str, out: list[DispatchCommand]
) -> Call | None:
    """The call that asks something, if it may; None when the question was dropped."""
    wait = frame.payload
    call = _bound_call(books, executor_id, frame.call_id, wait.task_id, wait.attempt_seq)
    if isinstance(call, str):
        books.drop(out, event, call, frame.call_id)
        return None
    executor = call.executor
    if executor is not None and executor.stuck:
        move_on(books, executor)
    call.started_seq = call.attempt_seq
    if call.task.stopping:
        books.drop(out, event, "task is stopping", frame.call_id)
    elif call.waits and frame.request_id in call.waits:
        books.drop(out, event, "request is already open", frame.call_id)
    else:
        return call
    return None


def _bound_call(
    books: DispatchBooks, executor_id: str, call_id: str, task_id: str, attempt_seq: int
) -> Call | str:
    """The call that this executor holds in this attempt, or why there is none."""
    executor = books.executors.get(executor_id)
    if executor is None:
        return "executor is not attached"
    call = executor.aboard.get(call_id)
    if call is None:
        return "call is not bound to this executor"
    if call.attempt_seq != attempt_seq:
        return "attempt is not the current one"
    return call if call.task.task_id == task_id else "task does not match"
