"""Requests that wait to be sent, and which of them go together.

The order is that of coming; what failed goes back to the head. A batch is bounded by number and bytes, and by the most
careful of its members: a request that was aboard HTTP requests without a good end goes in batches half as large each
time, at last alone, so that one that makes a server fall over takes no others with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

import attrs
import trio

from blockx_worker.io.jsonrpc import RpcCall
from blockx_worker.ports import IoAnswer

__all__ = ["Batch", "Pending", "RpcQueue"]

_FRAME_BYTES = 48
"""What a request has around method and params."""


@attrs.define(eq=False)
class Pending:
    """One request until it is answered.

    ``once``: goes alone. ``attempts``: how many counted. ``suspect``: how many of them had no good end.
    ``refused_by``: endpoints that will not take it. ``trouble``: the last thing that went wrong.
    """

    number: int
    call: RpcCall
    once: bool
    over: trio.Event = attrs.field(factory=trio.Event)
    answer: IoAnswer | None = None
    gone: bool = False
    batch: Batch | None = None
    attempts: int = 0
    suspect: int = 0
    refused_by: set[str] = attrs.field(factory=set)
    trouble: str = ""

    @property
    def size(self) -> int:
        """Its bytes in a body."""
        return len(self.call.method) + len(self.call.params) + _FRAME_BYTES

    def settle(self, answer: IoAnswer) -> None:
        """It is answered."""
        self.answer = answer
        self.over.set()


@attrs.define(eq=False)
class Batch:
    """Requests in one HTTP request; `scope` is cancelled when nobody waits for any of them."""

    members: dict[int, Pending] = attrs.field(factory=dict)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def calls(self) -> dict[int, RpcCall]:
        """The calls by number."""
        return {number: pending.call for number, pending in self.members.items()}

    def leave(self, pending: Pending) -> None:
        """Nobody waits for this one any more."""
        self.members.pop(pending.number, None)
        if not self.members:
            self.scope.cancel()


class RpcQueue:
    """The waiting requests; `changed` gives an event for the next change. Synchronous but for its events."""

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_bytes = max_batch_bytes
        self._waiting: OrderedDict[Pending, None] = OrderedDict()
        self._changed = trio.Event()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def add(self, pending: Pending) -> None:
        """A new request, at the end."""
        self._waiting[pending] = None
        self.notify()

    def put_back(self, requests: Sequence[Pending]) -> None:
        """Requests that are to be tried again, at the head in their order; those that nobody waits for are dropped."""
        for pending in reversed(requests):
            pending.batch = None
            if not pending.gone:
                self._waiting[pending] = None
                self._waiting.move_to_end(pending, last=False)
        self.notify()

    def withdraw(self, pending: Pending) -> None:
        """Nobody waits for it any more, wherever it is."""
        pending.gone = True
        self._waiting.pop(pending, None)
        if pending.batch is not None:
            pending.batch.leave(pending)

    def take(self, max_batch: int) -> Batch:
        """The first requests that may go together; empty only if none wait."""
        batch = Batch()
        room, size = max_batch, 0
        for pending in list(islice(self._waiting, max_batch)):
            room = min(room, 1 if pending.once else max(1, max_batch >> pending.suspect))
            size += pending.size
            if batch.members and (len(batch.members) >= room or size > self._max_bytes):
                break
            del self._waiting[pending]
            pending.batch = batch
            batch.members[pending.number] = pending
        return batch

    def notify(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = trio.Event()

    @property
    def changed(self) -> trio.Event:
        """Set at the next change."""
        return self._changed
