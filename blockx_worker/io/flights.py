"""One request to a back end and everybody who waits for its answer.

The request runs in a Trio task of its own, not in that of whoever asked first: when the first one leaves, because its
call ended, the others lose nothing. When the last one leaves, the request is cancelled.
"""

from __future__ import annotations

from math import inf

import attrs
import trio

from blockx_worker.io.answers import RequestKey
from blockx_worker.ports import IoAnswer

__all__ = ["Flight"]


@attrs.define(eq=False)
class Flight:
    """A request that waits for its turn, then is with the back end, then is over (and has its ``answer``).

    ``key``: what equal requests share it by; None = nobody may.
    """

    key: RequestKey | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answer: IoAnswer | None = None
    _begun: trio.Event = attrs.field(factory=trio.Event)
    _over: trio.Event = attrs.field(factory=trio.Event)
    _waiting: int = 0

    def begin(self) -> None:
        """The back end has the request: from now on its waiters pay."""
        self._begun.set()

    def end(self, answer: IoAnswer) -> None:
        """The answer is there, be it that the request never began."""
        self.answer = answer
        self._begun.set()
        self._over.set()

    async def wait(self, budget_ms: int) -> IoAnswer | None:
        """The answer with the time that this waiter waited for it; None when its budget (0 = none) ended first."""
        self._waiting += 1
        try:
            await self._begun.wait()
            since = trio.current_time()
            with trio.move_on_after(budget_ms / 1000 if budget_ms else inf):
                await self._over.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.scope.cancel()
        if self.answer is None:
            return None
        return attrs.evolve(self.answer, used_ms=round((trio.current_time() - since) * 1000))
