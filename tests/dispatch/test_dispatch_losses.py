"""Lost executors: who pays, who goes back, what is left."""

from __future__ import annotations

import pytest

from blockx_worker.dispatch.commands import ArmCallRetry
from blockx_worker.dispatch.events import CallsFinished, ExecutorLost
from tests.dispatch.driver import COLLECT_ALL, Talk, armed, completed, dispatched, dropped, killed, of


def _two_aboard(**config: int) -> Talk:
    talk = Talk(**config)
    talk.attach("exec-0")
    talk.start("t", [[0], [1]], COLLECT_ALL)
    talk.turns()
    return talk


def test_the_running_call_pays_for_the_process() -> None:
    """The one that owned the main thread is charged; the other goes back at once."""
    talk = _two_aboard()
    retry = armed(talk.lose("exec-0", exit_code=-11, running="t/1"))
    assert (retry.call_id, retry.due_ms) == ("t/1", 10)
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/0"]}
    talk.retry(retry)
    assert dispatched(talk.turns()) == {"exec-1": ["t/1"]}
    assert talk.sent("t/0").attempt_seq == 2


def test_a_call_that_kills_again_and_again_fails() -> None:
    """Its attempts run out; its neighbour lives."""
    talk = _two_aboard()
    for number in range(3):
        out = talk.lose(f"exec-{number}", exit_code=1, running="t/1")
        talk.attach(f"exec-{number + 1}")
        for retry in of(out, ArmCallRetry):
            talk.retry(retry)
        talk.turns()
    talk.complete("t/0", output=b"1")
    talk.turns()
    end = talk.ends["t"]
    assert talk.outputs["t"] == [b"1", None]
    (listed,) = end.failed_calls
    assert (listed.error_kind, listed.attempts) == ("EXECUTOR_LOST", 3)
    assert "exec-2" in listed.message


def test_nobody_pays_when_none_is_known() -> None:
    """A call that kills without a trace is bounded by the end of its innocence, and costs its neighbours nothing."""
    talk = _two_aboard()
    assert talk.lose("exec-0", exit_code=1) == []
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/0", "t/1"]}


def test_a_black_box_that_names_a_foreign_call_proves_nothing() -> None:
    """Only a call that was bound to the executor can be the culprit."""
    talk = _two_aboard()
    lost = ExecutorLost(
        executor_id="exec-0", message="exit 1", exit_code=1, killed_by_us=False, running_call_no=99
    )
    assert talk.say(lost) == []


def test_a_kill_from_outside_charges_nobody() -> None:
    """The kernel kills the largest process, not the guilty call."""
    talk = _two_aboard()
    assert talk.lose("exec-0", exit_code=-9, running="t/1") == []
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/0", "t/1"]}


def test_innocence_ends() -> None:
    """After ``max_uncharged_losses`` losses each further one is charged."""
    talk = Talk(max_uncharged_losses=2)
    talk.start("t", [[0]], attempts=2)
    losses = []
    for number in range(4):
        talk.attach(f"exec-{number}")
        talk.turns()
        out = talk.lose(f"exec-{number}", exit_code=-9)
        losses.append(len(of(out, ArmCallRetry)))
        for retry in of(out, ArmCallRetry):
            talk.retry(retry)
    talk.turns()
    assert losses == [0, 0, 1, 0]
    (listed,) = talk.ends["t"].failed_calls
    assert (listed.error_kind, listed.attempts) == ("EXECUTOR_LOST", 2)
    statistic = talk.ends["t"].statistic
    assert (statistic.attempts, statistic.retries) == (4, 3)


def test_a_wedged_call_fails_for_good() -> None:
    """The kill was ordered for it, so it is not tried again; the others are innocent."""
    talk = _two_aboard(wedge_grace_ms=1000, heartbeat_timeout_ms=60_000)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=6001)
    order = killed(talk.sweep())
    assert (order.kind, order.call_id) == ("EXECUTOR_WEDGED", "t/0")
    assert talk.lose("exec-0", exit_code=-9, by_us=True, running="t/1") == []
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/1"]}
    talk.complete("t/1")
    talk.turns()
    (listed,) = talk.ends["t"].failed_calls
    assert (listed.index, listed.error_kind) == (0, "EXECUTOR_WEDGED")
    assert "6001 ms" in listed.message


def test_a_wedged_call_that_ended_in_time_is_not_charged() -> None:
    """Its frame came before the loss; nobody else pays for the kill."""
    talk = _two_aboard(wedge_grace_ms=1000, heartbeat_timeout_ms=60_000)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=6001)
    killed(talk.sweep())
    talk.complete("t/0", output=b"1")
    assert talk.lose("exec-0", exit_code=-9, by_us=True) == []
    talk.attach("exec-1")
    assert dispatched(talk.turns()) == {"exec-1": ["t/1"]}


def test_a_wedged_process_that_died_by_itself_follows_the_general_rule() -> None:
    """Our order came too late: the exit tells who it was."""
    talk = _two_aboard(wedge_grace_ms=1000, heartbeat_timeout_ms=60_000)
    talk.observe("exec-0", "t/0", at=0)
    talk.observe("exec-0", "t/0", at=6001)
    killed(talk.sweep())
    assert armed(talk.lose("exec-0", exit_code=-11, running="t/1")).call_id == "t/1"


def test_frames_after_the_loss_are_dropped() -> None:
    """The executor is forgotten; a second loss too."""
    talk = _two_aboard()
    call = talk.aboard["exec-0"]["t/0"]
    talk.lose("exec-0", exit_code=-9)
    late = talk.say(CallsFinished(executor_id="exec-0", frames=[completed(call)]))
    assert dropped(late) == [("executor is not attached", 1)]
    assert dropped(talk.lose("exec-0")) == [("executor is not attached", 1)]


def test_a_new_life_under_the_same_id_knows_nothing_of_the_old() -> None:
    """Frames of the old process do not end an attempt of the new one."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    old = talk.aboard["exec-0"]["t/0"]
    talk.lose("exec-0", exit_code=-9)
    talk.attach("exec-0")
    talk.turns()
    late = talk.say(CallsFinished(executor_id="exec-0", frames=[completed(old)]))
    assert dropped(late) == [("attempt is not the current one", 1)]
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1"]


@pytest.mark.parametrize("exit_code", [-9, 1])
def test_a_cancelled_call_is_done_with_its_executor(exit_code: int) -> None:
    """Nobody waits for an answer of a dead process."""
    talk = Talk()
    talk.attach("exec-0", "exec-1")
    talk.start("t", [[0], [1], [2]])
    talk.turns()
    talk.fail("t/1")
    talk.turns()
    talk.lose("exec-0", exit_code=exit_code, running="t/0")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.failed, statistic.cancelled) == (1, 2)


def test_a_loss_while_the_task_stops() -> None:
    """Calls whose cancel was not ordered yet: the guilty one failed, the others are cancelled."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0], [1], [2]])
    talk.turns()
    talk.fail("t/0")
    talk.lose("exec-0", exit_code=1, running="t/1")
    talk.turns()
    statistic = talk.ends["t"].statistic
    assert (statistic.failed, statistic.cancelled) == (2, 1)
