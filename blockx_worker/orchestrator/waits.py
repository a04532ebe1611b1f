"""What running calls wait for: function code, subcalls, back ends.

Function code is answered on the spot and changes no state. A subcall is resolved in the view of the call's task and
becomes an event of the dispatcher. A back end is asked once the dispatcher has found the call bound to the executor
that asks; the request runs in the nursery of the task that the frame names, so it ends with the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from blockx_executor.wire.messages import CallError, CallWaiting, ResumeCall, ResumeCallPayload
from blockx_worker.dispatch.commands import ServeCallIo
from blockx_worker.dispatch.events import CallWaitOver, CallWaitRequested, DispatchEvent, SubcallRequested
from blockx_worker.model.errors import CallErrorKind, IoErrorKind
from blockx_worker.orchestrator.code import CodeDesk, CodeSource
from blockx_worker.orchestrator.runtime import TaskRuntime
from blockx_worker.ports import IoAnswer, IoError, IoRequest, StepFailed
from blockx_worker.telemetry.log import get_logger

__all__ = ["WaitDesk", "WaitWorld"]

log = get_logger(__name__)


class WaitWorld(CodeSource, Protocol):
    """What the desk needs of its surroundings."""

    def resume(self, executor_id: str, frame: ResumeCall, sidecar: bytes | None = None) -> None:
        """Send an answer to a call that waits."""

    def post(self, event: DispatchEvent) -> None:
        """Queue a fact for the dispatcher."""


class WaitDesk:
    """See the module's text."""

    def __init__(self, world: WaitWorld) -> None:
        self._world = world
        self._code = CodeDesk(world)
        self._kinds: dict[str, Callable[[str, CallWaiting], DispatchEvent | None]] = {
            "function_code": self._answer_code,
            "subcall": self._subcall,
            "io": lambda executor_id, frame: CallWaitRequested(executor_id=executor_id, frame=frame),
        }

    def waiting(self, executor_id: str, frame: CallWaiting) -> DispatchEvent | None:
        """Answer a wait, or say what the dispatcher has to decide about it."""
        kind = self._kinds.get(frame.payload.wait_kind)
        if kind is not None:
            return kind(executor_id, frame)
        message = (
            f"the worker knows no wait of kind {frame.payload.wait_kind!r}; it knows {', '.join(self._kinds)}"
        )
        self._world.resume(executor_id, _error(frame, CallError(kind="WAIT_KIND_UNKNOWN", message=message)))
        return None

    def serve_io(self, command: ServeCallIo) -> None:
        """Ask the back end in the task that the frame names."""
        runtime = self._world.runtimes.get(command.frame.payload.task_id)
        if runtime is not None and runtime.nursery is not None:
            runtime.nursery.start_soon(self._ask, runtime, command)

    def _answer_code(self, executor_id: str, frame: CallWaiting) -> None:
        self._world.resume(executor_id, self._code.answer(executor_id, frame))

    def _subcall(self, executor_id: str, frame: CallWaiting) -> DispatchEvent:
        """The function is one of the task's epoch, like that of the calling code."""
        runtime = self._world.runtimes.get(frame.payload.task_id)
        if runtime is None or runtime.view is None:
            error = CallError(kind=CallErrorKind.CANCELLED, message="the task has ended")
            return SubcallRequested(executor_id=executor_id, frame=frame, function=None, error=error)
        try:
            function = runtime.view.resolve(frame.payload.function_id or "")
        except StepFailed as failed:
            error = CallError(kind=failed.code, message=failed.message)
            return SubcallRequested(executor_id=executor_id, frame=frame, function=None, error=error)
        return SubcallRequested(executor_id=executor_id, frame=frame, function=function)

    async def _ask(self, runtime: TaskRuntime, command: ServeCallIo) -> None:
        frame, wait = command.frame, command.frame.payload
        request = IoRequest(
            backend=wait.backend or "",
            op=wait.op or "",
            request=bytes(wait.request),
            budget_ms=wait.granted_budget_ms,
        )
        try:
            answer = await runtime.io.request(request)
        except Exception as error:  # the boundary of a back end: a defect fails the one call
            log.exception("backend_defect", task_id=wait.task_id, call_id=frame.call_id, backend=wait.backend)
            message = f"internal error of back end {wait.backend} ({type(error).__name__}: {error})"
            answer = IoAnswer(error=IoError(kind=IoErrorKind.IO_BACKEND_FAILED, message=message))
        self._world.post(
            CallWaitOver(
                executor_id=command.executor_id,
                task_id=wait.task_id,
                call_id=frame.call_id,
                attempt_seq=wait.attempt_seq,
                request_id=frame.request_id,
                payload=_payload(wait.wait_kind, answer),
                sidecar=answer.sidecar,
            )
        )


def _payload(kind: str, answer: IoAnswer) -> ResumeCallPayload:
    if answer.error is not None:
        error = CallError(
            kind=answer.error.kind, message=answer.error.message, retryable=answer.error.retryable
        )
        return ResumeCallPayload(resume_kind=kind, error=error, budget_used_ms=answer.used_ms)
    if answer.result is not None:
        return ResumeCallPayload(
            resume_kind=kind, result=msgspec.Raw(answer.result), budget_used_ms=answer.used_ms
        )
    return ResumeCallPayload(resume_kind=kind, budget_used_ms=answer.used_ms)


def _error(frame: CallWaiting, error: CallError) -> ResumeCall:
    payload = ResumeCallPayload(resume_kind=frame.payload.wait_kind, error=error)
    return ResumeCall(frame.call_id, frame.request_id, payload)
