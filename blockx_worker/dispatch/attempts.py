"""Ends of attempts: terminal frames, refused sends, lost executors, and what follows for the call.

A frame counts only if its call is bound to the executor it came from and task and attempt match. Whatever else comes
is counted and changes nothing, except that it frees the context of a zombie.

Who is charged when an executor is lost:

1. the call for which we ordered the kill, as `EXECUTOR_WEDGED`;
2. nobody after a SIGKILL that we did not send (the kernel was out of memory; the victim tells nothing);
3. else the call that owned the main thread, as `EXECUTOR_LOST`; nobody when none is known.

The others are innocent and go back at once, uncharged, up to ``max_uncharged_losses`` times. That also bounds a call
that kills without a trace (by what it left behind, say), and its neighbours do not run out of attempts before it.
"""

from __future__ import annotations

from blockx_executor.wire.messages import CallCompleted, CallFailed
from blockx_worker.dispatch.books import (
    DispatchBooks,
    advance,
    cancel_call,
    complete_call,
    fail_call,
)
from blockx_worker.dispatch.commands import ArmCallRetry, DispatchCommand
from blockx_worker.dispatch.events import CallRetryDue, CallsFinished, DispatchRefused, ExecutorLost
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.failures import (
    REFUSED_BACKOFF_MS,
    AttemptFailure,
    backoff_ms,
    failure_of_frame,
    failure_of_kind,
)
from blockx_worker.dispatch.records import NOT_CANCELLED, Call
from blockx_worker.model.errors import CallErrorKind

__all__ = ["calls_finished", "dispatch_refused", "executor_lost", "retry_due"]

_SIGKILL_EXIT = -9
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
            if reason := _stray_frame(executor, frame, call):
                strays.setdefault(reason, []).append(frame.call_id)
            continue
        del aboard[frame.call_id]
        call.task.run_us += payload.run_us
        if isinstance(frame, CallCompleted):
            complete_call(books, call, bytes(frame.payload.output))  # a copy: a Raw holds its whole buffer
        else:
            _attempt_failed(books, call, failure_of_frame(frame.payload), now_ms, out)
    for reason, call_ids in strays.items():
        books.drop(out, "CallsFinished", reason, call_ids[0], len(call_ids))
    books.stirred = True


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
            _attempt_failed(books, call, failure, now_ms, out)
        elif not _release_zombies(executor, call_id):
            books.drop(out, "DispatchRefused", "call is not bound to this executor", call_id)
    books.stirred = True


def retry_due(books: DispatchBooks, event: CallRetryDue, out: list[DispatchCommand]) -> None:
    """The back-off of a call is over: it needs an executor again."""
    task = books.tasks.get(event.task_id)
    call = None if task is None else task.calls.get(event.call_id)
    if task is None or call is None or task.stopping:
        books.drop(out, "CallRetryDue", "call is over", event.call_id)
    elif not call.in_backoff or call.attempt_seq != event.attempt_seq:
        books.drop(out, "CallRetryDue", "attempt is not in back-off", event.call_id)
    else:
        call.in_backoff = False
        task.ready.append(call)
        books.wake(task)


def executor_lost(books: DispatchBooks, event: ExecutorLost, now_ms: int, out: list[DispatchCommand]) -> None:
    """Forget an executor; its calls are charged or go back, by the rules in the module's text."""
    executor = books.executors.get(event.executor_id)
    if executor is None:
        books.drop(out, "ExecutorLost", "executor is not attached")
        return
    books.executors.remove(executor)
    lost = failure_of_kind(CallErrorKind.EXECUTOR_LOST, f"{event.executor_id} was lost: {event.message}")
    charged = _charged(executor, event, lost)
    for call in executor.aboard.values():
        if failure := charged.get(call.call_no):
            _attempt_failed(books, call, failure, now_ms, out)
        else:
            _innocent(books, call, lost, now_ms, out)
    executor.aboard.clear()
    executor.zombies.clear()
    books.stirred = True


def _stray_frame(executor: Executor, frame: CallCompleted | CallFailed, call: Call | None) -> str:
    """Why a frame is for nothing here; empty if it frees a zombie's context."""
    zombie = executor.zombies.get((frame.call_id, frame.payload.attempt_seq))
    if zombie is not None and zombie.task_id == frame.payload.task_id:
        del executor.zombies[frame.call_id, frame.payload.attempt_seq]
        return ""
    if call is None:
        return "call is not bound to this executor"
    if call.attempt_seq != frame.payload.attempt_seq:
        return "attempt is not the current one"
    return "task does not match"


def _release_zombies(executor: Executor, call_id: str) -> bool:
    keys = [key for key in executor.zombies if key[0] == call_id]
    for key in keys:
        del executor.zombies[key]
    return bool(keys)


def _charged(executor: Executor, event: ExecutorLost, lost: AttemptFailure) -> dict[int, AttemptFailure]:
    """The numbers of the attempts that are charged with the loss, and with what."""
    if event.killed_by_us and executor.culprit_no:
        message = f"{executor.executor_id} was killed: {executor.kill_message}"
        return {executor.culprit_no: failure_of_kind(CallErrorKind.EXECUTOR_WEDGED, message)}
    if event.exit_code == _SIGKILL_EXIT and not event.killed_by_us:
        return {}
    owner = executor.bound(event.running_call_no)
    return {} if owner is None else {owner.call_no: lost}


def _attempt_failed(
    books: DispatchBooks, call: Call, failure: AttemptFailure, now_ms: int, out: list[DispatchCommand]
) -> None:
    """One attempt of a call that an executor held is over without an output."""
    task = call.task
    call.executor = None
    if call.cancelled_ms != NOT_CANCELLED and failure.kind in _ANSWERS_TO_CANCEL:
        cancel_call(books, call)
    elif not failure.charged:
        _refused(books, call, now_ms, out)
    else:
        call.attempts += 1
        if failure.retryable and not task.stopping and call.attempts < task.retry_policy.max_attempts:
            task.retries += 1
            delay = backoff_ms(task.retry_policy.base_backoff_ms, call.attempts, books.jitter())
            _back_off(call, "retried", now_ms + delay, out)
        else:
            fail_call(books, call, failure)


def _refused(books: DispatchBooks, call: Call, now_ms: int, out: list[DispatchCommand]) -> None:
    """The attempt never ran, so it is not counted."""
    call.task.attempts -= 1
    if call.task.stopping:
        cancel_call(books, call)
    else:
        _back_off(call, "refused", now_ms + REFUSED_BACKOFF_MS, out)


def _innocent(
    books: DispatchBooks, call: Call, lost: AttemptFailure, now_ms: int, out: list[DispatchCommand]
) -> None:
    """A call that was aboard when another one, or nobody, killed its executor."""
    call.losses += 1
    if call.task.stopping:
        cancel_call(books, call)
    elif call.losses > books.config.max_uncharged_losses:
        _attempt_failed(books, call, lost, now_ms, out)
    else:
        call.task.retries += 1
        _park(call, "returned")
        call.task.ready.append(call)
        books.wake(call.task)


def _back_off(call: Call, step: str, due_ms: int, out: list[DispatchCommand]) -> None:
    """The call stays the leader of its key while it waits."""
    _park(call, step)
    call.in_backoff = True
    out.append(
        ArmCallRetry(
            task_id=call.task.task_id, call_id=call.call_id, attempt_seq=call.attempt_seq, due_ms=due_ms
        )
    )


def _park(call: Call, step: str) -> None:
    advance(call, step)
    call.executor = None
    call.task.parked += 1
