"""From the outputs of calls to rows.

An output is a row (an object), a list of rows, or null for none. Whatever else it is, and whatever a row cannot be, is
a *bad row*: a failure that names the output, the row in it and the column, so that a person finds the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from blockx_worker.model.fields import shorten
from blockx_worker.plugins.config import plugin_failed
from blockx_worker.ports import OutputLines, StepFailed

__all__ = [
    "BLOCK_COLUMN",
    "BatchOutputs",
    "ColumnKinds",
    "OutputCursor",
    "Row",
    "bad_row",
    "block_of",
    "read_output",
    "show",
]

BLOCK_COLUMN = "block_number"
MAX_SHAPES = 1000
OUTPUT_OVERHEAD_BYTES = 64  # of an output in memory, beside its text

_decode = msgspec.json.Decoder().decode


class Row(NamedTuple):
    """One row: the index of its output, its position if the output is a list, its columns."""

    output: int
    position: int | None
    values: dict[str, Any]


class OutputCursor:
    """Reads outputs forwards; going on from where the last reading stopped, or further on, never starts anew."""

    def __init__(self, outputs: OutputLines, first: int = 0) -> None:
        self._outputs = outputs
        self._next = first
        self._lines = outputs.lines(first)

    def lines(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield (index, JSON text) from ``start`` on; only one such reading at a time."""
        if start < self._next:
            self._next, self._lines = start, self._outputs.lines(start)
        for _ in islice(self._lines, start - self._next):
            self._next += 1
        for line in self._lines:
            index = self._next
            self._next += 1
            yield index, line


class BatchOutputs:
    """`OutputLines` over some outputs of a stream, which begin with the index ``first``; None = null."""

    def __init__(self, first: int, outputs: Sequence[bytes | None]) -> None:
        self._first = first
        self._outputs = outputs
        self.count = first + len(outputs)
        self.size = sum(len(output) for output in outputs if output) + len(outputs) * OUTPUT_OVERHEAD_BYTES

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """JSON text of each output from index ``start`` on."""
        for position in range(start - self._first, len(self._outputs)):
            yield self._outputs[position] or b"null"


class ColumnKinds:
    """The columns of rows in order of appearance, each with the Python types of its values so far.

    ``check`` is asked for each new set of columns, with the first row that has it.
    """

    def __init__(self, check: Callable[[Sequence[str], Row], None]) -> None:
        self.kinds: dict[str, set[type]] = {}
        self._check = check
        self._seen: set[tuple[object, ...]] = set()

    def add(self, row: Row) -> None:
        """Take note of a row; StepFailed if its columns cannot be."""
        names = tuple(row.values)
        shape = (names, *map(type, row.values.values()))
        if shape in self._seen:
            return
        if len(self._seen) >= MAX_SHAPES:
            self._seen.clear()
        if names not in self._seen:
            self._check(names, row)
            self._seen.add(names)
        self._seen.add(shape)
        for name, value in row.values.items():
            self.kinds.setdefault(name, set()).add(type(value))


def read_output(index: int, line: bytes) -> list[Row]:
    """The rows of one output; StepFailed for a bad row."""
    try:
        value = _value(line)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise plugin_failed(f"bad row: output {index}: its JSON cannot be read: {error}") from None
    if isinstance(value, dict):
        return [_checked(Row(index, None, value))]
    if isinstance(value, list):
        return [_checked(Row(index, i, item)) for i, item in enumerate(value)]
    if value is None:
        return []
    raise plugin_failed(
        f"bad row: output {index}: expected a row (an object), a list of rows or null, got {show(value)}"
    )


def bad_row(row: Row, problem: str, column: str | None = None) -> StepFailed:
    """The failure that names the row, and the column where there is one."""
    position = "" if row.position is None else f", row {row.position}"
    place = "" if column is None else f', column "{shorten(column)}"'
    return plugin_failed(f"bad row: output {row.output}{position}{place}: {problem}")


def block_of(row: Row, blocks: tuple[int, int]) -> int:
    """The row's block, which has to lie in the task's range."""
    if BLOCK_COLUMN not in row.values:
        raise bad_row(row, "is missing; replace_block needs the block of each row", BLOCK_COLUMN)
    block = row.values[BLOCK_COLUMN]
    if type(block) is not int:
        raise bad_row(row, f"expected an integer, got {show(block)}", BLOCK_COLUMN)
    if not blocks[0] <= block <= blocks[1]:
        raise bad_row(
            row, f"expected a block of the task ({blocks[0]} to {blocks[1]}), got {block}", BLOCK_COLUMN
        )
    return block


def show(value: object) -> str:
    """A value as JSON text, shortened."""
    return shorten(msgspec.json.encode(value).decode())


def _value(line: bytes) -> Any:
    try:
        return _decode(line)
    except msgspec.ValidationError:
        # The fast decoder counts a minus sign as a digit, so a negative int of full length gets a second chance. The
        # other one takes what no row may hold, infinities and lone surrogates; writing it out again finds them.
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return value


def _checked(row: Row) -> Row:
    if not isinstance(row.values, dict):
        raise bad_row(row, f"expected an object, got {show(row.values)}")
    if not row.values:
        raise bad_row(row, "the row has no columns; return null for no row")
    return row
