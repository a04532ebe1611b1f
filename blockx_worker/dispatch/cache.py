"""Results of one task's calls by key: successes only, the least recently used go first.

Bounded by memory, not by entries: an entry costs its texts and what Python adds around them, so that a million
one-byte results do not take ten times the limit. `OrderedDict` and not `dict`: taking the oldest key of a dict that
is always full walks over the holes of all keys removed before (quadratic).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

__all__ = ["ENTRY_OVERHEAD_BYTES", "CallCache", "CallKey"]

CallKey: TypeAlias = tuple[str, bytes]
"""Function code and entry, and the text of the arguments."""

ENTRY_OVERHEAD_BYTES = 320
"""Measured: key tuple, two bytes objects and the dictionary's entry and link."""


class CallCache:
    """An LRU of at most ``max_bytes``; 0 keeps nothing."""

    __slots__ = ("_entries", "_max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._entries: OrderedDict[CallKey, bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: CallKey) -> bool:
        return key in self._entries

    def get(self, key: CallKey) -> bytes | None:
        """The output for a key, which thereby becomes the most recently used."""
        output = self._entries.get(key)
        if output is not None:
            self._entries.move_to_end(key)
        return output

    def put(self, key: CallKey, output: bytes) -> None:
        """Keep the output of a key that is not there; one that is larger than the whole cache is not kept."""
        cost = len(key[1]) + len(output) + ENTRY_OVERHEAD_BYTES
        if cost > self._max_bytes:
            return
        self._entries[key] = output
        self.used_bytes += cost
        while self.used_bytes > self._max_bytes:
            self._evict()

    def shrink(self, count: int) -> int:
        """Forget up to ``count`` entries; how many. A full cache is taken apart in slices: at once costs 10 ms."""
        count = min(count, len(self._entries))
        for _ in range(count):
            self._evict()
        return count

    def counted_bytes(self) -> int:
        """What ``used_bytes`` must be."""
        return sum(len(key[1]) + len(out) + ENTRY_OVERHEAD_BYTES for key, out in self._entries.items())

    def _evict(self) -> None:
        key, output = self._entries.popitem(last=False)
        self.used_bytes -= len(key[1]) + len(output) + ENTRY_OVERHEAD_BYTES
