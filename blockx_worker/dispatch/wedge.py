"""Which executors must be killed: wedged in a call, deaf to a cancel, or silent. Judged once a tick.

The black box is a hint that user code could have written. Hence: only attempts bound to that executor count, time is
our own between two equal reads, and one read proves nothing. So native code that holds the interpreter below its
limit is busy, not dead, although its heartbeats stop.

An executor is killed at most once; its loss says whether the kill was it, and `attempts` who pays.
"""

from __future__ import annotations

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.commands import DispatchCommand, KillExecutor
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor, Zombie
from blockx_worker.dispatch.records import NOT_CANCELLED, Call
from blockx_worker.model.errors import CallErrorKind

__all__ = ["sweep"]


def sweep(books: DispatchBooks, now_ms: int, out: list[DispatchCommand]) -> None:
    """Order to kill what must be killed."""
    for executor in books.executors.ordered:
        if executor.healthy and (order := _judge(books.config, executor, now_ms)) is not None:
            culprit, message = order
            executor.kill_message = message
            executor.culprit_no = 0 if culprit is None else culprit.call_no
            out.append(
                KillExecutor(
                    executor_id=executor.executor_id,
                    kind=CallErrorKind.EXECUTOR_LOST if culprit is None else CallErrorKind.EXECUTOR_WEDGED,
                    call_id="" if culprit is None else culprit.call_id,
                    message=message,
                )
            )


def _judge(
    config: DispatcherConfig, executor: Executor, now_ms: int
) -> tuple[Call | Zombie | None, str] | None:
    return _wedged(config, executor) or _deaf(config, executor, now_ms) or _silent(config, executor, now_ms)


def _wedged(config: DispatcherConfig, executor: Executor) -> tuple[Call | Zombie, str] | None:
    """The call that owns the main thread has kept it beyond its limit, from one equal read to another."""
    box = executor.box
    owner = executor.bound(box.call_no)
    limit = None if owner is None else _limit_ms(config, executor, owner)
    if owner is None or limit is None or box.unchanged_ms <= limit:
        return None
    doing = "loading code for" if box.loading else "in"
    return owner, f"stuck {doing} call {owner.call_id} for {box.unchanged_ms} ms, limit {limit} ms"


def _limit_ms(config: DispatcherConfig, executor: Executor, owner: Call | Zombie) -> int | None:
    """How long a call may keep the main thread without a switch; None: for ever."""
    if executor.box.loading:
        return config.function_load_timeout_ms + config.wedge_grace_ms
    return owner.budget_ms + config.wedge_grace_ms if owner.budget_ms else None


def _deaf(config: DispatcherConfig, executor: Executor, now_ms: int) -> tuple[Call | Zombie, str] | None:
    """A cancelled call goes on, and no other call is to blame for it."""
    for attempt in executor.held():
        waited_ms = now_ms - attempt.cancelled_ms
        if (
            attempt.cancelled_ms != NOT_CANCELLED
            and waited_ms >= config.cancel_kill_ms
            and _keeps_thread(executor, attempt)
        ):
            return attempt, f"call {attempt.call_id} was cancelled {waited_ms} ms ago and has not stopped"
    return None


def _keeps_thread(executor: Executor, attempt: Call | Zombie) -> bool:
    """No other call than this one can be what keeps the main thread from answering.

    Two equal reads that show another bound call prove the opposite (a cancelled call may wait behind a long native
    one that is within its limit); two that show this one, or an idle thread, prove it. A page that was never read or
    shows nonsense leaves the word to the last heartbeat.
    """
    box = executor.box
    owner = executor.bound(box.call_no)
    if box.reads and (owner is not None or not box.call_no):
        return box.reads >= 2 and box.last_ms >= attempt.cancelled_ms and owner in (attempt, None)
    return not executor.running_call_id or (executor.running_call_id, executor.running_attempt_seq) == (
        attempt.call_id,
        attempt.attempt_seq,
    )


def _silent(config: DispatcherConfig, executor: Executor, now_ms: int) -> tuple[None, str] | None:
    """No heartbeat, and no bound call at work that would explain it."""
    silent_ms = now_ms - executor.heard_ms
    if silent_ms <= config.heartbeat_timeout_ms:
        return None
    box = executor.box
    fresh = box.reads and now_ms - box.last_ms <= config.heartbeat_timeout_ms
    if fresh and executor.bound(box.call_no) is not None:
        return None  # busy; beyond its limit it is wedged
    return None, f"no heartbeat for {silent_ms} ms"
