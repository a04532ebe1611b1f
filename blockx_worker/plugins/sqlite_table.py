"""How values and names are put into SQLite.

Tables are made with columns without a type, so that each value keeps its own: integers of 64 bits as INTEGER, larger ones
as decimal TEXT, floats as REAL, strings as TEXT, booleans as 0 and 1, null as NULL, lists and objects as compact JSON TEXT.
A declared numeric type would round what it cannot hold: in a table that somebody else made such a value is a bad row.
Names are compared as SQLite does, without regard to the case of ASCII letters.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import msgspec

from blockx_worker.model.fields import MAX_SHOWN_CHARS
from blockx_worker.plugins.rows import Row, bad_row, show

__all__ = ["Column", "Columns", "Shape", "check_names", "fold", "quote"]

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
MAX_EXACT_REAL = 2**53
MAX_SHAPES = 1000

_lower = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_encode = msgspec.json.Encoder().encode


@attrs.frozen
class Column:
    """A column: its name, and the largest integer that its declared type keeps exactly (None = any)."""

    name: str
    exact_up_to: int | None

    @classmethod
    def declared(cls, name: str, declaration: str) -> Column:
        """Affinity by SQLite's rules for declared types."""
        words = declaration.upper()
        if "INT" in words:
            return cls(name, MAX_INT64)
        if not words or any(word in words for word in ("CHAR", "CLOB", "TEXT", "BLOB")):
            return cls(name, None)
        real = any(word in words for word in ("REAL", "FLOA", "DOUB"))
        return cls(name, MAX_EXACT_REAL if real else MAX_INT64)


@attrs.frozen
class Shape:
    """Rows with the same keys: the statement that inserts them, and key and column of each value."""

    statement: str
    columns: Sequence[tuple[str, Column]]

    def cells(self, row: Row) -> list[Any]:
        """The values as SQLite takes them; StepFailed for one that the column would change."""
        values = row.values
        return [_cell(values[key], row, column) for key, column in self.columns]


class Columns:
    """The columns of an existing table, and the shapes of rows that go into it."""

    def __init__(self, table: str, columns: Iterable[Column], selected: Sequence[str] | None) -> None:
        self._table = table
        self._by_name = {fold(column.name): column for column in columns}
        self._selected = selected
        self._shapes: dict[tuple[str, ...], Shape] = {}

    @property
    def names(self) -> list[str]:
        """Names in the table's order."""
        return [column.name for column in self._by_name.values()]

    def __contains__(self, name: str) -> bool:
        return fold(name) in self._by_name

    def shape(self, keys: tuple[str, ...], row: Row) -> Shape:
        """The shape of rows with these (checked) keys; StepFailed for keys that have no column."""
        shape = self._shapes.get(keys)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[keys] = self._make_shape(keys, row)
        return shape

    def _make_shape(self, keys: tuple[str, ...], row: Row) -> Shape:
        taken = keys if self._selected is None else [key for key in self._selected if key in row.values]
        if not taken:
            raise bad_row(row, f"the row has none of the columns {', '.join(self._selected or ())}")
        for key in taken:
            if key not in self:
                raise bad_row(row, self._unknown(), key)
        columns = [(key, self._by_name[fold(key)]) for key in taken]
        names = ", ".join(quote(column.name) for _, column in columns)
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {quote(self._table)} ({names}) VALUES ({marks})"  # noqa: S608 - quoted names
        return Shape(statement, columns)

    def _unknown(self) -> str:
        return (
            f'table "{self._table}" has no such column, it has {", ".join(self.names)}; '
            "add the column to the table, or name the columns to write in resultHandler.columns"
        )


def quote(name: str) -> str:
    """The name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def fold(name: str) -> str:
    """The name as SQLite compares it."""
    return name.translate(_lower)


def check_names(names: Sequence[str], row: Row) -> None:
    """StepFailed for names that can never be the columns of one table."""
    seen: dict[str, str] = {}
    for name in names:
        if not name or "\0" in name:
            raise bad_row(row, "a column name cannot be empty or hold the character NUL", name)
        other = seen.setdefault(fold(name), name)
        if other != name:
            raise bad_row(row, f'SQLite does not tell it from the column "{other}"; rename one of them', name)


def _cell(value: Any, row: Row, column: Column) -> Any:
    kind = type(value)
    if kind is int:
        return _integer(value, row, column)
    if kind is str:
        if column.exact_up_to is not None:
            _check_digits(value, row, column)
        return value
    if kind is bool:
        return int(value)
    if kind is dict or kind is list:
        return _json(value, row, column)
    return value


def _json(value: Any, row: Row, column: Column) -> str:
    try:
        return _encode(value).decode()
    except RecursionError:
        raise bad_row(row, "the value is nested too deeply to be stored", column.name) from None


def _integer(value: int, row: Row, column: Column) -> int | str:
    if column.exact_up_to is not None:
        _check_exact(value, row, column)
    return value if MIN_INT64 <= value <= MAX_INT64 else str(value)


def _check_digits(text: str, row: Row, column: Column) -> None:
    """A text of digits becomes a number in a numeric column."""
    digits = text.removeprefix("-").lstrip("0")
    if digits.isdecimal() and digits.isascii():
        _check_exact(int(digits[:MAX_SHOWN_CHARS]), row, column)


def _check_exact(value: int, row: Row, column: Column) -> None:
    assert column.exact_up_to is not None
    if abs(value) > column.exact_up_to and value != MIN_INT64:
        problem = f"{show(value)} does not fit the numeric type of this column, which would round it; declare it TEXT"
        raise bad_row(row, problem, column.name)
