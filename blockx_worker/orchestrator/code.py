"""Answers executors that ask for function code.

An executor asks once for a digest, on behalf of all its calls that need it. It gets code only of a digest that one of
its bound calls needs, from the view of a task that runs; so the code of one tenant never reaches a process that was
given none of its calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from blockx_executor.wire.messages import (
    CallError,
    CallWaiting,
    FunctionCodeResult,
    ResumeCall,
    ResumeCallPayload,
)
from blockx_worker.model.errors import CallErrorKind
from blockx_worker.orchestrator.door import Door
from blockx_worker.orchestrator.runtime import TaskRuntime
from blockx_worker.ports import FunctionCode, FunctionView

__all__ = ["CodeDesk", "CodeSource"]

_encode = msgspec.json.Encoder().encode


class CodeSource(Protocol):
    """Where the desk looks."""

    door: Door
    runtimes: dict[str, TaskRuntime]


class CodeDesk:
    """See the module's text."""

    def __init__(self, source: CodeSource) -> None:
        self._source = source

    def answer(self, executor_id: str, frame: CallWaiting) -> ResumeCall:
        """The code, or an error that fails the calls which wait for it."""
        digest = frame.payload.function_code_digest or ""
        code = self._find(digest) if self._source.door.dispatcher.digest_bound(executor_id, digest) else None
        if code is None:
            message = f"no running task has function code with digest {digest[:12]!r}"
            payload = ResumeCallPayload(
                resume_kind=frame.payload.wait_kind,
                error=CallError(kind=CallErrorKind.FUNCTION_CODE_UNAVAILABLE, message=message),
            )
        else:
            result = _encode(FunctionCodeResult(files=dict(code.files), main=code.main))
            payload = ResumeCallPayload(resume_kind=frame.payload.wait_kind, result=msgspec.Raw(result))
        return ResumeCall(frame.call_id, frame.request_id, payload)

    def _find(self, digest: str) -> FunctionCode | None:
        for view in self._views():
            try:
                return view.code(digest)
            except KeyError:
                continue
        return None

    def _views(self) -> Iterable[FunctionView]:
        return [runtime.view for runtime in self._source.runtimes.values() if runtime.view is not None]
