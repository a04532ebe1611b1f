"""The outputs of one task as sealed segments of JSON lines.

Lines stand in the order of the call list; a segment never changes once it is there and holds at most
``segment_bytes``. A reader is an offset into the joined lines, so any number of readers cost nothing. A line longer
than a segment goes on in the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import attrs

from blockx_worker.model.watch import OutputChunk

__all__ = ["OutputStore"]

_SEGMENT_OVERHEAD_BYTES = 200  # the objects around the bytes, measured with sys.getsizeof


@attrs.frozen
class _Segment:
    """``first_index``: the call whose line the first byte belongs to."""

    offset: int
    first_index: int
    data: bytes


class OutputStore:
    """Append-only; written on the Trio thread, readable from any (a list append is atomic)."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._offsets: list[int] = []
        self.count = 0
        self.output_bytes = 0

    @property
    def retained_bytes(self) -> int:
        """Memory that the outputs hold, in bytes."""
        return self.output_bytes + _SEGMENT_OVERHEAD_BYTES * len(self._segments)

    def append(self, outputs: Sequence[bytes | None]) -> None:
        """Add the outputs of the next calls; None (a failed call) becomes the line ``null``."""
        start = 0
        size = 0
        for position, output in enumerate(outputs):
            line = 5 if output is None else len(output) + 1
            if size + line > self._segment_bytes and position > start:
                self._seal(outputs[start:position])
                start, size = position, 0
            size += line
        if start < len(outputs):
            self._seal(outputs[start:])

    def _seal(self, outputs: Sequence[bytes | None]) -> None:
        data = b"\n".join([b"null" if output is None else output for output in outputs]) + b"\n"
        for cut in range(0, len(data), self._segment_bytes):  # one round unless a single line is longer
            piece = data if len(data) <= self._segment_bytes else data[cut : cut + self._segment_bytes]
            self._segments.append(_Segment(self.output_bytes, self.count, piece))
            self._offsets.append(self.output_bytes)
            self.output_bytes += len(piece)
        self.count += len(outputs)

    def read(self, offset: int) -> OutputChunk | None:
        """The piece from ``offset`` to the end of its segment; None at the end of what is there."""
        if offset >= self.output_bytes:
            return None
        segment = self._segments[bisect_right(self._offsets, offset) - 1]
        skip = offset - segment.offset
        data = segment.data[skip:] if skip else segment.data
        first = segment.first_index + (segment.data.count(b"\n", 0, skip) if skip else 0)
        return OutputChunk(offset=offset, first_index=first, count=data.count(b"\n"), json_lines=data)

    def joined(self) -> bytes:
        """All lines in one piece, for small tasks."""
        return b"".join([segment.data for segment in self._segments])

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """JSON text of each output from index ``start`` on, without its newline."""
        index = 0
        rest: list[bytes] = []
        for segment in self._segments:
            if not segment.data.endswith(b"\n"):
                rest.append(segment.data)
                continue
            data = b"".join([*rest, segment.data]) if rest else segment.data
            rest.clear()
            lines = data[:-1].split(b"\n")
            yield from lines[max(0, start - index) :]
            index += len(lines)
