"""Calls that running calls make: accepted or refused, and their ends given to whoever asked.

A subcall runs on its parent's executor and needs nothing but the parent's binding; see `executors`. It has one attempt
and the budget that the parent granted. It shares the task's cache and the calls in flight, but is in no total: its
failure is the parent's affair, whose code sees it as an exception.
"""

from __future__ import annotations

import msgspec

from blockx_executor.wire.messages import CallError, ResumeCallPayload
from blockx_worker.dispatch.books import DispatchBooks, advance, post_resume
from blockx_worker.dispatch.cache import CallKey
from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.events import SubcallRequested
from blockx_worker.dispatch.failures import AttemptFailure, clip, preview
from blockx_worker.dispatch.flights import begin_subcall, share_failure, share_output
from blockx_worker.dispatch.records import Answer, Call, Subcall
from blockx_worker.dispatch.trees import close_wait, open_wait
from blockx_worker.dispatch.waits import asking_call
from blockx_worker.model.errors import CallErrorKind

__all__ = ["answer_subcall", "complete_subcall", "fail_subcall", "subcall_requested"]

RESUME_KIND = "subcall"
MAX_REFUSAL_CHARS = 1_000


def subcall_requested(books: DispatchBooks, event: SubcallRequested, out: list[DispatchCommand]) -> None:
    """A running call asks for another: refuse it, answer it from the cache, let it wait for an equal one, or run it."""
    frame, function = event.frame, event.function
    parent = asking_call(books, event.executor_id, frame, "SubcallRequested", out)
    if parent is None:
        return
    if function is None or event.error is not None:
        _give_error(books, parent, frame.request_id, event.error or _unknown(frame.payload.function_id))
        return
    args = bytes(frame.payload.args)  # a copy: a Raw holds its whole buffer
    key = (f"{function.digest}:{function.entry_selector}", args)
    sub = Subcall(parent, frame.request_id, function, frame.payload.granted_budget_ms, _depth(parent) + 1)
    if error := _refusal(books, sub, key):
        _give_error(books, parent, frame.request_id, error)
    elif not function.no_cache and (output := parent.task.cache.get(key)) is not None:
        parent.task.subcalls_made += 1
        _give(books, parent, frame.request_id, output, 0)
    else:
        _accept(books, sub, key)


def complete_subcall(books: DispatchBooks, call: Call, sub: Subcall, output: bytes, used_ms: int) -> None:
    """A running subcall returned a value, for ``used_ms`` of its budget."""
    _close(call, sub, "completed")
    share_output(books, call, output)
    _give(books, sub.parent, sub.request_id, output, used_ms)


def fail_subcall(
    books: DispatchBooks, call: Call, sub: Subcall, failure: AttemptFailure, used_ms: int
) -> None:
    """The only attempt of a subcall failed."""
    _close(call, sub, "failed")
    share_failure(books, call, failure)
    _give_error(books, sub.parent, sub.request_id, _error(failure), used_ms)


def answer_subcall(books: DispatchBooks, call: Call, sub: Subcall, answer: Answer) -> None:
    """A subcall shares what became of the equal call that it waited for; that costs no budget."""
    call.task.subcalls_made += 1
    _close(call, sub, "answered")
    if answer.failure is not None:
        _give_error(books, sub.parent, sub.request_id, _error(answer.failure))
    elif answer.output is not None:
        _give(books, sub.parent, sub.request_id, answer.output, 0)


def _accept(books: DispatchBooks, sub: Subcall, key: CallKey) -> None:
    parent = sub.parent
    books.last_subcall += 1
    call_id = f"{parent.call_id}/sub-{books.last_subcall}"
    call = Call(call_id, parent.task, parent.batch, parent.index, msgspec.Raw(key[1]), key, 0, sub=sub)
    parent.task.subcalls[call_id] = call
    parent.batch.remaining += 1
    open_wait(parent, sub.request_id, call)
    begin_subcall(books, call, parent)


def _close(call: Call, sub: Subcall, step: str) -> None:
    """Take a subcall that ends out of its task and its tree."""
    advance(call, step)
    del call.task.subcalls[call.call_id]
    call.batch.remaining -= 1  # never to zero: the root call is still open
    close_wait(sub.parent, sub.request_id)


def _give(books: DispatchBooks, parent: Call, request_id: int, output: bytes, used_ms: int) -> None:
    payload = ResumeCallPayload(resume_kind=RESUME_KIND, result=msgspec.Raw(output), budget_used_ms=used_ms)
    post_resume(books, parent, request_id, payload)


def _give_error(
    books: DispatchBooks, parent: Call, request_id: int, error: CallError, used_ms: int = 0
) -> None:
    payload = ResumeCallPayload(resume_kind=RESUME_KIND, error=error, budget_used_ms=used_ms)
    post_resume(books, parent, request_id, payload)


def _refusal(books: DispatchBooks, sub: Subcall, key: CallKey) -> CallError | None:
    """Why a subcall may not be, for the one who wrote the calling code."""
    above = _ancestors(sub.parent)
    limit = books.config.max_subcall_depth
    name = sub.function.function_id
    if any(call.key == key for call in above):
        chain = " → ".join([*(call.function.function_id for call in reversed(above)), name])
        message = (
            f"{name} would wait for itself: it is running with the same arguments above this call: {chain}"
        )
        return _refused(CallErrorKind.SUBCALL_CYCLE, message, key)
    if sub.depth >= limit:
        message = f"{name} would be a subcall at depth {sub.depth}, which must be below {limit}"
        return _refused(CallErrorKind.SUBCALL_DEPTH, message, key)
    return None


def _refused(kind: CallErrorKind, message: str, key: CallKey) -> CallError:
    message = f"{clip(message, MAX_REFUSAL_CHARS)}; arguments {preview(msgspec.Raw(key[1]))}"
    return CallError(kind=kind.value, message=message)


def _ancestors(call: Call) -> list[Call]:
    """A call and those above it, up to the root call."""
    above = [call]
    while call.sub is not None:
        call = call.sub.parent
        above.append(call)
    return above


def _depth(call: Call) -> int:
    return 0 if call.sub is None else call.sub.depth


def _unknown(function_id: str | None) -> CallError:
    message = f"there is no function {function_id or ''!r} in the code of this task"
    return CallError(kind=CallErrorKind.FUNCTION_NOT_FOUND.value, message=message)


def _error(failure: AttemptFailure) -> CallError:
    return CallError(kind=failure.kind.value, message=failure.message, retryable=failure.retryable)
