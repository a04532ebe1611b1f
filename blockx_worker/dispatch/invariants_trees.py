"""Invariants of what waits for what: trees of subcalls, and equal calls in flight."""

from __future__ import annotations

from collections.abc import Iterator

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.records import Call, TaskCalls
from blockx_worker.dispatch.states import CallState

__all__ = ["check_flights", "check_trees"]


def check_trees(books: DispatchBooks, task: TaskCalls) -> None:
    """Parents and subcalls point at each other, and a call is WAITING while requests are open."""
    name = task.task_id
    for call in (*task.calls.values(), *task.subcalls.values()):
        assert (call.state is CallState.WAITING) == bool(call.waits), (
            f"{name}: {call.call_id} waits for nothing"
        )
        for request_id, subcall in (call.waits or {}).items():
            if subcall is not None:
                assert subcall.sub is not None, f"{name}: {call.call_id} waits for a root call"
                assert subcall.sub.parent is call, f"{name}: {call.call_id} waits for another's subcall"
                assert subcall.sub.request_id == request_id, f"{name}: {call.call_id} waits elsewhere"
                assert task.subcalls.get(subcall.call_id) is subcall, (
                    f"{name}: {call.call_id} waits for a dead call"
                )
    for call in task.subcalls.values():
        _check_subcall(books, call)


def _check_subcall(books: DispatchBooks, call: Call) -> None:
    name, sub = call.call_id, call.sub
    assert sub is not None, f"{name} has no parent"
    parent = sub.parent
    assert name.rpartition("/")[0] == parent.call_id, f"{name} is under a wrong id"
    assert (parent.waits or {}).get(sub.request_id) is call, f"{name}: its parent does not wait for it"
    assert parent.executor is not None, f"{name}: its parent is nowhere"
    assert not parent.executor.gone, f"{name}: its parent's executor is gone"
    assert call.executor in (None, parent.executor), f"{name}: is not with its parent"
    assert call.batch is parent.batch, f"{name}: is of another batch than its parent"
    assert sub.depth == (1 if parent.sub is None else parent.sub.depth + 1), f"{name}: wrong depth"
    assert sub.depth < books.config.max_subcall_depth, f"{name}: too deep"
    assert not call.attempts, f"{name}: a subcall has one attempt"
    above = parent
    while True:
        assert above.key != call.key, f"{name}: {above.call_id} above it is the same call"
        if above.sub is None:
            return
        above = above.sub.parent


def check_flights(task: TaskCalls) -> None:
    """Each key has one leader, followers follow the leader of their key, and nobody waits for ever."""
    name = task.task_id
    records = {**task.calls, **task.subcalls}
    for key, leader in task.flights.items():
        assert leader.key == key, f"{name}: {leader.call_id} leads another key"
        assert records.get(leader.call_id) is leader, f"{name}: {leader.call_id} leads and is over"
        assert not leader.following, f"{name}: {leader.call_id} leads and follows"
        assert not leader.function.no_cache, f"{name}: {leader.call_id} shares although it must not"
        assert key not in task.cache, f"{name}: {leader.call_id} runs although its result is cached"
        for follower in leader.followers or ():
            if follower.state is CallState.DONE:
                continue  # its parent has ended
            assert follower.following, f"{name}: {follower.call_id} is a leader"
            assert follower.key == key, f"{name}: {follower.call_id} follows another key"
            assert leader.state is not CallState.READY or leader.sub is not None or follower.sub is None, (
                f"{name}: subcall {follower.call_id} waits for queued {leader.call_id}"
            )
    for call in records.values():
        leads = task.flights.get(call.key) is call
        assert leads or call.followers is None, f"{name}: {call.call_id} has followers and does not lead"
        beside = call.sub is not None or call.executor is not None or call.function.no_cache
        assert leads or call.following or beside, (
            f"{name}: {call.call_id} is queued beside the leader of its key"
        )
    _check_no_circle(task)


def _check_no_circle(task: TaskCalls) -> None:
    """Follow all waits: the ends are calls that run, or wait for a back end or an executor."""
    done: set[str] = set()
    for start in (*task.calls.values(), *task.subcalls.values()):
        path: list[str] = []
        _walk(task, start, path, done)


def _walk(task: TaskCalls, call: Call, path: list[str], done: set[str]) -> None:
    assert call.call_id not in path, f"{task.task_id}: calls wait in a circle: {path}"
    if call.call_id in done:
        return
    path.append(call.call_id)
    for other in _waited_for(task, call):
        _walk(task, other, path, done)
    path.pop()
    done.add(call.call_id)


def _waited_for(task: TaskCalls, call: Call) -> Iterator[Call]:
    yield from (subcall for subcall in (call.waits or {}).values() if subcall is not None)
    leader = task.flights.get(call.key)
    if call.following and leader is not None and call in (leader.followers or ()):
        yield leader
