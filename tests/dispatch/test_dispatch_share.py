"""Executors that are not shared: tenants never meet in one process, and none waits for ever."""

from __future__ import annotations

from blockx_worker.dispatch.commands import DispatchCommand, RecycleExecutor
from blockx_worker.dispatch.tenants import MIN_TENURE_MS
from tests.dispatch.driver import COLLECT_ALL, Talk, dispatched, of


def _recycled(commands: list[DispatchCommand]) -> list[str]:
    return [order.executor_id for order in of(commands, RecycleExecutor)]


def _renew(talk: Talk, executor_id: str) -> None:
    """The shell has carried out the order: the old process is gone, a new one is there."""
    assert talk.lose(executor_id, exit_code=0) == []
    talk.attach(executor_id)


def test_instances_do_not_meet() -> None:
    """New executors are dealt out evenly; an instance that has one keeps it."""
    talk = Talk(executor_share="instance")
    talk.attach("exec-0", "exec-1", "exec-2", "exec-3")
    talk.start("a", [[i] for i in range(4)], instance_id="x")
    talk.start("b", [[i] for i in range(4)], instance_id="y")
    assert dispatched(talk.turns()) == {
        "exec-0": ["a/0", "a/2"],
        "exec-1": ["b/0", "b/2"],
        "exec-2": ["a/1", "a/3"],
        "exec-3": ["b/1", "b/3"],
    }
    talk.start("c", [[0]], instance_id="y")
    assert dispatched(talk.turns()) == {"exec-1": ["c/0"]}


def test_tasks_do_not_meet() -> None:
    """With one executor a task each, of one instance too."""
    talk = Talk(executor_share="task")
    talk.attach("exec-0", "exec-1")
    talk.start("a", [[0], [1]])
    talk.start("b", [[0], [1]])
    assert dispatched(talk.turns()) == {"exec-0": ["a/0", "a/1"], "exec-1": ["b/0", "b/1"]}


def test_an_idle_executor_is_renewed_for_another_tenant() -> None:
    """Nobody inherits a process; it is ended as soon as somebody else waits, and not before."""
    talk = Talk(executor_share="task")
    talk.attach("exec-0")
    talk.start("a", [[0]])
    talk.turns()
    talk.complete("a/0")
    assert _recycled(talk.turns()) == []
    talk.drop("a")
    assert _recycled(talk.turns()) == []
    talk.start("b", [[0]])
    out = talk.turns()
    assert _recycled(out) == ["exec-0"]
    (order,) = of(out, RecycleExecutor)
    assert "task 'a'" in order.message
    assert "task 'b'" in order.message
    assert talk.turns() == []
    _renew(talk, "exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["b/0"]}


def test_a_tenant_without_an_executor_gets_one_of_a_busy_one() -> None:
    """After a while the busy executor gets nothing new and is renewed when it is empty."""
    talk = Talk(executor_share="instance", executor_max_inflight=2)
    talk.attach("exec-0")
    talk.start("a", [[i] for i in range(20)], instance_id="x")
    talk.turns()
    talk.start("b", [[0]], instance_id="y")
    assert talk.turns() == []
    talk.complete("a/0")
    assert dispatched(talk.turns()) == {"exec-0": ["a/2"]}
    talk.heartbeat("exec-0", at=MIN_TENURE_MS)
    talk.turns()
    talk.complete("a/1")
    assert talk.turns() == []
    talk.complete("a/2")
    assert _recycled(talk.turns()) == ["exec-0"]
    _renew(talk, "exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["b/0"]}


def test_the_one_that_has_most_gives() -> None:
    """As long as it has at least two more."""
    talk = Talk(executor_share="instance", executor_max_inflight=1)
    talk.attach("exec-0", "exec-1", "exec-2")
    talk.start("a", [[i] for i in range(20)], instance_id="x")
    talk.turns()
    talk.start("b", [[i] for i in range(20)], instance_id="y")
    talk.heartbeat("exec-0", at=MIN_TENURE_MS)
    talk.turns()
    talk.complete("a/0")
    assert _recycled(talk.turns()) == ["exec-0"]
    _renew(talk, "exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["b/0"]}
    talk.heartbeat("exec-0", at=3 * MIN_TENURE_MS)
    talk.complete("a/1")
    assert dispatched(talk.turns()) == {"exec-1": ["a/3"]}


def test_a_request_for_an_executor_is_taken_back() -> None:
    """Who asked has gone: the executor serves its tenant again."""
    talk = Talk(executor_share="instance", executor_max_inflight=2)
    talk.attach("exec-0")
    talk.start("a", [[i] for i in range(20)], instance_id="x")
    talk.turns()
    talk.heartbeat("exec-0", at=MIN_TENURE_MS)
    talk.start("b", [[0]], instance_id="y")
    talk.turns()
    talk.complete("a/0")
    assert talk.turns() == []
    talk.drop("b")
    talk.complete("a/1")
    assert dispatched(talk.turns()) == {"exec-0": ["a/2", "a/3"]}


def test_subcalls_stay_with_their_tenant() -> None:
    """They go where their parent is, and hold a yielding executor until they are done."""
    talk = Talk(executor_share="task")
    talk.attach("exec-0")
    talk.start("a", [[0]], COLLECT_ALL)
    talk.turns()
    talk.start("b", [[0]])
    talk.heartbeat("exec-0", at=MIN_TENURE_MS)
    talk.turns()
    child = talk.begin("a/0", [7])
    talk.complete(child)
    assert _recycled(talk.turns()) == []
    talk.complete("a/0")
    assert _recycled(talk.turns()) == ["exec-0"]


def test_a_suspect_waits_for_an_executor_of_its_own_tenant() -> None:
    """Running alone does not make a foreign process its own."""
    talk = Talk(executor_share="task")
    talk.start("a", [[0]], COLLECT_ALL)
    for number in (90, 91):
        talk.attach(f"exec-{number}")
        talk.turns()
        talk.ask_io("a/0")
        if number == 91:
            talk.attach("exec-0")
            talk.start("b", [[0]])
            talk.turns()
        talk.lose(f"exec-{number}", exit_code=-9)
    assert talk.turns() == []
    talk.complete("b/0")
    assert _recycled(talk.turns()) == ["exec-0"]
    _renew(talk, "exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["a/0"]}


def test_suspects_that_may_not_have_the_free_executor_start_no_turns() -> None:
    """At most half of the executors run suspects; the second one waits for the first, and the shell rests."""
    talk = Talk(executor_share="task")
    talk.attach("exec-0", "exec-1")
    for task_id in ("a", "b"):
        talk.start(task_id, [[0]])
    talk.turns()
    for _ in range(2):
        for executor_id, call_id in (("exec-0", "a/0"), ("exec-1", "b/0")):
            talk.ask_io(call_id)
            talk.lose(executor_id, exit_code=-9)
            talk.attach(executor_id)
            talk.turns()
    assert talk.out() == ["a/0"]
    talk.complete("a/0")
    assert dispatched(talk.turns()) == {"exec-1": ["b/0"]}
