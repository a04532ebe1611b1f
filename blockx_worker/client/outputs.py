"""Outputs of tasks: from pieces of bytes to lines, and from lines to values. Integers keep every digit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, overload

import msgspec

__all__ = ["LineJoiner", "Outputs", "decode_line"]

_decode = msgspec.json.Decoder().decode


def decode_line(line: bytes) -> Any:
    """The value of one output line. The fast decoder refuses some very long integers that the slow one takes."""
    try:
        return _decode(line)
    except msgspec.DecodeError:
        return json.loads(line)


class LineJoiner:
    """Cuts a stream of pieces into lines; a line may span any number of pieces."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end inside ``piece``, without their newlines."""
        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = []
        if rest:
            self._begun.append(rest)
        return lines


class Outputs(Sequence[Any]):
    """The outputs of a task in call order, decoded when they are looked at. `lines` holds the JSON text of each."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = list(lines)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Outputs: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Outputs(self.lines[index])
        return decode_line(self.lines[index])

    def __repr__(self) -> str:
        return f"<{len(self)} outputs>"
