"""New work, in slices: serve the line of tasks, then look after those that may be at their end.

Calls that must run alone take their places first. Subcalls are not served here: they leave with the event that asks for
them.

A task is served in this order: followers that are owed an answer, calls that need an executor again (after a
back-off, from a lost executor), new calls from the source. New calls are looked up first: a cached result or an equal
call in flight needs no executor, and a cached one not even a record. A call that finds no executor free stays at the
head of its task's ready queue and the task enters nothing more, so it takes no memory while it cannot go on.

Every call that is touched counts towards ``max_calls``, whatever is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockx_worker.dispatch.books import DispatchBooks, advance
from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.ends import Outcome, end_call, fail_call
from blockx_worker.dispatch.epilogue import run_epilogue
from blockx_worker.dispatch.flights import follow
from blockx_worker.dispatch.launch import launch
from blockx_worker.dispatch.records import Batch, Call, TaskCalls
from blockx_worker.dispatch.seats import Seats
from blockx_worker.dispatch.states import CallState
from blockx_worker.dispatch.subcalls import answer_subcall
from blockx_worker.dispatch.suspects import can_place, place_suspects
from blockx_worker.dispatch.tenants import TenantLines
from blockx_worker.dispatch.turn_order import Lane, TurnOrder

__all__ = ["run_turn"]

_DONE = CallState.DONE
_SUCCEEDED = Outcome.SUCCEEDED

_ENTRIES_PER_CALL = 8
"""Entries of discarded caches that a turn may take apart per call that it may touch: about 0.2 ms for 128 calls."""


def run_turn(books: DispatchBooks, max_calls: int, now_ms: int, out: list[DispatchCommand]) -> None:
    """Go on with at most ``max_calls`` calls. What ends below a cancelled call comes on top."""
    budget = run_epilogue(books, max_calls, now_ms, out)
    executors = books.executors.ordered
    if books.suspects or any(executor.apart for executor in executors):
        budget -= place_suspects(books, budget, now_ms)
    lanes = books.order.lanes(executors, books.config, now_ms)
    while budget > 0 and books.order:
        used = _serve_lanes(books, lanes, budget)
        budget = run_epilogue(books, budget - used, now_ms, out)
        if not used:
            break
    _take_apart(books, max_calls * _ENTRIES_PER_CALL)
    can_go_on = _can_go_on(books, lanes) or (bool(books.suspects) and can_place(books, now_ms))
    if isinstance(books.order, TenantLines):
        books.order.claim(lanes, now_ms)
        waiting = books.order.waiting(executors, lanes, books.suspects)
        can_go_on |= books.order.change_hands(executors, waiting, books.config, now_ms, out)
    books.stirred = bool(books.dirty or books.discarded) or can_go_on
    books.posted = True


def _can_go_on(books: DispatchBooks, lanes: Sequence[Lane]) -> bool:
    room = any(lane.seats.room > 0 and len(lane.order) for lane in lanes)
    return room or any(not task.blocked for task in books.order.in_line())


def _take_apart(books: DispatchBooks, entries: int) -> None:
    while books.discarded and entries > 0:
        entries -= books.discarded[0].shrink(entries)
        if not books.discarded[0]:
            books.discarded.popleft()


def _serve_lanes(books: DispatchBooks, lanes: Sequence[Lane], budget: int) -> int:
    """Serve each line for its part of the budget; calls touched."""
    share = -(-budget // max(len(lanes), 1))
    used = 0
    for lane in lanes:
        used += _serve_line(books, lane.order, lane.seats, min(share, budget - used))
    return used


def _serve_line(books: DispatchBooks, order: TurnOrder, seats: Seats, budget: int) -> int:
    """Serve tasks in their order while executors have room, then whatever needs no executor; calls touched."""
    order.begin(budget, seats.room)
    left = budget
    while left > 0 and seats.room and (turn := order.next()) is not None:
        task, share = turn
        used = _serve(books, task, min(share, left), seats)
        left -= used
        order.served(task, used, stays=_has_more(books, task))
    if left > 0 and not seats.room:
        left -= _serve_free(books, order, left, seats)
    return budget - left


def _serve_free(books: DispatchBooks, order: TurnOrder, budget: int, seats: Seats) -> int:
    """All executors are full: serve what needs none. Nobody loses its place in line by that."""
    line = [task for task in order.in_line() if not task.blocked]
    share = -(-budget // len(line)) if line else 0
    left = budget
    for task in line:
        left -= _serve(books, task, min(share, left), seats)
        if not _has_more(books, task):
            order.step_out(task)
    return budget - left


def _serve(books: DispatchBooks, task: TaskCalls, quota: int, seats: Seats) -> int:
    """Go on with at most ``quota`` calls of one task; how many were touched."""
    used = _answer(books, task, quota) if task.answers else 0
    while used < quota and task.ready and (executor := seats.take()) is not None:
        task.parked -= 1
        launch(books, task.ready.popleft(), executor)
        used += 1
    while used < quota and not task.ready and not task.stopping:
        batch = _entering(books, task)
        count = _may_enter(books, task, batch, quota - used)
        if batch is None or not count:
            break
        used += _enter(books, task, batch, count, seats)
    return used


def _has_more(books: DispatchBooks, task: TaskCalls) -> bool:
    """The task stays in line. One whose window is full steps out until one of its calls is done."""
    if task.stopping:
        return False
    if task.answers or task.ready:
        return True
    batch = _entering(books, task)
    if batch is None:
        return False
    task.window_full = not _may_enter(books, task, batch, 1)
    return not task.window_full


def _answer(books: DispatchBooks, task: TaskCalls, quota: int) -> int:
    """Give followers what became of their leader."""
    used = 0
    while used < quota and task.answers:
        answer = task.answers[0]
        call = answer.followers.popleft()
        if not answer.followers:
            task.answers.popleft()
        used += 1
        if call.state is _DONE:  # its parent has ended
            continue
        if call.sub is not None:
            answer_subcall(books, call, call.sub, answer)
        elif answer.failure is not None:
            fail_call(books, call, answer.failure)
        elif answer.output is not None:
            advance(call, "answered")
            task.parked -= 1
            task.cache_hits += 1
            del task.calls[call.call_id]
            end_call(books, task, call.batch, call.index, _SUCCEEDED, answer.output)
    return used


def _entering(books: DispatchBooks, task: TaskCalls) -> Batch | None:
    """The batch with rows that have not entered; pulls the next one when there is credit for it."""
    batch = task.entering
    while batch is None or batch.next == batch.size:
        if task.exhausted or task.stopping or len(task.batches) >= books.config.max_outstanding_batches:
            return None
        pulled = task.source.next_batch()
        if pulled is None:
            if task.stream is None or task.stream.total is not None:
                task.exhausted = True
                books.soil(task)
            return None
        task.entering = batch = Batch(pulled)
        task.rows += batch.size
        task.batches.append(batch)
        if not batch.size:
            books.soil(task)  # settles at once
    return batch


def _may_enter(books: DispatchBooks, task: TaskCalls, batch: Batch | None, quota: int) -> int:
    if batch is None:
        return 0
    return min(quota, batch.size - batch.next, books.config.task_max_inflight_calls - len(task.calls))


def _enter(books: DispatchBooks, task: TaskCalls, batch: Batch, count: int, seats: Seats) -> int:
    """Let ``count`` rows of a batch into the window; how many did, fewer when all executors are full.

    The hot loop: one pass per call, nothing is built that is not kept or sent.
    """
    first_row = batch.next
    args, first_index = batch.args, batch.first_index
    calls, flights, cached = task.calls, task.flights, task.cache.get
    prefix, code, floor = task.call_prefix, task.key_code, task.attempt_floor
    shares = not task.function.no_cache
    for row in range(first_row, first_row + count):
        raw = args[row]
        key = (code, bytes(raw))
        batch.next = row + 1
        index = first_index + row
        if shares:
            output = cached(key)
            if output is not None:
                task.cache_hits += 1
                end_call(books, task, batch, index, _SUCCEEDED, output)
                if task.stopping:
                    break
                continue
        call_id = f"{prefix}{index}"
        call = calls[call_id] = Call(call_id, task, batch, index, raw, key, floor)
        if shares:
            leader = flights.get(key)
            if leader is not None:
                task.parked += 1
                follow(call, leader)
                continue
            flights[key] = call
        executor = seats.take()
        if executor is None:
            task.parked += 1
            task.ready.append(call)
            break
        launch(books, call, executor)
    return batch.next - first_row
