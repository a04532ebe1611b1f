"""The answers that one task has had already, least recently used out first.

Counted is what an entry really holds: request, answer, and what Python needs around them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from blockx_worker.ports import IoAnswer

__all__ = ["AnswerCache", "RequestKey"]

# Measured: tuple, dictionary entry, answer and the heads of four byte strings.
ENTRY_BYTES = 450

RequestKey: TypeAlias = tuple[str, str, bytes]
"""Back end, operation, and the request as its raw bytes."""


class AnswerCache:
    """Successful answers by request, within `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._answers: OrderedDict[RequestKey, IoAnswer] = OrderedDict()
        self.size = 0

    def get(self, key: RequestKey) -> IoAnswer | None:
        """The answer, which becomes the last to go."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: RequestKey, answer: IoAnswer) -> None:
        """Keep an answer; one that alone is above the limit is not kept and pushes nothing out."""
        size = _size(key, answer)
        if size > self._limit:
            return
        self._drop(key)
        self._answers[key] = answer
        self.size += size
        while self.size > self._limit:
            self._drop(next(iter(self._answers)))

    def clear(self) -> None:
        """Forget everything."""
        self._answers.clear()
        self.size = 0

    def _drop(self, key: RequestKey) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.size -= _size(key, answer)


def _size(key: RequestKey, answer: IoAnswer) -> int:
    return ENTRY_BYTES + len(key[2]) + len(answer.result or b"") + len(answer.sidecar or b"")
