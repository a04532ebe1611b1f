"""Calls that hurt their neighbours: who runs alone, and which executors are renewed."""

from __future__ import annotations

import pytest

from blockx_worker.dispatch.commands import ArmCallRetry, KillExecutor, RecycleExecutor
from tests.dispatch.driver import COLLECT_ALL, FUNCTION, Talk, cancelled, dispatched, of


def _suspect(talk: Talk, *, started: str = "waits", losses: int = 2) -> None:
    """t/0 was started aboard two lost executors, t/1 was not; both are READY."""
    talk.start("t", [[0], [1]], COLLECT_ALL)
    for number in range(90, 90 + losses):
        talk.attach(f"exec-{number}")
        talk.turns()
        if started == "waits":
            talk.ask_io("t/0")
        elif started == "black box":
            talk.observe(f"exec-{number}", "t/0", since=number)
        elif started == "heartbeat":
            seq = talk.sent("t/0").attempt_seq
            talk.heartbeat(f"exec-{number}", running_call_id="t/0", running_attempt_seq=seq)
        talk.lose(f"exec-{number}", exit_code=-9)


def test_a_call_aboard_two_losses_runs_alone() -> None:
    """On an executor with nothing aboard, which gets nothing else until the call has ended."""
    talk = Talk()
    _suspect(talk)
    talk.attach("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}
    talk.heartbeat("exec-0")
    assert talk.turns() == []
    talk.complete("t/0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


@pytest.mark.parametrize("started", ["waits", "black box", "heartbeat"])
def test_started_is_what_was_seen_to_run(started: str) -> None:
    """It asked something, the black box showed it, or a heartbeat named it."""
    talk = Talk()
    _suspect(talk, started=started)
    talk.attach("exec-0", "exec-1")
    out = talk.turns()
    assert dispatched(out) == {"exec-0": ["t/0"], "exec-1": ["t/1"]}
    talk.start("u", [[i] for i in range(4)])
    assert dispatched(talk.turns()) == {"exec-1": ["u/0", "u/1", "u/2", "u/3"]}


def test_a_call_that_never_ran_is_not_suspected() -> None:
    """It stood in a queue of the dead."""
    talk = Talk()
    _suspect(talk, started="no")
    talk.attach("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["t/0", "t/1"]}


def test_the_culprit_too_runs_alone_in_the_end() -> None:
    """Charged twice, it gets its third attempt without company."""
    talk = Talk()
    talk.start("t", [[0], [1]], COLLECT_ALL)
    for number in range(2):
        talk.attach(f"exec-{number}")
        talk.turns()
        (retry,) = of(talk.lose(f"exec-{number}", exit_code=1, running="t/0"), ArmCallRetry)
        talk.retry(retry)
    talk.attach("exec-8", "exec-9")
    assert dispatched(talk.turns()) == {"exec-8": ["t/0"], "exec-9": ["t/1"]}


def test_a_call_that_was_alone_is_charged() -> None:
    """Nobody else can have been it, though no black box tells; an end from outside still charges nobody."""
    talk = Talk()
    _suspect(talk)
    talk.attach("exec-0")
    talk.turns()
    talk.ask_io("t/0")
    assert [retry.call_id for retry in of(talk.lose("exec-0", exit_code=1), ArmCallRetry)] == ["t/0"]


def test_an_executor_is_emptied_for_a_suspect() -> None:
    """Under load none is ever empty: one is set apart, gets nothing new, and takes the suspect when it is empty."""
    talk = Talk(executor_max_inflight=2)
    talk.start("t", [[0], [1]], COLLECT_ALL)
    for number in (90, 91):
        talk.attach(f"exec-{number}")
        talk.turns()
        talk.ask_io("t/0")
        if number == 91:
            talk.start("u", [[i] for i in range(20)])
            talk.attach("exec-0", "exec-1")
            talk.turns()
        talk.lose(f"exec-{number}", exit_code=-9)
    talk.turns()
    assert [talk.where(f"u/{index}") for index in range(4)] == ["exec-0", "exec-1"] * 2
    talk.complete("u/0")
    assert talk.turns() == []
    talk.complete("u/1")
    assert list(dispatched(talk.turns())) == ["exec-1"]
    talk.complete("u/2")
    assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}
    talk.complete("u/3")
    assert list(dispatched(talk.turns())) == ["exec-1"]


def test_at_most_half_of_the_executors_stand_apart() -> None:
    """Others go on; the suspects run one after the other."""
    talk = Talk()
    talk.start("t", [[i] for i in range(4)], COLLECT_ALL)
    for number in (90, 91):
        talk.attach(f"exec-{number}")
        talk.turns()
        for index in range(4):
            talk.ask_io(f"t/{index}")
        talk.lose(f"exec-{number}", exit_code=-9)
    talk.attach("exec-0", "exec-1", "exec-2", "exec-3")
    talk.start("u", [[i] for i in range(4)])
    out = dispatched(talk.turns())
    assert sorted(call for calls in out.values() for call in calls if call.startswith("u/")) == [
        "u/0",
        "u/1",
        "u/2",
        "u/3",
    ]
    alone = [calls for calls in out.values() if calls[0].startswith("t/")]
    assert [len(calls) for calls in alone] == [1] * len(alone)


def test_a_suspect_has_its_own_subcalls_beside_it() -> None:
    """They are part of it; the executor is free when all of it has ended."""
    talk = Talk()
    _suspect(talk)
    talk.attach("exec-0")
    talk.turns()
    child = talk.begin("t/0", [7])
    assert cancelled(talk.complete("t/0")) == {"exec-0": [child]}
    assert talk.turns() == []
    talk.fail(child, "CANCELLED")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}


def test_a_suspect_that_is_cancelled_frees_the_executor_that_waits_for_it() -> None:
    """Nobody needs it any more."""
    talk = Talk()
    _suspect(talk)
    talk.attach("exec-0", contexts=1)
    talk.turns()
    talk.drop("t")
    talk.fail("t/0", "CANCELLED")
    talk.start("u", [[0]])
    assert dispatched(talk.turns()) == {"exec-0": ["u/0"]}


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_suspect_may_share_what_an_equal_subcall_returns(ends: str) -> None:
    """It is withdrawn from those that must run alone, and comes back when the subcall fails."""
    talk = Talk()
    _suspect(talk, losses=1)
    talk.attach("exec-91")
    talk.turns()
    talk.ask_io("t/0")
    talk.attach("exec-0")
    talk.give_back("t/1")
    assert dispatched(talk.turns()) == {"exec-0": ["t/1"]}
    talk.lose("exec-91", exit_code=-9)
    assert talk.turns() == []
    child = talk.begin("t/1", [0], FUNCTION)
    if ends == "well":
        talk.complete(child, "t/1", output=b"5")
        talk.turns()
        assert talk.outputs["t"] == [b"5", b"5"]
        assert talk.out() == []
    else:
        talk.fail(child, "BUDGET_EXCEEDED")
        talk.complete("t/1")
        assert dispatched(talk.turns()) == {"exec-0": ["t/0"]}


# --- memory


def test_an_executor_that_has_grown_too_large_is_renewed_when_empty() -> None:
    """It gets no new calls and loses none; the order comes once."""
    talk = Talk(executor_memory_recycle_bytes=1000)
    talk.attach("exec-0")
    talk.start("t", [[0], [1]])
    talk.turns()
    assert talk.heartbeat("exec-0", memory_bytes=1001) == []
    talk.start("u", [[0]])
    assert talk.turns() == []
    talk.complete("t/0")
    out = talk.complete("t/1")
    assert [order.executor_id for order in of(out, RecycleExecutor)] == ["exec-0"]
    (order,) = of(out, RecycleExecutor)
    assert "1001 bytes" in order.message
    assert "limit of 1000" in order.message
    talk.turns()
    assert talk.heartbeat("exec-0", memory_bytes=1001) == []
    assert talk.sweep(at=60_000) == []
    assert talk.lose("exec-0", exit_code=0) == []
    talk.attach("exec-0")
    assert dispatched(talk.turns()) == {"exec-0": ["u/0"]}


def test_an_empty_executor_is_renewed_at_once() -> None:
    """By its heartbeat alone."""
    talk = Talk(executor_memory_recycle_bytes=1000)
    talk.attach("exec-0")
    assert talk.heartbeat("exec-0", memory_bytes=1000) == []
    assert of(talk.heartbeat("exec-0", memory_bytes=1001), RecycleExecutor) != []
    assert talk.core.executors()[0].healthy is False
    assert talk.core.has_attached_executor is False


def test_an_executor_that_was_too_large_once_retires() -> None:
    """What it frees later changes nothing; its parents still get their subcalls."""
    talk = Talk(executor_memory_recycle_bytes=1000)
    talk.attach("exec-0")
    talk.start("t", [[0], [1]])
    talk.turns()
    talk.heartbeat("exec-0", memory_bytes=2000)
    talk.heartbeat("exec-0", memory_bytes=500)
    child = talk.begin("t/0", [7])
    talk.complete(child, "t/0")
    assert of(talk.give_back("t/1"), RecycleExecutor) != []
    assert "2000 bytes" in talk.core.executors()[0].message


def test_a_zombie_keeps_a_retiring_executor() -> None:
    """It is not empty before the last call has really stopped."""
    talk = Talk(executor_memory_recycle_bytes=1000)
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    talk.heartbeat("exec-0", memory_bytes=2000)
    talk.drop("t")
    assert talk.turns() == []
    assert of(talk.fail("t/0", "CANCELLED"), RecycleExecutor) != []


def test_memory_is_not_looked_at_without_a_limit() -> None:
    """0 = off."""
    talk = Talk()
    talk.attach("exec-0")
    assert talk.heartbeat("exec-0", memory_bytes=1 << 50) == []


def test_a_retiring_executor_may_still_have_to_be_killed() -> None:
    """A call that does not end would keep it for ever."""
    talk = Talk(executor_memory_recycle_bytes=1000, wedge_grace_ms=0, heartbeat_timeout_ms=60_000)
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    talk.heartbeat("exec-0", memory_bytes=2000)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=5001)
    assert of(talk.sweep(), KillExecutor) != []
