"""Frames on the byte stream between worker and executor.

A frame is a 4-byte big-endian length and a body of at most `MAX_FRAME_BYTES`. A body is a JSON message, or, when raw
bytes travel beside the message, a sidecar: ``BXB1``, a 4-byte big-endian JSON length, the JSON, the raw bytes.

The decoder refuses an over-long length as soon as it has read it, before a single byte of that body is kept.
A frame that arrives in many pieces is joined once, when its last byte is there, so a big frame costs linear time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = [
    "MAX_FRAME_BYTES",
    "SIDECAR_MAGIC",
    "FrameDecoder",
    "FrameError",
    "SplitBody",
    "encode_frame",
    "encode_sidecar",
    "join_frames",
    "split_body",
]

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
SIDECAR_MAGIC: Final = b"BXB1"

_PREFIX_BYTES: Final = 4
_SIDECAR_HEAD_BYTES: Final = 8


class FrameError(ValueError):
    """The peer broke the framing; the connection cannot be used any further."""


class SplitBody(NamedTuple):
    """A frame's body in its two parts; ``raw`` is None when the body carries no sidecar."""

    json: bytes
    raw: bytes | None


def encode_frame(body: bytes) -> bytes:
    """The frame of ``body``; `FrameError` when it is longer than `MAX_FRAME_BYTES`."""
    return _prefix(body) + body


def join_frames(bodies: Iterable[bytes]) -> bytes:
    """The frames of all ``bodies``, one after the other, ready for one send."""
    parts: list[bytes] = []
    for body in bodies:
        parts.append(_prefix(body))
        parts.append(body)
    return b"".join(parts)


class FrameDecoder:
    """Turns received bytes into frame bodies, whatever way the bytes were cut."""

    __slots__ = ("_chunks", "_held", "_needed")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = _PREFIX_BYTES

    @property
    def held_bytes(self) -> int:
        """How many bytes of an unfinished frame are kept."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that ``data`` completes, in order; `FrameError` on a length above `MAX_FRAME_BYTES`."""
        if self._held + len(data) < self._needed:
            self._keep(data)
            return []
        if self._held:
            data = b"".join((*self._chunks, data))
            self._chunks.clear()
            self._held = 0
        return self._cut(data)

    def _cut(self, data: bytes) -> list[bytes]:
        bodies: list[bytes] = []
        add, number, size, start = bodies.append, int.from_bytes, len(data), 0
        needed = _PREFIX_BYTES
        while size - start >= _PREFIX_BYTES:
            body_start = start + _PREFIX_BYTES
            length = number(data[start:body_start], "big")
            if length > MAX_FRAME_BYTES:
                raise _too_long(length)
            end = body_start + length
            if end > size:
                needed = _PREFIX_BYTES + length
                break
            add(data[body_start:end])
            start = end
        self._needed = needed
        if start < size:
            self._keep(data[start:])
        return bodies

    def _keep(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self._held += len(data)


def encode_sidecar(json: bytes, raw: bytes) -> bytes:
    """The body that carries ``raw`` beside the JSON message ``json``."""
    return b"".join((SIDECAR_MAGIC, len(json).to_bytes(4, "big"), json, raw))


def split_body(body: bytes) -> SplitBody:
    """The JSON and the raw bytes of a frame's body; `FrameError` when a sidecar's JSON length is not true."""
    if not body.startswith(SIDECAR_MAGIC):
        return SplitBody(body, None)
    if len(body) < _SIDECAR_HEAD_BYTES:
        raise FrameError(f"A sidecar body of {len(body)} bytes ends before its JSON length.")
    end = _SIDECAR_HEAD_BYTES + int.from_bytes(body[4:8], "big")
    if end > len(body):
        raise FrameError(
            f"A sidecar body says that its JSON has {end - _SIDECAR_HEAD_BYTES} bytes, "
            f"but only {len(body) - _SIDECAR_HEAD_BYTES} bytes follow."
        )
    return SplitBody(body[_SIDECAR_HEAD_BYTES:end], body[end:])


def _prefix(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise _too_long(len(body))
    return len(body).to_bytes(_PREFIX_BYTES, "big")


def _too_long(length: int) -> FrameError:
    return FrameError(f"A frame of {length} bytes is longer than the limit of {MAX_FRAME_BYTES} bytes.")
