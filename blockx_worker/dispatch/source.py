"""Where a task's calls come from: batches of argument lists for one function.

The dispatcher pulls; a call record exists only from entering the task window until it is done. A call list is a
stream that is already there (`ListSource`): the list stays as it was decoded, and a batch is a slice of it. What a
streaming builder makes meanwhile lies in a `StreamSource` until it is pulled; credits bound how much that can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import attrs
import msgspec

__all__ = ["CallBatch", "CallSource", "ListSource", "ResolvedFunction", "StreamSource"]


@attrs.frozen
class ResolvedFunction:
    """A function of one epoch: its id, the digest of its code and the entry inside it.

    One digest may hold several entries: ``name`` in code of one module, ``module.path:name`` in a package. ``no_cache``:
    every call runs, equal arguments or not.
    """

    function_id: str
    digest: str
    entry_selector: str
    no_cache: bool = False


@attrs.frozen
class CallBatch:
    """Consecutive calls: ``args[i]`` is the JSON array of the call with index ``first_index + i``.

    ``blocks_done``: every call of the blocks up to this one is in this batch or an earlier one; None where blocks mean
    nothing.
    """

    first_index: int
    args: Sequence[msgspec.Raw]
    blocks_done: int | None = None


class CallSource(Protocol):
    """A cursor over batches; pure, deterministic, used by one task only."""

    @property
    def function(self) -> ResolvedFunction:
        """The function that every call of this source runs."""

    @property
    def total(self) -> int | None:
        """Number of calls, None while unknown."""

    def next_batch(self) -> CallBatch | None:
        """Take the next batch; None when there is none (left)."""


class ListSource:
    """The calls of a list that is already there, in batches bounded by rows and bytes of arguments."""

    def __init__(
        self,
        function: ResolvedFunction,
        args_list: Sequence[msgspec.Raw],
        *,
        batch_max_rows: int = 8192,
        batch_max_args_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        self.function = function
        self.total: int | None = len(args_list)
        self._args = args_list
        self._next = 0
        self._max_rows = batch_max_rows
        self._max_bytes = batch_max_args_bytes

    def next_batch(self) -> CallBatch | None:
        """Take the next slice: at least one call, then as many as the bounds allow."""
        first = self._next
        args = self._args[first : first + self._max_rows]
        if not args:
            return None
        room = self._max_bytes
        for count, raw in enumerate(args):
            room -= len(raw)
            if room < 0 and count:
                args = args[:count]
                break
        self._next = first + len(args)
        return CallBatch(first, args)


class StreamSource:
    """The calls of a streaming builder: empty at first, filled by `CallBatchProduced`, ended by `CallProductionEnded`.

    The dispatcher alone calls its methods. ``made`` counts the calls so far; ``total`` is None until the end.
    """

    def __init__(self, function: ResolvedFunction) -> None:
        self.function = function
        self.total: int | None = None
        self.made = 0
        self._batches: deque[CallBatch] = deque()

    @property
    def batches_left(self) -> int:
        """Batches that have been made and not taken."""
        return len(self._batches)

    def next_batch(self) -> CallBatch | None:
        """Take the next batch that has been made; None when there is none yet, or none left once ``total`` is known."""
        return self._batches.popleft() if self._batches else None

    def add(self, batch: CallBatch) -> None:
        """The builder made one more batch."""
        self._batches.append(batch)
        self.made += len(batch.args)

    def end(self) -> None:
        """The builder makes nothing more."""
        self.total = self.made
