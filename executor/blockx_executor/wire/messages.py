"""The messages between worker and executor, as msgspec structs.

A frame's body is the JSON object ``{"messageType", "callId"?, "requestId"?, "payload"}``; ``messageType`` is the
tag of the struct. Values of user code (``args``, ``output``, ``result``) stay ``msgspec.Raw``: neither side decodes
what it only passes on. A Raw that was decoded holds the whole buffer that it came from, so copy it when it is kept.

Durations are in milliseconds unless the name says otherwise.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = [
    "CallCompleted",
    "CallCompletedPayload",
    "CallError",
    "CallFailed",
    "CallFailedPayload",
    "CallWaiting",
    "CallWaitingPayload",
    "CallsReturned",
    "CallsReturnedPayload",
    "CancelCall",
    "CancelCallPayload",
    "ExecuteCall",
    "ExecuteCallPayload",
    "FromExecutor",
    "FunctionCodeResult",
    "Heartbeat",
    "HeartbeatAck",
    "HeartbeatAckPayload",
    "HeartbeatPayload",
    "ResumeCall",
    "ResumeCallPayload",
    "ReturnedCall",
    "ToExecutor",
]


class _Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all payloads: camelCase on the wire, defaults left out."""


class _Message(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="messageType",
    gc=False,
):
    """Base of all messages; the class name is the value of ``messageType``."""


# --- worker → executor ------------------------------------------------------------------------------------------


class ExecuteCallPayload(_Payload, frozen=True):
    """What to run. ``args`` is a JSON array; ``call_budget_ms`` 0 means no budget."""

    task_id: str
    function_id: str
    function_code_digest: str
    entry_selector: str
    args: msgspec.Raw
    call_budget_ms: int
    attempt_seq: int
    call_no: int
    parent_call_id: str | None = None
    task_deadline_unix_ms: int | None = None


class ExecuteCall(_Message, frozen=True, tag="ExecuteCall"):
    """Run one attempt of a call."""

    call_id: str
    payload: ExecuteCallPayload


class FunctionCodeResult(_Payload, frozen=True):
    """The ``result`` of a `ResumeCall` that answers ``function_code``: sources by file name, and which one is the entry.

    A single module is ``{"files": {"transfer.py": "def …"}, "main": "transfer.py"}``; its entry selectors are names in it:
    ``transfer``. A package is ``{"files": {"chain/__init__.py": "", "chain/erc20.py": "def …"}, "main":
    "chain/__init__.py"}``; its selectors are ``module:name``: ``chain.erc20:transfer``, ``chain:total`` for a function of
    the ``__init__.py``. The package may lie in folders that are none: ``apps/chain/__init__.py`` is ``apps.chain``.
    """

    files: dict[str, str]
    main: str


class CallError(_Payload, frozen=True):
    """Why a wait failed; raised in the waiting user code."""

    kind: str
    message: str
    retryable: bool = False


class ResumeCallPayload(_Payload, frozen=True):
    """Answer to one `CallWaiting`: exactly one of ``result``, a sidecar (raw bytes behind the frame) and ``error``.

    ``budget_used_ms`` is what the wait cost of the call's budget: time in the back end or in the subcall, not queueing.
    """

    resume_kind: str
    result: msgspec.Raw = msgspec.Raw(b"")
    error: CallError | None = None
    budget_used_ms: int = 0


class ResumeCall(_Message, frozen=True, tag="ResumeCall"):
    """Continue a call that waits for ``request_id``."""

    call_id: str
    request_id: int
    payload: ResumeCallPayload


class CancelCallPayload(_Payload, frozen=True):
    """Which attempt to stop, and why."""

    task_id: str
    attempt_seq: int
    reason: str


class CancelCall(_Message, frozen=True, tag="CancelCall"):
    """Stop one attempt of a call, also in the middle of running Python code."""

    call_id: str
    payload: CancelCallPayload


class HeartbeatAckPayload(_Payload, frozen=True):
    """Echo of the heartbeat's sequence number."""

    heartbeat_seq: int


class HeartbeatAck(_Message, frozen=True, tag="HeartbeatAck"):
    """The worker heard heartbeat ``heartbeat_seq``; a lost one does no harm."""

    payload: HeartbeatAckPayload


# --- executor → worker ------------------------------------------------------------------------------------------


class CallWaitingPayload(_Payload, frozen=True):
    """What a call waits for, by ``wait_kind``.

    * ``function_code``: the code of ``function_code_digest``. The call stays RUNNING.
    * ``subcall``: ``function_id`` (any function of the task's epoch) with ``args`` (a JSON array), on this executor,
      with ``granted_budget_ms`` cut off the parent's budget (0 = no budget).
    * ``io``: ``backend`` does ``op`` with ``request`` (a JSON object); a frame with a sidecar carries its raw bytes
      beside it. ``granted_budget_ms`` is what the call has left (0 = no budget).

    A call may have several requests open at once (a gather); each has its own ``request_id``, unique in the executor.
    """

    task_id: str
    attempt_seq: int
    wait_kind: str
    function_id: str | None = None
    function_code_digest: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")
    granted_budget_ms: int = 0
    backend: str | None = None
    op: str | None = None
    request: msgspec.Raw = msgspec.Raw(b"")


class CallWaiting(_Message, frozen=True, tag="CallWaiting"):
    """A call gave up the main thread until `ResumeCall` with the same ``request_id``."""

    call_id: str
    request_id: int
    payload: CallWaitingPayload


class CallCompletedPayload(_Payload, frozen=True):
    """The output as JSON, the budget used and the wall time in microseconds that the call owned the main thread."""

    task_id: str
    attempt_seq: int
    output: msgspec.Raw
    budget_used_ms: int = 0
    run_us: int = 0


class CallCompleted(_Message, frozen=True, tag="CallCompleted"):
    """One attempt returned a value."""

    call_id: str
    payload: CallCompletedPayload


class CallFailedPayload(_Payload, frozen=True):
    """Why an attempt failed; ``error_kind`` is one of the kinds in the worker's error table.

    ``error_stack`` shows frames of user code only, ``local_vars`` the locals of the failing frame as bounded reprs.
    """

    task_id: str
    attempt_seq: int
    error_kind: str
    error_message: str
    retryable: bool = False
    error_type: str = ""
    error_stack: str = ""
    local_vars: dict[str, str] = {}
    budget_used_ms: int = 0
    run_us: int = 0


class CallFailed(_Message, frozen=True, tag="CallFailed"):
    """One attempt failed, was cancelled or went over its budget."""

    call_id: str
    payload: CallFailedPayload


class ReturnedCall(_Payload, frozen=True):
    """One attempt that was given back."""

    call_id: str
    task_id: str
    attempt_seq: int


class CallsReturnedPayload(_Payload, frozen=True):
    """Attempts that were never started, in the order in which they were to run, and why they come back."""

    calls: list[ReturnedCall]
    reason: str


class CallsReturned(_Message, frozen=True, tag="CallsReturned"):
    """Calls that wait behind a slow one are given back, uncharged, so that another executor can run them."""

    payload: CallsReturnedPayload


class HeartbeatPayload(_Payload, frozen=True):
    """The executor's own view of itself; ``running_*`` describe the call that owns the main thread, if any.

    ``running_for_ms`` is how long it has owned the main thread without a pause; ``running_load`` is true while code
    is compiled or imported for it.
    """

    executor_id: str
    heartbeat_seq: int
    pid: int
    version: str
    runnable_count: int
    inflight_count: int
    available_contexts: int
    memory_bytes: int
    cpu_ms: int = 0
    running_call_id: str | None = None
    running_attempt_seq: int = 0
    running_for_ms: int = 0
    running_load: bool = False
    waiting_count: int = 0


class Heartbeat(_Message, frozen=True, tag="Heartbeat"):
    """Sent at least every heartbeat interval; the first valid one attaches the executor."""

    payload: HeartbeatPayload


ToExecutor: TypeAlias = ExecuteCall | ResumeCall | CancelCall | HeartbeatAck
FromExecutor: TypeAlias = CallWaiting | CallCompleted | CallFailed | CallsReturned | Heartbeat
