"""Calls that wait for back ends: WAITING while a request is open, whatever ends them."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import ResumeCallPayload
from blockx_worker.dispatch.commands import CancelCalls, DispatchCommand, ResumeCalls, ServeCallIo
from blockx_worker.dispatch.events import CallWaitOver, CallWaitRequested
from tests.dispatch.driver import COLLECT_ALL, Talk, armed, cancelled, dispatched, dropped, of, waiting


def _one_out(**config: int) -> Talk:
    talk = Talk(**config)
    talk.attach("exec-0")
    talk.start("t", [[0]])
    talk.turns()
    return talk


def _state(talk: Talk, call_id: str = "t/0") -> str:
    view = talk.core.call(call_id)
    assert view is not None
    return view.state.value


def test_a_call_waits_until_its_back_end_has_answered() -> None:
    """The request goes to the back end, the answer to the call; it holds its context meanwhile."""
    talk = _one_out()
    request = talk.ask_io("t/0", request=msgspec.Raw(b'{"method":"eth_call"}'))
    (serve,) = of(talk.said, ServeCallIo)
    assert (serve.executor_id, serve.frame.call_id, serve.frame.request_id) == ("exec-0", "t/0", request)
    assert _state(talk) == "WAITING"
    (resume,) = talk.answer_io("t/0", request, result=b'"0x1"')
    assert isinstance(resume, ResumeCalls)
    assert resume.sidecars == ()
    assert bytes(talk.answers[request].result) == b'"0x1"'
    assert _state(talk) == "RUNNING"
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1"]
    assert talk.ends["t"].statistic.io_requests == 1


def test_a_call_with_several_open_requests_runs_on_after_the_last() -> None:
    """Answers come in any order, each is sent at once."""
    talk = _one_out()
    first, second = talk.ask_io("t/0"), talk.ask_io("t/0")
    talk.answer_io("t/0", second)
    assert _state(talk) == "WAITING"
    talk.answer_io("t/0", first)
    assert _state(talk) == "RUNNING"
    assert set(talk.answers) == {first, second}


def test_a_large_answer_travels_beside_its_frame() -> None:
    """Raw bytes are not put into the JSON."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    (resume,) = talk.answer_io("t/0", request, sidecar=b"\x00rows")
    assert isinstance(resume, ResumeCalls)
    assert resume.sidecars == [b"\x00rows"]


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    """A second answer, one for another request, one for another attempt."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    talk.answer_io("t/0", request)
    assert dropped(talk.answer_io("t/0", request)) == [("call does not wait for this answer", 1)]
    assert dropped(talk.answer_io("t/0", 99)) == [("call does not wait for this answer", 1)]


def _over(talk: Talk, **wrong: object) -> list[DispatchCommand]:
    fields = {
        "executor_id": "exec-0",
        "task_id": "t",
        "call_id": "t/0",
        "attempt_seq": 1,
        "request_id": 1,
        "payload": ResumeCallPayload(resume_kind="io", result=msgspec.Raw(b"1")),
    }
    return talk.say(CallWaitOver(**(fields | wrong)))  # type: ignore[arg-type]  # one field of many types


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("executor_id", "exec-9", "executor is not attached"),
        ("executor_id", "exec-1", "call is not bound to this executor"),
        ("call_id", "t/1", "call is not bound to this executor"),
        ("attempt_seq", 2, "attempt is not the current one"),
        ("task_id", "u", "task does not match"),
    ],
)
def test_an_answer_must_match_in_everything(field: str, value: object, reason: str) -> None:
    """Executor, call, attempt and task; the right one is still awaited afterwards."""
    talk = _one_out()
    talk.attach("exec-1")
    request = talk.ask_io("t/0")
    assert dropped(_over(talk, **{field: value})) == [(reason, 1)]
    assert talk.core.dropped == {reason: 1}
    assert talk.answer_io("t/0", request) != []


def test_a_request_must_come_from_where_the_call_is() -> None:
    """An executor that lost a call, or never had it, asks in vain."""
    talk = _one_out()
    talk.attach("exec-1")
    frame = waiting(talk.aboard["exec-0"]["t/0"], 1, "io")
    stray = talk.say(CallWaitRequested(executor_id="exec-1", frame=frame))
    assert dropped(stray) == [("call is not bound to this executor", 1)]
    assert _state(talk) == "RUNNING"


def test_a_request_is_opened_once() -> None:
    """The same number twice would make two answers for one wait."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    frame = waiting(talk.aboard["exec-0"]["t/0"], request, "io")
    again = talk.say(CallWaitRequested(executor_id="exec-0", frame=frame))
    assert dropped(again) == [("request is already open", 1)]


@pytest.mark.parametrize("kind", ["BUDGET_EXCEEDED", "USER_ERROR"])
def test_a_waiting_call_can_fail(kind: str) -> None:
    """Its budget passes, or its code raises on an earlier answer; what it waited for is forgotten."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    talk.fail("t/0", kind)
    talk.turns()
    assert talk.ends["t"].statistic.failed == 1
    assert dropped(_over(talk, request_id=request)) == [("call is not bound to this executor", 1)]


def test_a_waiting_call_can_return() -> None:
    """It did not care for the answer."""
    talk = _one_out()
    talk.ask_io("t/0")
    talk.complete("t/0", output=b"1")
    talk.turns()
    assert talk.outputs["t"] == [b"1"]


def test_an_answer_for_an_earlier_attempt_is_dropped() -> None:
    """The retry asks anew."""
    talk = _one_out()
    old = talk.ask_io("t/0")
    talk.retry(armed(talk.fail("t/0", retryable=True)))
    talk.turns()
    new = talk.ask_io("t/0")
    assert dropped(_over(talk, request_id=old)) == [("attempt is not the current one", 1)]
    talk.answer_io("t/0", new)
    assert _state(talk) == "RUNNING"
    statistic = talk.core.statistic("t")
    assert statistic is not None
    assert statistic.io_requests == 2


def test_a_cancelled_call_waits_for_nothing() -> None:
    """Its answer is dropped, and it asks nothing more."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0], [1]])
    talk.turns()
    request = talk.ask_io("t/0")
    talk.fail("t/1")
    talk.ask_io("t/0")
    assert talk.core.dropped == {"task is stopping": 1}
    assert of(talk.turns(), CancelCalls) != []
    assert _state(talk) == "RUNNING"
    assert dropped(talk.answer_io("t/0", request)) == [("call does not wait for this answer", 1)]
    talk.fail("t/0", "CANCELLED")
    talk.turns()
    assert talk.ends["t"].statistic.cancelled == 1


def test_a_dropped_task_forgets_its_waits() -> None:
    """The call goes on as a zombie; its answer finds nobody."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    assert cancelled(talk.drop("t")) == {"exec-0": ["t/0"]}
    assert dropped(talk.answer_io("t/0", request)) == [("call is not bound to this executor", 1)]
    assert talk.core.executors()[0].waiting == 0


def test_waiting_calls_are_not_runnable() -> None:
    """Heartbeats are corrected by what began to wait since, so an executor full of waiting calls is not busy."""
    talk = Talk(executor_max_runnable=2)
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(3)], COLLECT_ALL)
    assert dispatched(talk.turns()) == {"exec-0": ["t/0", "t/1"]}
    talk.heartbeat("exec-0")
    talk.turns()
    request = talk.ask_io("t/0")
    assert talk.core.executors()[0].runnable == 1
    talk.heartbeat("exec-0", runnable_count=1)
    assert dispatched(talk.turns()) == {"exec-0": ["t/2"]}
    talk.answer_io("t/0", request)
    assert talk.core.executors()[0].runnable == 3


def test_waiting_calls_hold_their_contexts() -> None:
    """An executor holds no more calls than it has contexts, waiting or not."""
    talk = _one_out(executor_max_inflight=1)
    talk.ask_io("t/0")
    talk.start("u", [[0]])
    assert talk.turns() == []
    (view,) = talk.core.executors()
    assert (view.inflight, view.waiting) == (1, 1)


def test_a_lost_executor_ends_waits() -> None:
    """The call runs again elsewhere; the back end's answer comes too late."""
    talk = _one_out()
    request = talk.ask_io("t/0")
    talk.attach("exec-1")
    talk.lose("exec-0", exit_code=-9)
    assert dispatched(talk.turns()) == {"exec-1": ["t/0"]}
    assert dropped(_over(talk, request_id=request)) == [("executor is not attached", 1)]
    assert _state(talk) == "RUNNING"
