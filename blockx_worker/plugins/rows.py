"""From the outputs of calls to rows.

An output is a row (an object), a list of rows, or null for none. Whatever else it is, and whatever a row cannot be, is
a *bad row*: a failure that names the output, the row in it and the column, so that a person finds the call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from blockx_worker.model.fields import shorten
from blockx_worker.plugins.config import plugin_failed
from blockx_worker.ports import OutputLines, StepFailed

__all__ = ["BLOCK_COLUMN", "OutputCursor", "Row", "bad_row", "block_of", "read_output", "show"]

BLOCK_COLUMN = "block_number"

_decode = msgspec.json.Decoder().decode


class Row(NamedTuple):
    """One row: the index of its output, its position if the output is a list, its columns."""

    output: int
    position: int | None
    values: dict[str, Any]


class OutputCursor:
    """Reads outputs forwards; going on from where the last reading stopped, or further on, never starts anew."""

    def __init__(self, outputs: OutputLines) -> None:
        self._outputs = outputs
        self._next = 0
        self._lines = outputs.lines()

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
