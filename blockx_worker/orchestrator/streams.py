"""Calls that are made while earlier ones run, and outputs that are written meanwhile.

The dispatcher grants a stream credits, one for each batch that may be outstanding; a batch that has settled goes to the
writer, and gives its credit back. A stream takes its next step only with a credit in hand *and* the writer not too far
behind, so that neither arguments nor outputs pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import aclosing

import attrs
import trio

from blockx_worker.dispatch.commands import BatchSettled
from blockx_worker.dispatch.source import CallBatch
from blockx_worker.ports import BatchWriter, CallStream

__all__ = ["Production", "WriteQueue"]


class Production:
    """The producing side of one task: credits, and the writer's backlog as a brake."""

    def __init__(self, stream: CallStream, writes: WriteQueue | None) -> None:
        self._stream = stream
        self._writes = writes
        self._credits = trio.Semaphore(0)
        self.scope = trio.CancelScope()

    def grant(self, batches: int) -> None:
        """The dispatcher takes so many batches more."""
        for _ in range(batches):
            self._credits.release()

    async def run(self, produced: Callable[[CallBatch], None]) -> None:
        """Make batches until the stream ends; raises what the stream raises."""
        with self.scope:
            async with aclosing(self._stream.batches()) as batches:
                while True:
                    await self._credits.acquire()
                    if self._writes is not None:
                        await self._writes.wait_for_room()
                    batch = await anext(batches, None)
                    if batch is None:
                        return
                    produced(batch)


@attrs.define(eq=False)
class WriteQueue:
    """Settled batches on their way to the writer, at most ``limit`` before the stream is held up."""

    limit: int
    _batches: deque[BatchSettled] = attrs.field(factory=deque)
    _news: trio.Event = attrs.field(factory=trio.Event)
    _room: trio.Event = attrs.field(factory=trio.Event)
    _closed: bool = False

    def put(self, batch: BatchSettled) -> None:
        """A batch has settled."""
        self._batches.append(batch)
        self._news.set()

    async def wait_for_room(self) -> None:
        """Wait until fewer than ``limit`` batches wait to be written."""
        while len(self._batches) >= self.limit:
            self._room = trio.Event()
            await self._room.wait()

    def close(self, *, drain: bool) -> None:
        """No batch follows; with ``drain`` those that wait are written first, without they are dropped."""
        self._closed = True
        if not drain:
            self._batches.clear()
        self._news.set()

    async def run(self, writer: BatchWriter, stage: trio.CapacityLimiter) -> None:
        """Write batch after batch, each with a place in the plugin stage, until closed; raises what the writer raises."""
        while True:
            while not self._batches:
                if self._closed:
                    return
                self._news = trio.Event()
                await self._news.wait()
            batch = self._batches.popleft()
            self._room.set()
            async with stage:
                await writer.write(batch.first_index, batch.outputs, batch.blocks_done)
