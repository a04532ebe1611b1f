"""What must hold after every event: kept counts equal recomputed ones, every record is where its state says.

Costs a walk over all records, so only tests and debug runs check.
"""

from __future__ import annotations

from collections import Counter

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import NOT_CANCELLED, Batch, Call, TaskCalls
from blockx_worker.dispatch.states import CallState

__all__ = ["check_books"]


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


def _check_executor(books: DispatchBooks, executor: Executor) -> None:
    name = executor.executor_id
    assert not executor.outgoing, f"{name}: calls were not sent"
    assert executor.inflight <= books.config.executor_max_inflight, f"{name}: over its limit"
    for call_id, call in executor.aboard.items():
        assert call.call_id == call_id, f"{name}: {call_id} under a wrong id"
        assert call.executor is executor, f"{name}: {call_id} is aboard two executors"
        assert call.state is CallState.RUNNING, f"{name}: {call_id} is {call.state}"
        assert call.task.calls.get(call_id) is call, f"{name}: {call_id} is not in its task"
        assert books.tasks.get(call.task.task_id) is call.task, f"{name}: {call_id} is of a dropped task"
    for key, zombie in executor.zombies.items():
        assert key == (zombie.call_id, zombie.attempt_seq), f"{name}: zombie under a wrong key"
        assert zombie.cancelled_ms != NOT_CANCELLED, f"{name}: zombie {zombie.call_id} was never cancelled"


def _check_task(books: DispatchBooks, task: TaskCalls) -> None:
    name = task.task_id
    calls = task.calls.values()
    assert len(task.calls) <= books.config.task_max_inflight_calls, f"{name}: window overrun"
    assert task.parked == sum(call.state is CallState.READY for call in calls), f"{name}: parked is wrong"
    assert task.cache.used_bytes == task.cache.counted_bytes(), f"{name}: cache bytes are wrong"
    assert task.cache.used_bytes <= books.config.call_cache_bytes, f"{name}: cache over its limit"
    for call in calls:
        assert call.task is task, f"{name}: {call.call_id} is of another task"
        assert (call.state is CallState.RUNNING) == (call.executor is not None), (
            f"{name}: {call.call_id} half bound"
        )
        assert call.executor is None or call.executor.aboard.get(call.call_id) is call, f"{name}: not aboard"
    _check_places(task)
    _check_batches(books, task)
    _check_totals(task)
    if task.converged:
        assert not task.calls, f"{name}: converged with open calls"


def _check_places(task: TaskCalls) -> None:
    """Every READY call stands in exactly one place; while a task is drained places do not matter."""
    if task.stopping:
        assert not any((task.ready, task.answers, task.flights)), f"{task.task_id}: stopped with a queue"
        if task.stop_announced and not task.draining:
            assert not task.parked, f"{task.task_id}: drained with a waiting call"
        return
    places: Counter[str] = Counter(call.call_id for call in task.ready)
    places.update(call.call_id for call in task.calls.values() if call.in_backoff)
    for answer in task.answers:
        places.update(call.call_id for call in answer.followers)
    for leader in task.calls.values():
        places.update(call.call_id for call in leader.followers or ())
    ready = Counter(call.call_id for call in task.calls.values() if call.state is CallState.READY)
    assert places == ready, f"{task.task_id}: READY calls {ready} stand at {places}"
    _check_flights(task)


def _check_flights(task: TaskCalls) -> None:
    name = task.task_id
    leaders: list[Call] = [call for call in task.calls.values() if not call.following]
    if task.function.no_cache:
        assert not task.flights, f"{name}: calls share although they must not"
        return
    assert len(leaders) == len(task.flights), f"{name}: leaders and flights differ in number"
    for leader in leaders:
        assert task.flights.get(leader.key) is leader, f"{name}: {leader.call_id} does not lead its key"
        assert leader.key not in task.cache, f"{name}: {leader.call_id} runs although its result is cached"
        for follower in leader.followers or ():
            assert follower.following, f"{name}: {follower.call_id} is a leader"
            assert follower.key == leader.key, f"{name}: {follower.call_id} follows another key"
    assert all(call.followers is None for call in task.calls.values() if call.following), (
        f"{name}: nested followers"
    )


def _check_batches(books: DispatchBooks, task: TaskCalls) -> None:
    name = task.task_id
    assert len(task.batches) <= books.config.max_outstanding_batches, f"{name}: too many batches"
    for batch in task.batches:
        inside = sum(call.batch is batch for call in task.calls.values())
        open_rows = inside + batch.size - batch.next
        assert batch.remaining >= open_rows, f"{name}: batch {batch.first_index} counts too few open calls"
        if not task.stopping:
            assert batch.remaining == open_rows, (
                f"{name}: batch {batch.first_index} counts its open calls wrong"
            )
            _check_outputs(task, batch)


def _check_outputs(task: TaskCalls, batch: Batch) -> None:
    done = sum(output is not None for output in batch.outputs)
    assert done <= batch.size - batch.remaining, f"{task.task_id}: an output of an open call"


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
