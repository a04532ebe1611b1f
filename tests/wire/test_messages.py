"""Messages: the tag decides the type, and what is no message is refused."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import (
    CallFailed,
    CallFailedPayload,
    CallsReturned,
    CallsReturnedPayload,
    CallWaiting,
    CallWaitingPayload,
    ExecuteCall,
    FromExecutor,
    FunctionCodeResult,
    ResumeCall,
    ResumeCallPayload,
    ReturnedCall,
    ToExecutor,
)

EXECUTE = (
    b'{"messageType":"ExecuteCall","callId":"t/c0","payload":{"taskId":"t","functionId":"m.f",'
    b'"functionCodeDigest":"d","entrySelector":"f","args":[1,{"a":[2]}],"callBudgetMs":5,"attemptSeq":1,"callNo":9}}'
)


def test_arguments_pass_through_as_they_are() -> None:
    """The text of the arguments is neither decoded nor rewritten."""
    message = msgspec.json.decode(EXECUTE, type=ToExecutor)
    assert isinstance(message, ExecuteCall)
    assert bytes(message.payload.args) == b'[1,{"a":[2]}]'
    assert msgspec.json.encode(message) == EXECUTE


def test_defaults_are_left_out_and_come_back() -> None:
    """A failure without details is short on the wire."""
    payload = CallFailedPayload(
        task_id="t", attempt_seq=1, error_kind="CANCELLED", error_message="Cancelled."
    )
    body = msgspec.json.encode(CallFailed("t/c0", payload))
    assert b"errorStack" not in body
    assert msgspec.json.decode(body, type=FromExecutor) == CallFailed("t/c0", payload)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messageType":"Unknown","payload":{}}',
        b'{"callId":"t/c0","payload":{}}',
        b'{"messageType":"CallCompleted","callId":"t/c0","payload":{}}',
        b'{"messageType":"ExecuteCall","callId":"t/c0"}',
        b"[]",
        b"",
        b"\xff",
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    """Unknown type, no type, a type of the other direction, missing parts, other JSON, no JSON."""
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(body, type=ToExecutor)


def test_function_code_is_files_by_name_and_the_entry_file() -> None:
    """The answer to a request for code."""
    result = FunctionCodeResult(files={"m.py": "def f(): pass\n"}, main="m.py")
    assert msgspec.json.encode(result) == b'{"files":{"m.py":"def f(): pass\\n"},"main":"m.py"}'


SUBCALL = CallWaiting(
    "t/c0",
    7,
    CallWaitingPayload(
        task_id="t", attempt_seq=1, wait_kind="subcall", function_id="m.f", args=msgspec.Raw(b"[1]"),
        granted_budget_ms=5,
    ),
)  # fmt: skip
IO = CallWaiting(
    "t/c0",
    8,
    CallWaitingPayload(
        task_id="t", attempt_seq=1, wait_kind="io", backend="rpc", op="call", request=msgspec.Raw(b"{}")
    ),
)
RETURNED = CallsReturned(
    CallsReturnedPayload(
        calls=[ReturnedCall(call_id="t/c1", task_id="t", attempt_seq=2)], reason="Call t/c0 is slow."
    )
)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (
            SUBCALL,
            (
                b'{"messageType":"CallWaiting","callId":"t/c0","requestId":7,"payload":{"taskId":"t","attemptSeq":1,'
                b'"waitKind":"subcall","functionId":"m.f","args":[1],"grantedBudgetMs":5}}'
            ),
        ),
        (
            IO,
            (
                b'{"messageType":"CallWaiting","callId":"t/c0","requestId":8,"payload":{"taskId":"t","attemptSeq":1,'
                b'"waitKind":"io","backend":"rpc","op":"call","request":{}}}'
            ),
        ),
        (
            RETURNED,
            (
                b'{"messageType":"CallsReturned","payload":{"calls":[{"callId":"t/c1","taskId":"t","attemptSeq":2}],'
                b'"reason":"Call t/c0 is slow."}}'
            ),
        ),
    ],
)
def test_waits_and_returns_on_the_wire(message: FromExecutor, body: bytes) -> None:
    """What is not set is left out, and comes back as it was."""
    assert msgspec.json.encode(message) == body
    assert msgspec.json.encode(msgspec.json.decode(body, type=FromExecutor)) == body


def test_an_answer_holds_one_of_result_and_error() -> None:
    """An empty Raw of one's own is not the default: leave the field out instead of setting it."""
    empty = ResumeCall("t/c0", 7, ResumeCallPayload(resume_kind="io", budget_used_ms=3))
    body = b'{"messageType":"ResumeCall","callId":"t/c0","requestId":7,"payload":{"resumeKind":"io","budgetUsedMs":3}}'
    assert msgspec.json.encode(empty) == body
    broken = ResumeCall("t/c0", 7, ResumeCallPayload(resume_kind="io", result=msgspec.Raw(b"")))
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(msgspec.json.encode(broken), type=ToExecutor)
