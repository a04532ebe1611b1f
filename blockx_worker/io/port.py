"""One back end with its limits: the boundary between the worker and code that may be anybody's.

Nothing that a back end does harms more than the one request: a defect, an answer that is no JSON or too large, and no
answer at all become errors of that request. An answer goes into a frame as it is, and a frame that does not parse would
cost the executor its life, so it is checked here.
"""

from __future__ import annotations

import attrs
import msgspec
import trio

from blockx_worker.io.admission import Admission
from blockx_worker.io.errors import failed
from blockx_worker.model.errors import IoErrorKind
from blockx_worker.model.fields import shorten
from blockx_worker.ports import IoAnswer, IoBackend
from blockx_worker.telemetry.log import get_logger

__all__ = ["BackendPort"]

log = get_logger(__name__)

_check_json = msgspec.json.Decoder(msgspec.Raw).decode


@attrs.frozen(kw_only=True)
class BackendPort:
    """A back end, how many requests it takes at once, and how long and how large an answer may be."""

    backend: IoBackend
    admission: Admission
    timeout_ms: int
    max_answer_bytes: int

    @property
    def name(self) -> str:
        """The back end's name."""
        return self.backend.name

    def may_share(self, op: str) -> bool:
        """Whether equal requests of a task may share an answer; a defect in saying so counts as no."""
        try:
            return bool(self.backend.cacheable(op))
        except Exception:
            log.exception("io_backend_defect", backend=self.name, op=op)
            return False

    async def ask(self, op: str, request: bytes) -> IoAnswer:
        """The back end's answer within time and size; raises nothing but cancellation."""
        with trio.move_on_after(self.timeout_ms / 1000):
            try:
                return self._checked(op, await self.backend.request(op, request))
            except Exception as error:
                log.exception("io_backend_defect", backend=self.name, op=op)
                return self._defect(op, f"{type(error).__name__}: {error}")
        return self.timed_out(op, self.timeout_ms, "the longest time for one request")

    def timed_out(self, op: str, limit_ms: int, limit: str) -> IoAnswer:
        """The answer when there was none within ``limit``."""
        message = f"{self.name} {shorten(op)}: no answer within {limit_ms} ms, {limit}"
        return failed(IoErrorKind.IO_TIMEOUT, message)

    def _checked(self, op: str, answer: IoAnswer) -> IoAnswer:
        if answer.error is not None:
            return answer
        if (answer.result is None) == (answer.sidecar is None):
            return self._defect(op, "an answer needs exactly one of result, sidecar and error")
        size = len(answer.result or b"") + len(answer.sidecar or b"")
        if size > self.max_answer_bytes:
            message = (
                f"{self.name} {shorten(op)}: the answer has {size} bytes, more than the {self.max_answer_bytes} that are allowed "
                f"(io.max_answer_bytes); ask for less at a time"
            )
            return failed(IoErrorKind.IO_ANSWER_TOO_LARGE, message)
        if answer.result is not None:
            try:
                _check_json(answer.result)
                answer.result.isascii() or answer.result.decode()
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return self._defect(op, f"the result is not valid JSON: {error}")
        return answer

    def _defect(self, op: str, what: str) -> IoAnswer:
        message = f"{self.name} {shorten(op)}: the back end is broken: {what}"
        return failed(IoErrorKind.IO_BACKEND_FAILED, message)
