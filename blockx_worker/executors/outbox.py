"""The bounded queue of encoded frames between the actor and one connection's writer."""

from __future__ import annotations

from collections import deque

import trio

from blockx_executor.wire.framing import join_frames

__all__ = ["Outbox"]


class Outbox:
    """Frames wait here until the socket takes them.

    ``offer`` refuses when ``limit`` frames wait, so that a stuck executor pushes back on dispatch. Control frames
    (cancel, resume, acks) are ``force``d past the limit: there are at most a few per call aboard, and a call must
    stay cancellable when the queue is full.
    """

    def __init__(self, limit: int, coalesce: int) -> None:
        self._limit = limit
        self._coalesce = coalesce
        self._frames: deque[bytes] = deque()
        self._filled = trio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def offer(self, body: bytes) -> bool:
        """Queue a frame; False when the queue is full."""
        if len(self._frames) >= self._limit:
            return False
        self.force(body)
        return True

    def force(self, body: bytes) -> None:
        """Queue a frame whatever waits already."""
        self._frames.append(body)
        self._filled.set()

    async def take(self) -> bytes | bytearray:
        """Wait for frames and take up to ``coalesce`` of them, joined for one send."""
        if not self._frames:
            self._filled = trio.Event()
            await self._filled.wait()
        frames = self._frames
        return join_frames([frames.popleft() for _ in range(min(len(frames), self._coalesce))])
