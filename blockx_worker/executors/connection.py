"""One executor's link: a reader and a writer over a Trio stream.

It moves frames and judges only their form. What a frame means, and whether its call is bound to this executor, is the
dispatcher's affair. A frame that does not parse, is too long or of an unknown type ends the connection with one clear
reason; a lost connection means a dead process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import msgspec
import trio

from blockx_executor.wire.framing import MAX_FRAME_BYTES, FrameDecoder, FrameError, encode_sidecar
from blockx_executor.wire.messages import (
    CallError,
    CallFailed,
    CallFailedPayload,
    ExecuteCall,
    FromExecutor,
    Heartbeat,
    HeartbeatAck,
    HeartbeatAckPayload,
    HeartbeatPayload,
    ResumeCall,
    ResumeCallPayload,
    ToExecutor,
)
from blockx_worker.executors.outbox import Outbox
from blockx_worker.model.errors import CallErrorKind

__all__ = ["ExecutorConnection", "FrameSink", "LinkConfig", "SendReport"]

_RECEIVE_BYTES = 262_144

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FromExecutor).decode


@attrs.frozen(kw_only=True)
class LinkConfig:
    """Limits of one connection, in frames."""

    outbox_frames: int = 256
    coalesce_frames: int = 64


@attrs.frozen
class SendReport:
    """What became of a batch of calls: ids not sent because the outbox is full, and failures made on the spot."""

    refused: list[str]
    failed: list[CallFailed]


class FrameSink(Protocol):
    """Takes what a connection reads."""

    async def frames(self, executor_id: str, frames: Sequence[FromExecutor]) -> None:
        """Take frames in order; waits while the inbox is full."""


class ExecutorConnection:
    """Reader and writer of one executor's stream."""

    def __init__(
        self, executor_id: str, stream: trio.abc.Stream, config: LinkConfig, sink: FrameSink
    ) -> None:
        self.executor_id = executor_id
        self._stream = stream
        self._sink = sink
        self._outbox = Outbox(config.outbox_frames, config.coalesce_frames)

    def send_calls(self, calls: Sequence[ExecuteCall]) -> SendReport:
        """Queue calls; those beyond the outbox limit are refused, those that fit no frame fail."""
        report = SendReport([], [])
        for call in calls:
            body = _encode(call)
            if len(body) > MAX_FRAME_BYTES:
                report.failed.append(_args_too_large(call, len(body)))
            elif not self._outbox.offer(body):
                report.refused.append(call.call_id)
        return report

    def send(self, message: ToExecutor) -> None:
        """Queue a control message."""
        self._outbox.force(_encode(message))

    def send_resume(self, message: ResumeCall, sidecar: bytes | None) -> None:
        """Queue an answer; one that fits no frame becomes an error, which always fits."""
        body = _encode(message)
        if sidecar is not None:
            body = encode_sidecar(body, sidecar)
        if len(body) > MAX_FRAME_BYTES:
            body = _encode(_answer_too_large(message, len(body)))
        self._outbox.force(body)

    async def run(self, attach: Callable[[HeartbeatPayload], str]) -> str:
        """Move frames until the link breaks; returns why, in words for the log.

        ``attach`` judges the first heartbeat: it returns a reason to refuse this executor, or nothing.
        """
        reason = ""
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal reason
                try:
                    while True:
                        await self._stream.send_all(await self._outbox.take())
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    reason = reason or "the executor closed its end of the socket"
                    nursery.cancel_scope.cancel()

            nursery.start_soon(write)
            reason = await self._read(attach) or reason
            nursery.cancel_scope.cancel()
        return reason

    async def _read(self, attach: Callable[[HeartbeatPayload], str]) -> str:
        decoder = FrameDecoder()
        attached = False
        while True:
            try:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
                if not data:
                    return "the executor closed its end of the socket"
                frames = [_decode(body) for body in decoder.feed(bytes(data))]
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return "the connection broke"
            except (FrameError, msgspec.DecodeError) as error:
                return f"the executor sent a frame that does not parse: {error}"
            if frames and not attached:
                first = frames[0]
                if not isinstance(first, Heartbeat):
                    return f"the executor's first frame was {type(first).__name__}, expected Heartbeat"
                if refusal := attach(first.payload):
                    return refusal
                attached = True
            self._acknowledge(frames)
            await self._sink.frames(self.executor_id, frames)

    def _acknowledge(self, frames: Sequence[FromExecutor]) -> None:
        for frame in frames:
            if type(frame) is Heartbeat:
                self.send(HeartbeatAck(HeartbeatAckPayload(heartbeat_seq=frame.payload.heartbeat_seq)))


def _answer_too_large(message: ResumeCall, size: int) -> ResumeCall:
    text = f"the answer makes a message of {size} bytes; one message holds at most {MAX_FRAME_BYTES}"
    payload = ResumeCallPayload(
        resume_kind=message.payload.resume_kind,
        error=CallError(kind="ANSWER_TOO_LARGE", message=text),
        budget_used_ms=message.payload.budget_used_ms,
    )
    return ResumeCall(message.call_id, message.request_id, payload)


def _args_too_large(call: ExecuteCall, size: int) -> CallFailed:
    payload = call.payload
    return CallFailed(
        call.call_id,
        CallFailedPayload(
            task_id=payload.task_id,
            attempt_seq=payload.attempt_seq,
            error_kind=CallErrorKind.ARGS_TOO_LARGE,
            error_message=f"the arguments make a message of {size} bytes; one message holds at most {MAX_FRAME_BYTES}",
        ),
    )
