"""Calls that call calls, all on one executor: depth, width, order, room, and who goes first.

`Desk` is a naive worker: it sends each subcall that is asked for, and answers the parent with its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockx_executor.wire.messages import CallCompleted, CallError, CallFailed, CallWaiting
from tests.executor.driver import ExecutorDriver, module, running_executor

TREE = module("""
    import time

    from blockx_executor import sdk

    def inc(i): return i + 1
    def leaf(i):
        if i % 100 == 13: raise ValueError(f"leaf {i}")
        return i
    def middle(i): return sdk.call(leaf, i) * 2
    def quiet(i): return i * 2
    def tree(n):
        results = sdk.gather(*((middle, i) for i in range(n)), return_exceptions=True)
        return [r if isinstance(r, int) else str(r) for r in results]
    def add(low, high):
        if high - low == 1: return low
        mid = (low + high) // 2
        return sum(sdk.gather((add, low, mid), (add, mid, high)))
    def wide(n): return sum(sdk.gather(*((quiet, i) for i in range(n))))
    def depth(n): return n if n == 0 else 1 + sdk.call(depth, n - 1)
    def fails(): return sdk.call(broken)
    def broken(): raise sdk.Retryable("try again")

    order = []
    def noted(name):
        order.append(name)
        return name
    def parent(n):
        order.append("parent begins")
        sdk.gather(*((noted, i) for i in range(n)))
        order.append("parent ends")
    def take_order():
        taken = list(order)
        order.clear()
        return taken
    def busy(ms):
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end: pass
    def busy_parent(n, ms): sdk.gather(*((busy, ms) for _ in range(n)))
    def ask(): return sdk.io("store", "get")
""")


class Desk:
    """Serves subcalls of one digest, ids by order of arrival, with ``max_depth`` as the worker has it."""

    def __init__(self, executor: ExecutorDriver, digest: str) -> None:
        self.executor = executor
        self.digest = digest
        self.parents: dict[str, CallWaiting] = {}
        self.outcomes: list[CallCompleted | CallFailed] = []

    def serve(self, waiting: CallWaiting) -> None:
        entry = (waiting.payload.function_id or "").removeprefix("functions.")
        call_id = self.executor.execute(
            self.digest,
            entry,
            call_id=f"{waiting.call_id}/sub-{len(self.parents)}",
            raw_args=bytes(waiting.payload.args),
            budget_ms=waiting.payload.granted_budget_ms,
            parent=waiting.call_id,
        )
        self.parents[call_id] = waiting

    def take(self, outcome: CallCompleted | CallFailed) -> bool:
        waiting = self.parents.get(outcome.call_id)
        if waiting is None:
            return False
        self.outcomes.append(outcome)
        used_ms = outcome.payload.budget_used_ms
        if isinstance(outcome, CallCompleted):
            self.executor.resume(waiting, bytes(outcome.payload.output), used_ms=used_ms)
        else:
            payload = outcome.payload
            error = CallError(
                kind=payload.error_kind, message=payload.error_message, retryable=payload.retryable
            )
            self.executor.resume(waiting, error=error, used_ms=used_ms)
        return True


@pytest.fixture
def desk(executor: ExecutorDriver) -> Iterator[Desk]:
    desk = Desk(executor, executor.define(TREE))
    executor.serve, executor.take = desk.serve, desk.take
    yield desk
    executor.serve, executor.take = None, lambda _outcome: False


def test_a_thousand_subcalls_on_three_levels(executor: ExecutorDriver, desk: Desk) -> None:
    """Results in order, failures of the third level as exceptions on the first."""
    values = executor.call(desk.digest, "tree", 1000)
    assert isinstance(values, list)
    assert len(desk.parents) == 2000
    assert values[:13] == [2 * i for i in range(13)]
    assert values[13] == "USER_ERROR: SubcallFailed: USER_ERROR: ValueError: leaf 13"
    assert sum(isinstance(value, str) for value in values) == 10


def test_a_tree_of_gathers(executor: ExecutorDriver, desk: Desk) -> None:
    """512 leaves, ten levels."""
    assert executor.call(desk.digest, "add", 0, 512) == sum(range(512))
    assert len(desk.parents) == 1022


def test_recursion_over_calls_is_limited_by_the_worker_only(executor: ExecutorDriver, desk: Desk) -> None:
    """Each call has a stack of its own: three hundred levels."""
    assert executor.call(desk.digest, "depth", 300) == 300


def test_a_full_house_of_parents_is_no_deadlock(executor: ExecutorDriver, desk: Desk) -> None:
    """128 parents, the limit, and each has ten subcalls; another root call is refused meanwhile."""
    executor.serve = None
    parents = [executor.execute_message(desk.digest, "wide", 10) for _ in range(128)]
    executor.send(*parents)
    waits = executor.wait(1280)
    refused = executor.failure(executor.execute(desk.digest, "inc", 1)).payload
    assert refused.error_kind == "DISPATCH_REFUSED"
    executor.serve = desk.serve
    for waiting in waits:
        desk.serve(waiting)
    assert [executor.value(parent.call_id) for parent in parents] == [90] * 128
    assert executor.call(desk.digest, "inc", 1) == 2


def test_a_subcall_takes_no_room_of_a_root_call() -> None:
    """One parent that waits, three subcalls that wait, and a limit of two: there is room for another root call."""
    with running_executor("--executor-max-inflight", "2", "--heartbeat-interval-ms", "50") as executor:
        digest = executor.define(TREE)
        parent = executor.execute(digest, "ask")
        [waiting] = executor.wait()
        subcalls = [executor.execute(digest, "ask", parent=parent) for _ in range(3)]
        waits = executor.wait(3)
        root = executor.execute(digest, "ask")
        waits += executor.wait()
        executor.wait_for(lambda: executor.heartbeats[-1].payload.inflight_count == 5)
        assert executor.heartbeats[-1].payload.available_contexts == 0
        assert executor.failure(executor.execute(digest, "inc", 1)).payload.error_kind == "DISPATCH_REFUSED"
        orphan = executor.execute(digest, "inc", 1, parent="t-1/gone")
        assert executor.failure(orphan).payload.error_kind == "DISPATCH_REFUSED"
        executor.send(*(executor.resume_message(each, b"1") for each in (waiting, *waits)))
        assert [executor.value(call) for call in (parent, root, *subcalls)] == [1] * 5
        assert executor.value(executor.execute(digest, "inc", 1, parent="t-1/gone")) == 2


def test_subcalls_go_ahead_of_calls_that_have_not_begun(executor: ExecutorDriver, desk: Desk) -> None:
    """The parent ends before a root call that came while it ran, though its subcalls came later still."""
    executor.serve = None
    parent = executor.execute(desk.digest, "parent", 5)
    waits = executor.wait(5)
    slow = executor.execute(desk.digest, "busy", 100)
    roots = [executor.execute_message(desk.digest, "noted", f"root {i}") for i in range(3)]
    executor.send(*roots)
    for waiting in waits:
        desk.serve(waiting)
    for call in (slow, parent, *(root.call_id for root in roots)):
        executor.value(call)
    order = executor.call(desk.digest, "take_order")
    assert isinstance(order, list)
    assert order[:6] == ["parent begins", 0, 1, 2, 3, 4]
    assert set(order[6:]) == {"parent ends", "root 0", "root 1", "root 2"}


def test_a_failure_of_a_subcall_goes_up(executor: ExecutorDriver, desk: Desk) -> None:
    """With its retryable."""
    failure = executor.fail(desk.digest, "fails").payload
    assert failure.retryable
    assert failure.error_message == "SubcallFailed: USER_ERROR: Retryable: try again"


def test_subcalls_use_the_budget_of_their_parent(executor: ExecutorDriver, desk: Desk) -> None:
    """Ten of 10 ms are within 1 s, thirty are not within 100 ms."""
    executor.call(desk.digest, "busy_parent", 10, 10, budget_ms=1000)
    failure = executor.fail(desk.digest, "busy_parent", 30, 10, budget_ms=100).payload
    assert failure.error_kind == "BUDGET_EXCEEDED"
    assert failure.budget_used_ms >= 100


def test_cancelling_a_tree_leaves_nothing(executor: ExecutorDriver, desk: Desk) -> None:
    """Parent and subcalls, waiting, ready or running: each is answered."""
    executor.serve = None
    parent = executor.execute(desk.digest, "wide", 5)
    waits = executor.wait(5)
    runner = executor.execute(desk.digest, "busy", 60_000, parent=parent)
    executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == runner)
    for waiting in waits:
        desk.serve(waiting)
    for call in (parent, *desk.parents, runner):
        executor.cancel(call)
    for call in (parent, runner):
        assert executor.failure(call).payload.error_kind == "CANCELLED"
    executor.wait_for(lambda: len(desk.outcomes) == 5)
    kinds = {outcome.payload.error_kind for outcome in desk.outcomes if isinstance(outcome, CallFailed)}
    assert kinds == {"CANCELLED"}
