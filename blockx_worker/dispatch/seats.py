"""The choice among executors for root calls.

Subcalls take no seat: they go where their parent is, room or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor

__all__ = ["Seats"]

_FIELD = 20
_RANK_MASK = (1 << _FIELD) - 1
_STEP = (1 << 3 * _FIELD) + (1 << 2 * _FIELD) + (1 << _FIELD)


class Seats:
    """The choice among executors within one turn: least runnable, least inflight, most headroom, smallest id.

    A heap of integers that pack these four, the id as its rank in the table. Within a turn executors only fill, and a
    call more raises runnable and inflight and lowers headroom by one each: the score of a chosen executor grows by a
    constant. ``room`` is how many calls fit altogether; ``depth`` how many runnable ones one executor may have.
    """

    __slots__ = ("_heap", "_others", "_ranked", "room")

    def __init__(
        self, executors: Sequence[Executor], config: DispatcherConfig, now_ms: int, depth: int
    ) -> None:
        self._ranked = executors
        scores = []
        self.room = 0
        for rank, executor in enumerate(executors):
            executor.left = executor.room(config, now_ms, depth)
            if executor.left:
                self.room += executor.left
                scores.append(_score(executor, rank))
        sample = config.selection_sample_size or len(scores)
        self._heap = scores[:sample]
        self._others = iter(scores[sample:])
        heapify(self._heap)

    def take(self) -> Executor | None:
        """The executor for one more call; None when all are full."""
        heap = self._heap
        if not heap:
            return None
        score = heap[0]
        executor = self._ranked[score & _RANK_MASK]
        executor.left -= 1
        self.room -= 1
        if executor.left:
            heapreplace(heap, score + _STEP)
        else:
            heappop(heap)
            other = next(self._others, None)  # the next eligible one joins the sample
            if other is not None:
                heappush(heap, other)
        return executor


def _score(executor: Executor, rank: int) -> int:
    headroom = min(executor.usable_contexts - executor.inflight, _RANK_MASK)
    score = (executor.runnable << _FIELD) | executor.inflight
    return (((score << _FIELD) | (_RANK_MASK - headroom)) << _FIELD) | rank
