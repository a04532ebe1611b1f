"""Calls go out, come back, settle and converge."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import ExecuteCall, ExecuteCallPayload
from blockx_worker.dispatch.commands import (
    BatchSettled,
    CallsStatistic,
    ConvergeTaskCalls,
    DispatchCalls,
    DispatchDropped,
)
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.events import CallsFinished
from blockx_worker.dispatch.states import TRANSITIONS, CallState
from blockx_worker.model.watch import TaskProgress
from tests.dispatch.driver import DIGEST, FUNCTION, Talk, completed, dispatched, dropped, failed


def test_one_call_from_start_to_end() -> None:
    """The whole dialogue of the smallest task."""
    talk = Talk()
    talk.attach("exec-0")
    assert talk.start("t", [[1, "x"]]) == []
    assert talk.core.turn_pending
    payload = ExecuteCallPayload(
        task_id="t",
        function_id="pkg.mod.fn",
        function_code_digest=DIGEST,
        entry_selector="fn",
        args=msgspec.Raw(b'[1,"x"]'),
        call_budget_ms=5000,
        attempt_seq=1,
        call_no=1,
    )
    assert talk.turns() == [DispatchCalls(executor_id="exec-0", calls=[ExecuteCall("t/0", payload)])]
    assert talk.complete("t/0", output=b'{"a":1}', run_us=70) == []
    statistic = CallsStatistic(total=1, succeeded=1, attempts=1, output_bytes=7, run_us=70)
    assert talk.turns() == [
        BatchSettled(task_id="t", first_index=0, outputs=[b'{"a":1}']),
        ConvergeTaskCalls(
            task_id="t", failure=None, failed_calls=(), failed_calls_omitted=0, statistic=statistic
        ),
    ]
    assert talk.core.statistic("t") == statistic
    assert talk.drop("t") == []
    assert talk.core.statistic("t") is None
    assert talk.core.calls_done == 1


def test_a_task_without_calls_converges_at_once() -> None:
    """An empty source is a success, also while no executor is there."""
    talk = Talk()
    talk.start("t", [])
    (end,) = talk.turns()
    assert isinstance(end, ConvergeTaskCalls)
    assert end.failure is None
    assert end.statistic == CallsStatistic()


def test_outputs_keep_the_order_of_the_call_list() -> None:
    """Whatever order calls end in, the batch settles in the order of its rows."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(5)])
    talk.turns()
    for index in (3, 0, 4, 2, 1):
        talk.complete(f"t/{index}", output=b"%d" % index)
    talk.turns()
    assert talk.outputs["t"] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_output_is_a_copy() -> None:
    """A Raw that is kept would keep the whole read buffer."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    talk.turns()
    talk.complete("t/0", output=b"123")
    (settled, _) = talk.turns()
    assert isinstance(settled, BatchSettled)
    assert type(settled.outputs[0]) is bytes


def test_calls_spread_over_executors_by_load() -> None:
    """Least runnable first; one command per executor and turn; no more than an executor holds."""
    talk = Talk()
    talk.attach("exec-0", "exec-1", contexts=3)
    talk.start("t", [[i] for i in range(10)])
    assert dispatched(talk.turns()) == {
        "exec-0": ["t/0", "t/2", "t/4"],
        "exec-1": ["t/1", "t/3", "t/5"],
    }
    assert not talk.core.turn_pending
    talk.complete("t/3")
    assert dispatched(talk.turns()) == {"exec-1": ["t/6"]}


def test_call_numbers_name_attempts_of_all_tasks() -> None:
    """A number names one attempt in the whole worker."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("a", [[1], [2]])
    talk.start("b", [[1], [2]])
    talk.turns()
    assert sorted(talk.sent(call_id).call_no for call_id in talk.out()) == [1, 2, 3, 4]


def test_a_turn_touches_no_more_calls_than_it_may() -> None:
    """A turn is a slice: the next one goes on."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[i] for i in range(10)])
    assert [len(calls) for calls in dispatched(talk.turn(4)).values()] == [4]
    assert talk.core.turn_pending
    assert [len(calls) for calls in dispatched(talk.turn(4)).values()] == [4]
    assert [len(calls) for calls in dispatched(talk.turn(4)).values()] == [2]
    assert not talk.core.turn_pending


def test_nothing_is_pending_without_executors() -> None:
    """Ready calls alone do not make a turn: the shell would spin."""
    talk = Talk()
    talk.start("t", [[i] for i in range(10)])
    assert talk.turns() == []
    assert not talk.core.turn_pending
    talk.attach("exec-0")
    assert len(talk.turns()) == 1


def test_frames_of_unknown_executors_and_calls_are_counted() -> None:
    """One drop per reason and batch of frames, naming the first call."""
    talk = Talk()
    talk.attach("exec-0", "exec-1")
    talk.start("t", [[1]])
    talk.turns()
    call = talk.aboard["exec-0"]["t/0"]
    frames = [completed(call), completed(call)]
    assert talk.say(CallsFinished(executor_id="exec-9", frames=frames)) == [
        DispatchDropped(event="CallsFinished", reason="executor is not attached", call_id="t/0", count=2)
    ]
    assert dropped(talk.say(CallsFinished(executor_id="exec-1", frames=frames))) == [
        ("call is not bound to this executor", 2)
    ]
    other = ExecuteCall("t/0", msgspec.structs.replace(call.payload, attempt_seq=2))
    assert dropped(talk.say(CallsFinished(executor_id="exec-0", frames=[failed(other)]))) == [
        ("attempt is not the current one", 1)
    ]
    other = ExecuteCall("t/0", msgspec.structs.replace(call.payload, task_id="u"))
    assert dropped(talk.say(CallsFinished(executor_id="exec-0", frames=[failed(other)]))) == [
        ("task does not match", 1)
    ]
    assert talk.say(CallsFinished(executor_id="exec-9", frames=[])) == []
    assert sum(talk.core.dropped.values()) == 6
    talk.complete("t/0")
    talk.turns()
    assert talk.ends["t"].failure is None


def test_a_second_frame_of_an_attempt_is_dropped() -> None:
    """An attempt ends once."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    talk.turns()
    call = talk.aboard["exec-0"]["t/0"]
    both = talk.say(
        CallsFinished(executor_id="exec-0", frames=[completed(call, b"1"), completed(call, b"2")])
    )
    assert dropped(both) == [("call is not bound to this executor", 1)]
    talk.turns()
    assert talk.outputs["t"] == [b"1"]


def test_a_task_id_starts_once() -> None:
    """A second start of a known task changes nothing."""
    talk = Talk()
    talk.start("t", [[1]])
    assert dropped(talk.start("t", [[1], [2]])) == [("task is already known", 1)]
    assert talk.core.progress("t") == TaskProgress(total=1)


def test_reads_show_where_a_call_is() -> None:
    """Views are copies of what there is now."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[1]])
    assert talk.core.call("t/0") is None
    assert talk.core.call("nonsense") is None
    talk.turns()
    view = talk.core.call("t/0")
    assert view is not None
    assert (view.state, view.executor_id, view.attempt_seq) == (CallState.RUNNING, "exec-0", 1)
    assert not view.cancelling
    assert talk.core.progress("t") == TaskProgress(total=1, inflight=1)
    assert talk.core.progress("u") is None
    talk.observe("exec-0", "t/0")
    (executor,) = talk.core.executors()
    assert (executor.inflight, executor.runnable, executor.running_call_id) == (1, 1, "t/0")


def test_code_is_given_only_for_calls_aboard() -> None:
    """A code request must come from an executor that holds a call of that digest."""
    talk = Talk()
    talk.attach("exec-0", "exec-1")
    talk.start("t", [[1]])
    talk.turns()
    assert talk.core.code_wanted("exec-0", "t/0", DIGEST) == FUNCTION
    assert talk.core.code_wanted("exec-0", "t/0", "e" * 64) is None
    assert talk.core.code_wanted("exec-1", "t/0", DIGEST) is None
    assert talk.core.code_wanted("exec-9", "t/0", DIGEST) is None
    assert talk.core.digest_bound("exec-0", DIGEST)
    assert not talk.core.digest_bound("exec-0", "e" * 64)
    assert not talk.core.digest_bound("exec-1", DIGEST)
    assert not talk.core.digest_bound("exec-9", DIGEST)


def test_done_is_final() -> None:
    """The table of states has no way out of DONE."""
    assert not [step for state, step in TRANSITIONS if state is CallState.DONE]


@pytest.mark.parametrize(
    ("field", "value"),
    [("executor_max_inflight", 0), ("instance_fairness_quantum", 1025), ("call_cache_bytes", -1)],
)
def test_a_limit_out_of_range_is_named(field: str, value: int) -> None:
    """A bad configuration says which field and which value."""
    with pytest.raises(ValueError, match=f"(?s){field}.*{value}"):
        DispatcherConfig(**{field: value})  # type: ignore[arg-type]  # one field of many types


def test_dispatch_comes_before_what_cancels_it() -> None:
    """A call that is sent and cancelled in one turn is named in this order."""
    talk = Talk()
    talk.attach("exec-0")
    talk.start("t", [[0], [1], [0]], rows=1, max_output_bytes=5)
    talk.turn(1)
    talk.complete("t/0", output=b"123")
    kinds = [type(command).__name__ for command in talk.turn()]
    assert kinds == ["DispatchCalls", "BatchSettled", "StopCallProduction", "CancelCalls"]
