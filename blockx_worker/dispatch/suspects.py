"""Calls that were started aboard two lost executors run alone, so that whatever they do hurts nobody else.

While such calls wait, executors are set *apart*, at most half of them (but one): they get nothing else, and once empty
they take one of these calls. It keeps the executor until all of it has ended, its own subcalls beside it.
"""

from __future__ import annotations

from collections import deque

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.launch import launch
from blockx_worker.dispatch.records import Call
from blockx_worker.dispatch.states import CallState
from blockx_worker.dispatch.tenants import tenant_of

__all__ = ["can_place", "place_suspects"]


def place_suspects(books: DispatchBooks, budget: int, now_ms: int) -> int:
    """Launch at most ``budget`` of them where nothing is aboard, and keep executors free for the rest; how many."""
    books.suspects = deque(
        call for call in books.suspects if call.state is CallState.READY and not call.task.stopping
    )
    _let_go(books)
    _set_apart(books, now_ms)
    launched = 0
    for executor in books.executors.ordered:
        call = _first_for(books, executor)
        if launched < budget and call is not None and executor.apart and _can_take(books, executor, now_ms):
            books.suspects.remove(call)
            _launch_alone(books, call, executor, now_ms)
            launched += 1
    return launched


def can_place(books: DispatchBooks, now_ms: int) -> bool:
    """One of them could be launched at once."""
    return any(
        executor.apart and _first_for(books, executor) is not None and _can_take(books, executor, now_ms)
        for executor in books.executors.ordered
    )


def _launch_alone(books: DispatchBooks, call: Call, executor: Executor, now_ms: int) -> None:
    executor.alone = call
    if books.config.executor_share != "all":
        executor.tenant = tenant_of(books.config.executor_share, call.task)
        executor.tenant_ms = now_ms
    call.task.parked -= 1
    launch(books, call, executor)


def _let_go(books: DispatchBooks) -> None:
    """Give executors back that are not needed any more."""
    for executor in books.executors.ordered:
        if executor.alone is not None and not executor.inflight:
            executor.alone = None
        if executor.apart and executor.alone is None and _first_for(books, executor) is None:
            executor.apart = False


def _set_apart(books: DispatchBooks, now_ms: int) -> None:
    """Keep as many executors as there are calls to place; the one with the fewest calls aboard is free first."""
    executors = books.executors.ordered
    free = sum(executor.apart and executor.alone is None for executor in executors)
    room = max(len(executors) // 2, 1) - sum(executor.apart for executor in executors)
    for executor in sorted(executors, key=lambda executor: executor.inflight):
        if free >= len(books.suspects) or room <= 0:
            return
        fits = _stays(executor) and (executor.inflight > 0 or _can_take(books, executor, now_ms))
        if fits and not executor.apart and _first_for(books, executor) is not None:
            executor.apart = True
            free += 1
            room -= 1


def _can_take(books: DispatchBooks, executor: Executor, now_ms: int) -> bool:
    depth = books.config.executor_max_runnable
    return not executor.inflight and executor.vacancies(books.config, now_ms, depth) > 0


def _stays(executor: Executor) -> bool:
    return executor.healthy and not executor.retiring and executor.yielding is None


def _first_for(books: DispatchBooks, executor: Executor) -> Call | None:
    """The one that has waited longest of those that this process may run."""
    share = books.config.executor_share
    return next(
        (call for call in books.suspects if executor.tenant in (None, tenant_of(share, call.task))), None
    )
