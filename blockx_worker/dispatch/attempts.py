"""Ends of attempts: terminal frames, refused sends, calls given back, and what follows for the call.

A frame counts only if its call is bound to the executor it came from and task and attempt match. Whatever else comes
is counted and changes nothing, except that it frees the context of a zombie. When an attempt ends, in whatever way, all
that it waits for ends with it.

An executor gives back what it has not started, because one call keeps its main thread. It gets no calls until it has
moved on (a call ended or asked something, its black box shows another call than after the return, its thread is idle):
else the same calls would go to and fro.
"""

from __future__ import annotations

from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    CallFailedPayload,
    ReturnedCall,
)
from blockx_worker.dispatch.books import DispatchBooks, advance
from blockx_worker.dispatch.commands import ArmCallRetry, DispatchCommand
from blockx_worker.dispatch.ends import cancel_call, complete_call, fail_call
from blockx_worker.dispatch.events import CallRetryDue, CallsFinished, CallsGivenBack, DispatchRefused
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.failures import (
    REFUSED_BACKOFF_MS,
    AttemptFailure,
    backoff_ms,
    failure_of_frame,
    failure_of_kind,
)
from blockx_worker.dispatch.flights import pass_on
from blockx_worker.dispatch.launch import move_on, run_subcall
from blockx_worker.dispatch.records import NOT_CANCELLED, Call
from blockx_worker.dispatch.recycling import retire_if_empty
from blockx_worker.dispatch.subcalls import complete_subcall, fail_subcall
from blockx_worker.dispatch.trees import abandon
from blockx_worker.model.errors import CallErrorKind

__all__ = [
    "CALLER_ENDED",
    "attempt_failed",
    "calls_finished",
    "calls_given_back",
    "dispatch_refused",
    "park",
    "retry_due",
]

CALLER_ENDED = "the call that asked for it has ended"

_ANSWERS_TO_CANCEL = frozenset(
    {CallErrorKind.CANCELLED, CallErrorKind.EXECUTOR_LOST, CallErrorKind.EXECUTOR_WEDGED}
)


def calls_finished(
    books: DispatchBooks, event: CallsFinished, now_ms: int, out: list[DispatchCommand]
) -> None:
    """Book terminal frames in the order in which the executor sent them."""
    executor = books.executors.get(event.executor_id)
    if executor is None:
        for frame in event.frames[:1]:
            books.drop(out, "CallsFinished", "executor is not attached", frame.call_id, len(event.frames))
        return
    strays: dict[str, list[str]] = {}
    aboard = executor.aboard
    for frame in event.frames:
        payload = frame.payload
        call = aboard.get(frame.call_id)
        if call is None or call.attempt_seq != payload.attempt_seq or call.task.task_id != payload.task_id:
            if reason := _stray(executor, frame.call_id, payload, call):
                strays.setdefault(reason, []).append(frame.call_id)
            continue
        del aboard[frame.call_id]
        call.task.run_us += payload.run_us
        if call.waits:
            abandon(books, (call,), CALLER_ENDED, now_ms)
        if not isinstance(frame, CallCompleted):
            _frame_failed(books, call, frame.payload, now_ms, out)
        elif call.sub is None:
            complete_call(books, call, bytes(frame.payload.output))  # a copy: a Raw holds its whole buffer
        else:
            complete_subcall(books, call, call.sub, bytes(frame.payload.output), payload.budget_used_ms)
    _drop_strays(books, "CallsFinished", strays, out)
    if executor.stuck:
        move_on(books, executor)
    _after(books, executor, out)


def calls_given_back(books: DispatchBooks, event: CallsGivenBack, out: list[DispatchCommand]) -> None:
    """Take back what an executor has not started; it costs nothing, and comes first again."""
    executor = books.executors.get(event.executor_id)
    if executor is None:
        for returned in event.calls[:1]:
            books.drop(out, "CallsGivenBack", "executor is not attached", returned.call_id, len(event.calls))
        return
    if event.calls:
        executor.stuck, executor.stuck_at = True, None
    strays: dict[str, list[str]] = {}
    back: list[Call] = []
    for returned in event.calls:
        call = executor.aboard.get(returned.call_id)
        if (
            call is None
            or call.attempt_seq != returned.attempt_seq
            or call.task.task_id != returned.task_id
            or call.waits
        ):
            if reason := _stray(executor, returned.call_id, returned, call):
                strays.setdefault(reason, []).append(returned.call_id)
            continue
        del executor.aboard[returned.call_id]
        back.append(call)
    for call in reversed(back):  # each goes to the head of its queue
        _given_back(books, call)
    _drop_strays(books, "CallsGivenBack", strays, out)
    _after(books, executor, out)


def dispatch_refused(
    books: DispatchBooks, event: DispatchRefused, now_ms: int, out: list[DispatchCommand]
) -> None:
    """Take calls back that were never sent; they cost nothing and try again shortly after."""
    executor = books.executors.get(event.executor_id)
    if executor is None:
        for call_id in event.call_ids[:1]:
            books.drop(out, "DispatchRefused", "executor is not attached", call_id, len(event.call_ids))
        return
    failure = failure_of_kind(CallErrorKind.DISPATCH_REFUSED, f"{event.executor_id} could not take the call")
    for call_id in event.call_ids:
        call = executor.aboard.pop(call_id, None)
        if call is not None:
            if call.waits:
                abandon(books, (call,), CALLER_ENDED, now_ms)
            attempt_failed(books, call, failure, now_ms, out)
        elif not _release_zombies(executor, call_id):
            books.drop(out, "DispatchRefused", "call is not bound to this executor", call_id)
    _after(books, executor, out)


def retry_due(books: DispatchBooks, event: CallRetryDue, out: list[DispatchCommand]) -> None:
    """The back-off of a call is over: it needs an executor again, unless it follows an equal call by now."""
    task = books.tasks.get(event.task_id)
    call = None if task is None else task.calls.get(event.call_id) or task.subcalls.get(event.call_id)
    if task is None or call is None or task.stopping:
        books.drop(out, "CallRetryDue", "call is over", event.call_id)
    elif not call.in_backoff or call.attempt_seq != event.attempt_seq:
        books.drop(out, "CallRetryDue", "attempt is not in back-off", event.call_id)
    else:
        call.in_backoff = False
        if call.following:
            return
        if call.sub is not None:
            run_subcall(books, call)
        else:
            books.enqueue(call)


def attempt_failed(
    books: DispatchBooks,
    call: Call,
    failure: AttemptFailure,
    now_ms: int,
    out: list[DispatchCommand],
    *,
    used_ms: int = 0,
) -> None:
    """One attempt of a call that an executor held is over without an output."""
    task = call.task
    call.executor = None
    if call.cancelled_ms != NOT_CANCELLED and failure.kind in _ANSWERS_TO_CANCEL:
        cancel_call(books, call)
    elif not failure.charged:
        _refused(books, call, now_ms, out)
    elif call.sub is not None:
        fail_subcall(books, call, call.sub, failure, used_ms)
    else:
        call.attempts += 1
        if failure.retryable and not task.stopping and call.attempts < task.retry_policy.max_attempts:
            task.retries += 1
            delay = backoff_ms(task.retry_policy.base_backoff_ms, call.attempts, books.jitter())
            _back_off(books, call, "retried", now_ms + delay, out)
        else:
            fail_call(books, call, failure)


def park(call: Call, step: str) -> None:
    """An executor no longer holds a call that will run again."""
    advance(call, step)
    call.executor = None
    if call.sub is None:
        call.task.parked += 1


def _frame_failed(
    books: DispatchBooks, call: Call, payload: CallFailedPayload, now_ms: int, out: list[DispatchCommand]
) -> None:
    failure = failure_of_frame(payload)
    attempt_failed(books, call, failure, now_ms, out, used_ms=payload.budget_used_ms)


def _after(books: DispatchBooks, executor: Executor, out: list[DispatchCommand]) -> None:
    """Calls have left an executor."""
    if executor.retiring:
        retire_if_empty(executor, out)
    books.stirred = True


def _stray(
    executor: Executor,
    call_id: str,
    sent: CallCompletedPayload | CallFailedPayload | ReturnedCall,
    call: Call | None,
) -> str:
    """Why a frame is for nothing here; empty if it frees a zombie's context."""
    zombie = executor.zombies.get((call_id, sent.attempt_seq))
    if zombie is not None and zombie.task_id == sent.task_id:
        del executor.zombies[call_id, sent.attempt_seq]
        return ""
    if call is None:
        return "call is not bound to this executor"
    if call.attempt_seq != sent.attempt_seq:
        return "attempt is not the current one"
    return "task does not match" if call.task.task_id != sent.task_id else "call has been started"


def _drop_strays(
    books: DispatchBooks, event: str, strays: dict[str, list[str]], out: list[DispatchCommand]
) -> None:
    for reason, call_ids in strays.items():
        books.drop(out, event, reason, call_ids[0], len(call_ids))


def _release_zombies(executor: Executor, call_id: str) -> bool:
    keys = [key for key in executor.zombies if key[0] == call_id]
    for key in keys:
        del executor.zombies[key]
    return bool(keys)


def _given_back(books: DispatchBooks, call: Call) -> None:
    """A root call goes wherever there is room, a subcall back to the same executor once that has moved on."""
    if call.sub is not None:
        executor = call.executor
        park(call, "returned")
        if executor is not None and not pass_on(books, call):
            executor.held_back.insert(0, call)
        return
    call.task.attempts -= 1
    if call.task.stopping:
        call.executor = None
        cancel_call(books, call)
        return
    park(call, "returned")
    if not pass_on(books, call):
        books.enqueue(call, first=True)


def _refused(books: DispatchBooks, call: Call, now_ms: int, out: list[DispatchCommand]) -> None:
    """The attempt never ran, so it is not counted."""
    if call.sub is None:
        call.task.attempts -= 1
        if call.task.stopping:
            cancel_call(books, call)
            return
    _back_off(books, call, "refused", now_ms + REFUSED_BACKOFF_MS, out)


def _back_off(books: DispatchBooks, call: Call, step: str, due_ms: int, out: list[DispatchCommand]) -> None:
    """The call goes on leading its key while it waits, unless a subcall waits for it."""
    park(call, step)
    call.in_backoff = True
    pass_on(books, call)
    out.append(
        ArmCallRetry(
            task_id=call.task.task_id, call_id=call.call_id, attempt_seq=call.attempt_seq, due_ms=due_ms
        )
    )
