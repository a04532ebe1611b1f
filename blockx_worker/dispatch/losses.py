"""Lost executors: whose fault it was, and what becomes of the calls that were aboard.

Who is charged:

1. the call for which we ordered the kill, as `EXECUTOR_WEDGED`;
2. nobody after a SIGKILL that we did not send (the kernel was out of memory; the victim tells nothing);
3. else the call that owned the main thread, as `EXECUTOR_LOST`;
4. else, when one call was there alone because it was under suspicion, that one; nobody when none is known.

A subcall is lost together with its root call, which answers for it: the root call is charged, and only root calls run
again. The others are innocent and go back at once, uncharged, up to ``max_uncharged_losses`` times. That also bounds a
call that kills without a trace (by what it left behind, say), and its neighbours do not run out of attempts before it.

A call that was started aboard two losses, guilty or not, runs alone from then on: then there is no doubt.
"""

from __future__ import annotations

from blockx_worker.dispatch.attempts import CALLER_ENDED, attempt_failed, park
from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.ends import cancel_call
from blockx_worker.dispatch.events import ExecutorLost
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.failures import AttemptFailure, failure_of_kind
from blockx_worker.dispatch.flights import pass_on
from blockx_worker.dispatch.records import Call
from blockx_worker.dispatch.trees import abandon
from blockx_worker.model.errors import CallErrorKind

__all__ = ["executor_lost"]

_SIGKILL_EXIT = -9


def executor_lost(books: DispatchBooks, event: ExecutorLost, now_ms: int, out: list[DispatchCommand]) -> None:
    """Forget an executor; its calls are charged or go back, by the rules in the module's text."""
    executor = books.executors.get(event.executor_id)
    if executor is None:
        books.drop(out, "ExecutorLost", "executor is not attached")
        return
    books.executors.remove(executor)
    lost = failure_of_kind(CallErrorKind.EXECUTOR_LOST, f"{event.executor_id} was lost: {event.message}")
    culprit = _culprit(executor, event)
    guilty = None if culprit is None else culprit.root
    charge = _wedged(executor) if event.killed_by_us and executor.culprit_no else lost
    _note_started(executor, event.running_call_no)
    executor.gone = True
    roots = [call for call in executor.aboard.values() if call.sub is None]
    abandon(books, roots, CALLER_ENDED, now_ms)
    for call in roots:
        if call is guilty:
            attempt_failed(books, call, charge, now_ms, out)
        else:
            _innocent(books, call, lost, now_ms, out)
    executor.aboard.clear()
    executor.zombies.clear()
    executor.held_back.clear()
    books.stirred = True


def _culprit(executor: Executor, event: ExecutorLost) -> Call | None:
    """The call aboard whose doing it was, if that is known."""
    if event.killed_by_us and executor.culprit_no:
        owner = executor.bound(executor.culprit_no)
    elif event.exit_code == _SIGKILL_EXIT and not event.killed_by_us:
        owner = None
    else:
        owner = executor.bound(event.running_call_no) or executor.alone
    return owner if isinstance(owner, Call) and executor.aboard.get(owner.call_id) is owner else None


def _wedged(executor: Executor) -> AttemptFailure:
    message = f"{executor.executor_id} was killed: {executor.kill_message}"
    return failure_of_kind(CallErrorKind.EXECUTOR_WEDGED, message)


def _note_started(executor: Executor, running_no: int) -> None:
    """Count the loss for those that are known to have run."""
    running = executor.bound(running_no)
    for call in executor.aboard.values():
        if call.started_seq == call.attempt_seq or call is running:
            call.started_losses += 1


def _innocent(
    books: DispatchBooks, call: Call, lost: AttemptFailure, now_ms: int, out: list[DispatchCommand]
) -> None:
    """A call that was aboard when another one, or nobody, killed its executor."""
    call.losses += 1
    if call.task.stopping:
        call.executor = None
        cancel_call(books, call)
    elif call.losses > books.config.max_uncharged_losses:
        attempt_failed(books, call, lost, now_ms, out)
    else:
        call.task.retries += 1
        park(call, "returned")
        if not pass_on(books, call):
            books.enqueue(call)
