"""Messages: the tag decides the type, and what is no message is refused."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import (
    CallFailed,
    CallFailedPayload,
    ExecuteCall,
    FromExecutor,
    FunctionCodeResult,
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
