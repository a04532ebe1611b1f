"""Equal calls in flight: one runs, the others wait for it and share what becomes of it.

The leader of a key is in ``task.flights``. Who waits for whom must have no circle and no dead end:

* a parent waits for its subcalls, a follower for its leader. A circle could only be closed by a subcall that begins to
  follow: so it does not follow a leader that waits, directly or not, on one of the subcall's own ancestors. A call that
  is about to run waits for nobody, so changing leaders is always safe.
* a queued root call may wait long for an executor, for ever if parents fill all of them. So no subcall waits for one:
  the subcall runs itself, on the executor that it has, and becomes the leader; the queued call follows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.failures import AttemptFailure
from blockx_worker.dispatch.launch import run_subcall
from blockx_worker.dispatch.records import Answer, Call, TaskCalls
from blockx_worker.dispatch.states import CallState

__all__ = ["begin_subcall", "follow", "hand_over", "pass_on", "share_failure", "share_output"]

_DONE, _READY = CallState.DONE, CallState.READY


def follow(call: Call, leader: Call) -> None:
    """Wait for an equal call in flight."""
    call.following = True
    if leader.followers is None:
        leader.followers = deque()
    leader.followers.append(call)


def share_output(books: DispatchBooks, call: Call, output: bytes) -> None:
    """The first output for a key answers all that wait for it, also when another call than the leader had it first."""
    task, key = call.task, call.key
    leader = task.flights.pop(key, None)
    if leader is not call:
        _overtaken(books, call, leader, output)
        return
    task.cache.put(key, output)
    if call.followers:
        _owe(books, task, Answer(call.followers, output, None))


def share_failure(books: DispatchBooks, call: Call, failure: AttemptFailure) -> None:
    """A call has failed: those that wait for it fail alike, or the next of them runs itself."""
    task = call.task
    if task.flights.get(call.key) is not call:
        return
    if failure.shared and call.followers:
        del task.flights[call.key]
        _owe(books, task, Answer(call.followers, None, failure))
    else:
        hand_over(books, call)


def hand_over(books: DispatchBooks, call: Call) -> None:
    """A leader is gone without an answer: one of those that wait for it runs itself, the others wait for that.

    A subcall goes first, since it must not wait for a queued root call; else the one that has waited longest.
    """
    task = call.task
    waiting, call.followers = _waiting_for(call), None
    heir = _first_subcall(waiting) or next(iter(waiting), None)
    if heir is None:
        del task.flights[call.key]
        return
    waiting.remove(heir)
    _lead(heir, waiting)
    if heir.sub is not None:
        run_subcall(books, heir)
    elif not heir.in_backoff:
        books.enqueue(heir)


def pass_on(books: DispatchBooks, call: Call) -> bool:
    """A call has lost its executor and would run again: it waits for an equal call instead, if that is better.

    If subcalls wait for a root call, the first of them and the call change places. If another call had its result
    first, that is its answer. False: the call must run, and be queued for it; or its task stops, and nothing is shared.
    """
    task, key = call.task, call.key
    if call.function.no_cache or task.stopping:
        return False
    leader = task.flights.get(key)
    if leader is call:
        return _displaced(books, call)
    output = task.cache.get(key)
    if output is not None:
        call.following = True
        _owe(books, task, Answer(deque((call,)), output, None))
    elif leader is None:
        task.flights[key] = call
    elif call.sub is None:
        follow(call, leader)
    return call.following


def begin_subcall(books: DispatchBooks, call: Call, parent: Call) -> None:
    """Let a new subcall wait for an equal call, or run."""
    task = call.task
    leader = None if call.function.no_cache else task.flights.get(call.key)
    if leader is None:
        if not call.function.no_cache:
            task.flights[call.key] = call
        run_subcall(books, call)
    elif leader.state is _READY and leader.sub is None:
        if not leader.in_backoff:
            books.withdraw(leader)
        _take_lead(books, call, leader)
    elif _waits_on_ancestor(leader, parent):
        run_subcall(books, call)
    else:
        follow(call, leader)


def _displaced(books: DispatchBooks, leader: Call) -> bool:
    """Subcalls do not wait for a root call that is queued."""
    heir = None if leader.sub is not None else _first_subcall(leader.followers or ())
    if heir is None:
        return False
    _take_lead(books, heir, leader)
    return True


def _overtaken(books: DispatchBooks, call: Call, leader: Call | None, output: bytes) -> None:
    """A call that did not lead has returned; a leader that only stands in a queue need not run any more."""
    task, key = call.task, call.key
    if call.function.no_cache:
        return
    if key not in task.cache:
        task.cache.put(key, output)
    if leader is None:
        return
    waiting = _waiting_for(leader)
    leader.followers = None
    if leader.state is _READY:
        if leader.sub is None and not leader.in_backoff:
            books.withdraw(leader)
        leader.following = True
        waiting.appendleft(leader)
    if waiting:
        _owe(books, task, Answer(waiting, output, None))


def _take_lead(books: DispatchBooks, heir: Call, leader: Call) -> None:
    """``heir`` runs and leads; the old leader and its other followers wait for it."""
    waiting = _waiting_for(leader)
    if heir.following:
        waiting.remove(heir)
    waiting.appendleft(leader)
    leader.following = True
    leader.followers = None
    _lead(heir, waiting)
    run_subcall(books, heir)


def _lead(heir: Call, waiting: deque[Call]) -> None:
    heir.following = False
    heir.followers = waiting or None
    heir.task.flights[heir.key] = heir


def _waiting_for(leader: Call) -> deque[Call]:
    return deque(call for call in leader.followers or () if call.state is not _DONE)


def _first_subcall(calls: Iterable[Call]) -> Call | None:
    return next((call for call in calls if call.sub is not None and call.state is not _DONE), None)


def _waits_on_ancestor(leader: Call, parent: Call) -> bool:
    """Whether a leader waits, directly or not, for ``parent`` or a call above it.

    Looked up from below: all calls that wait for the parent are its ancestors, the followers of those, the ancestors
    of these and so on. Mostly there are no followers, and the walk ends after a few steps.
    """
    if not leader.waits:
        return False
    above: dict[str, Call] = {}
    to_look: list[Call] = [parent]
    while to_look:
        call = to_look.pop()
        if call.call_id in above:
            continue
        above[call.call_id] = call
        if call.sub is not None:
            to_look.append(call.sub.parent)
        if call.task.flights.get(call.key) is call:
            to_look.extend(_waiting_for(call))
    return leader.call_id in above


def _owe(books: DispatchBooks, task: TaskCalls, answer: Answer) -> None:
    task.answers.append(answer)
    books.wake(task)
