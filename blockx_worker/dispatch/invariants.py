"""What must hold after every event: kept counts equal recomputed ones, every record is where its state says.

Costs a walk over all records, so only tests and debug runs check. The trees of subcalls and the calls in flight are
looked at in `invariants_trees`.
"""

from __future__ import annotations

from collections import Counter

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.invariants_trees import check_flights, check_trees
from blockx_worker.dispatch.records import NOT_CANCELLED, Batch, Call, TaskCalls
from blockx_worker.dispatch.states import CallState
from blockx_worker.dispatch.tenants import tenant_of

__all__ = ["check_books"]

_BOUND = (CallState.RUNNING, CallState.WAITING)


def check_books(books: DispatchBooks) -> None:
    """Raise AssertionError when the books are wrong."""
    for executor in books.executors.ordered:
        _check_executor(books, executor)
    for task in books.tasks.values():
        _check_task(books, task)
    queued = {task.task_id for task in books.tasks.values() if task.queued}
    line = [task.task_id for task in books.order.in_line()]
    assert len(line) == len(books.order) == len(queued), (
        "the line holds other tasks than are marked as queued"
    )
    assert set(line) == queued, "the line holds other tasks than are marked as queued"
    assert all(books.tasks.get(key) is task for key, task in books.dirty.items()), "a dropped task is dirty"
    numbers = [
        attempt.call_no for executor in books.executors.ordered for attempt in executor.aboard.values()
    ]
    assert len(numbers) == len(set(numbers)), "a call number names two attempts"
    assert not books.posted, "frames were posted and not sent"


def _check_executor(books: DispatchBooks, executor: Executor) -> None:
    name, config = executor.executor_id, books.config
    assert not any((executor.outgoing, executor.resumes, executor.sidecars, executor.cancels)), (
        f"{name}: frames were not sent"
    )
    roots = [call for call in executor.aboard.values() if call.sub is None]
    assert len(roots) <= config.executor_max_inflight, f"{name}: over its limit"
    for call_id, call in executor.aboard.items():
        assert call.call_id == call_id, f"{name}: {call_id} under a wrong id"
        assert call.executor is executor, f"{name}: {call_id} is aboard two executors"
        assert call.state in _BOUND, f"{name}: {call_id} is {call.state}"
        assert _record(call) is call, f"{name}: {call_id} is not in its task"
        assert books.tasks.get(call.task.task_id) is call.task, f"{name}: {call_id} is of a dropped task"
    waiting = sum(call.state is CallState.WAITING for call in executor.aboard.values())
    assert executor.waiting == waiting, f"{name}: counts {executor.waiting} waiting calls of {waiting}"
    for key, zombie in executor.zombies.items():
        assert key == (zombie.call_id, zombie.attempt_seq), f"{name}: zombie under a wrong key"
        assert zombie.cancelled_ms != NOT_CANCELLED, f"{name}: zombie {zombie.call_id} was never cancelled"
    assert executor.stuck or not executor.held_back, f"{name}: holds subcalls back although it moves on"
    _check_company(books, executor, roots)


def _check_company(books: DispatchBooks, executor: Executor, roots: list[Call]) -> None:
    """Nobody is aboard together who must not be."""
    name, share = executor.executor_id, books.config.executor_share
    if executor.alone is not None:
        assert executor.apart, f"{name}: is not apart although a call must be alone there"
        assert all(call is executor.alone for call in roots), f"{name}: a call that must be alone has company"
    for call in roots:
        assert not call.suspect or call is executor.alone, f"{name}: suspect {call.call_id} runs among others"
        assert share == "all" or executor.tenant == tenant_of(share, call.task), (
            f"{name}: {call.call_id} is of another tenant than {executor.tenant}"
        )


def _record(call: Call) -> Call | None:
    calls = call.task.calls if call.sub is None else call.task.subcalls
    return calls.get(call.call_id)


def _check_task(books: DispatchBooks, task: TaskCalls) -> None:
    name = task.task_id
    calls = task.calls.values()
    assert len(task.calls) <= books.config.task_max_inflight_calls, f"{name}: window overrun"
    assert task.parked == sum(call.state is CallState.READY for call in calls), f"{name}: parked is wrong"
    assert task.cache.used_bytes == task.cache.counted_bytes(), f"{name}: cache bytes are wrong"
    assert task.cache.used_bytes <= books.config.call_cache_bytes, f"{name}: cache over its limit"
    for call in (*calls, *task.subcalls.values()):
        assert call.task is task, f"{name}: {call.call_id} is of another task"
        assert call.state is not CallState.DONE, f"{name}: {call.call_id} is over and has a record"
        assert (call.state in _BOUND) == (call.executor is not None), f"{name}: {call.call_id} half bound"
        assert call.executor is None or call.executor.aboard.get(call.call_id) is call, f"{name}: not aboard"
    check_trees(books, task)
    _check_places(books, task)
    _check_batches(books, task)
    _check_totals(task)
    _check_credit(books, task)
    if task.converged:
        assert not task.calls, f"{name}: converged with open calls"


def _check_places(books: DispatchBooks, task: TaskCalls) -> None:
    """Every READY call stands in exactly one place; while a task is drained places do not matter."""
    if task.stopping:
        assert not any((task.ready, task.answers, task.flights)), f"{task.task_id}: stopped with a queue"
        if task.stop_announced and not task.draining:
            assert not task.parked, f"{task.task_id}: drained with a waiting call"
        return
    places: Counter[str] = Counter(call.call_id for call in task.ready)
    places.update(call.call_id for call in books.suspects if call.task is task and _is_ready(call))
    records = (*task.calls.values(), *task.subcalls.values())
    places.update(call.call_id for call in records if call.in_backoff and not call.following)
    for answer in task.answers:
        places.update(call.call_id for call in answer.followers if _is_ready(call))
    for leader in records:
        places.update(call.call_id for call in leader.followers or () if _is_ready(call))
    for executor in books.executors.ordered:
        held_back = (call for call in executor.held_back if call.task is task and _is_ready(call))
        places.update(call.call_id for call in held_back if not call.following)
    ready = Counter(call.call_id for call in records if _is_ready(call))
    assert places == ready, f"{task.task_id}: READY calls {ready} stand at {places}"
    assert not any(call.following for call in task.ready), f"{task.task_id}: a queued call follows another"
    check_flights(task)


def _is_ready(call: Call) -> bool:
    return call.state is CallState.READY


def _check_batches(books: DispatchBooks, task: TaskCalls) -> None:
    name = task.task_id
    assert len(task.batches) <= books.config.max_outstanding_batches, f"{name}: too many batches"
    for batch in task.batches:
        inside = sum(call.batch is batch for call in (*task.calls.values(), *task.subcalls.values()))
        open_rows = inside + batch.size - batch.next
        assert batch.remaining >= open_rows, f"{name}: batch {batch.first_index} counts too few open calls"
        if not task.stopping:
            assert batch.remaining == open_rows, (
                f"{name}: batch {batch.first_index} counts its open calls wrong"
            )
            _check_outputs(task, batch)


def _check_outputs(task: TaskCalls, batch: Batch) -> None:
    below = sum(call.batch is batch for call in task.subcalls.values())
    done = sum(output is not None for output in batch.outputs)
    assert done <= batch.size - batch.remaining + below, f"{task.task_id}: an output of an open call"


def _check_totals(task: TaskCalls) -> None:
    name = task.task_id
    assert task.inflight >= 0, f"{name}: in flight below zero"
    assert task.attempts >= task.inflight, f"{name}: fewer attempts than calls in flight"
    ended = task.succeeded + task.failed + task.cancelled
    open_rows = len(task.calls) + (0 if task.stop_announced else task.not_entered)
    assert ended + open_rows == task.total, f"{name}: {ended} ended and {open_rows} open of {task.total}"
    assert len(task.failed_calls) <= task.failed, f"{name}: more failed calls listed than failed"
    indexes = [failed.index for failed in task.failed_calls]
    assert indexes == sorted(set(indexes)), f"{name}: failed calls out of order"


def _check_credit(books: DispatchBooks, task: TaskCalls) -> None:
    """What a streaming builder may make and what it made and has not settled is the limit, at any time."""
    stream = task.stream
    if stream is None or stream.total is not None:
        assert not task.credit, f"{task.task_id}: credit without a builder"
    elif not task.stopping:
        unsettled = len(task.batches) + stream.batches_left
        limit = books.config.max_outstanding_batches
        assert task.credit + unsettled == limit, (
            f"{task.task_id}: {task.credit} credits beside {unsettled} batches, limit {limit}"
        )
