"""How values and names are put into PostgreSQL.

A new table gets its types from the rows of its first transaction: integers NUMERIC, floats DOUBLE PRECISION, both in one column
NUMERIC, booleans BOOLEAN, strings TEXT, lists and objects JSONB, as well as columns with values of several kinds (each keeps its
own in there). A column with nothing but null is TEXT. NUMERIC and the numbers in JSONB are exact, however large.

In a table that somebody else made, values go into the types that are there, or the row is a bad row: nothing is rounded, cut
off or taken for something else. Columns of text take numbers and booleans as their JSON text; BYTEA takes texts such as
``0x00ff``, arrays take lists, all other types take the texts that PostgreSQL understands. Names are compared exactly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from types import NoneType
from typing import Any, TypeAlias

import attrs
import msgspec

from blockx_worker.plugins.database import Kinds
from blockx_worker.plugins.rows import Row, bad_row, show
from blockx_worker.plugins.write_config import MAX_POSTGRES_NAME_BYTES

__all__ = ["Column", "Columns", "Shape", "check_names", "column_type", "quote"]

MAX_SHAPES = 1000
INTEGER_TYPES = frozenset({"int2", "int4", "int8", "numeric"})
TEXT_TYPES = frozenset({"text", "varchar", "bpchar", "name", "citext"})

Encoder: TypeAlias = Callable[[Any], str]

_encode = msgspec.json.Encoder().encode
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_HEX = re.compile(r"0[xX]((?:[0-9a-fA-F]{2})*)")
_wide = Context(prec=20_000)


class _Refused(ValueError):
    """A value that the column cannot hold as it is; the text says why."""


@attrs.frozen
class Column:
    """A column of an existing table: name, base type (``element`` of an array), and whether PostgreSQL fills it if left out."""

    name: str
    type: str
    modifier: int = -1
    element: str | None = None
    has_default: bool = False
    encode: Encoder = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "encode", _encoder(self))

    @property
    def holds_blocks(self) -> bool:
        """Whether its type can be compared with block numbers."""
        return self.type in INTEGER_TYPES


@attrs.frozen
class Shape:
    """Rows that are copied by one statement: the columns in the order of the table."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> str:
        """The columns for the statement."""
        return ", ".join(quote(column.name) for column in self.columns)

    def cells(self, row: Row) -> list[str | None]:
        """The values as PostgreSQL reads them; StepFailed for one that does not fit its column."""
        get = row.values.get
        try:
            return [
                None if (value := get(column.name)) is None else column.encode(value)
                for column in self.columns
            ]
        except _Refused:
            raise self._bad_row(row) from None

    def _bad_row(self, row: Row) -> Exception:
        for column in self.columns:
            value = row.values.get(column.name)
            try:
                if value is not None:
                    column.encode(value)
            except _Refused as refused:
                return bad_row(row, str(refused), column.name)
        raise AssertionError("unreachable: one of the values was refused before")


class Columns:
    """The columns of an existing table, and the shapes of rows that go into it."""

    def __init__(self, table: str, columns: Iterable[Column], selected: Sequence[str] | None) -> None:
        self._table = table
        self._by_name = {column.name: column for column in columns}
        self._selected = selected
        self._shapes: dict[tuple[str, ...], Shape] = {}

    @property
    def names(self) -> list[str]:
        """Names in the table's order."""
        return list(self._by_name)

    def get(self, name: str) -> Column | None:
        """The column of that name."""
        return self._by_name.get(name)

    def shape(self, row: Row) -> Shape:
        """The shape of rows with these (checked) keys; StepFailed for keys that have no column."""
        keys = tuple(row.values)
        shape = self._shapes.get(keys)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[keys] = self._make_shape(keys, row)
        return shape

    def _make_shape(self, keys: tuple[str, ...], row: Row) -> Shape:
        """The keys' columns, and those that get NULL anyway if left out, so that rows of different keys share a statement."""
        taken = keys if self._selected is None else [key for key in self._selected if key in row.values]
        if not taken:
            raise bad_row(row, f"the row has none of the columns {', '.join(self._selected or ())}")
        for key in taken:
            if key not in self._by_name:
                raise bad_row(row, self._unknown(), key)
        left_out = set() if self._selected is None else set(keys) - set(taken)
        columns = (
            column
            for column in self._by_name.values()
            if column.name in taken or not (column.has_default or column.name in left_out)
        )
        return Shape(tuple(columns))

    def _unknown(self) -> str:
        return (
            f'table "{self._table}" has no such column, it has {", ".join(self.names)}; '
            "add the column to the table, or name the columns to write in resultHandler.columns"
        )


def quote(name: str) -> str:
    """The name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_names(names: Sequence[str], row: Row) -> None:
    """StepFailed for names that can never be columns."""
    for name in names:
        if not name or "\0" in name:
            raise bad_row(row, "a column name cannot be empty or hold the character NUL", name)
        if len(name.encode()) > MAX_POSTGRES_NAME_BYTES:
            problem = f"the name is longer than the {MAX_POSTGRES_NAME_BYTES} bytes that PostgreSQL keeps; shorten it"
            raise bad_row(row, problem, name)


def column_type(kinds: Kinds) -> str:
    """The type of a new column that has had values of these kinds."""
    kinds = kinds - {NoneType}
    if not kinds or kinds == {str}:
        return "TEXT"
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {float}:
        return "DOUBLE PRECISION"
    return "NUMERIC" if kinds <= {int, float} else "JSONB"


# --- values -----------------------------------------------------------------------------------------------------


def _encoder(column: Column) -> Encoder:
    if column.element is not None:
        element = Column(column.name, column.element, column.modifier)
        return lambda value: _array(value, element)
    if column.type in TEXT_TYPES:
        return _text
    if column.type == "numeric" and column.modifier >= 0:
        scale = ((column.modifier - 4) & 0x7FF ^ 0x400) - 0x400
        return lambda value: _scaled(value, scale)
    if column.type in INTEGER_TYPES:
        return lambda value: _number(value, column.type)
    return _ENCODERS.get(column.type, _other)


def _text(value: Any) -> str:
    if type(value) is not str:
        return _json(value)
    if "\0" in value:
        raise _Refused("the text holds the character NUL, which PostgreSQL cannot store")
    return value


def _json(value: Any) -> str:
    try:
        return _encode(value).decode()
    except RecursionError:
        raise _Refused("the value is nested too deeply to be stored") from None


def _number(value: Any, name: str) -> str:
    """A number, or a text that is one, as it stands (a `Decimal` of user code comes as a text)."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float:
        return repr(value)
    if kind is not str or not _NUMBER.fullmatch(value):
        raise _Refused(f"expected a number for the type {name} of this column, got {show(value)}")
    return str(value)


def _scaled(value: Any, scale: int) -> str:
    """A number for NUMERIC(precision, scale), which would round further digits."""
    text = _number(value, "numeric")
    number = Decimal(text)
    if number != number.quantize(Decimal(1).scaleb(-scale), context=_wide):
        raise _Refused(f"{show(value)} does not fit the numeric type of this column, which would round it")
    return text


def _double(value: Any) -> str:
    return _rounding(value, "double precision", float)


def _real(value: Any) -> str:
    return _rounding(value, "real", lambda text: struct.unpack("f", struct.pack("f", float(text)))[0])


def _rounding(value: Any, name: str, stored: Callable[[str], float]) -> str:
    """A number for a binary type; integers must be among those that it can hold."""
    text = _number(value, name)
    if text.removeprefix("-").isdecimal():
        try:
            exact = int(text) == int(stored(text))
        except OverflowError:
            exact = False
        if not exact:
            raise _Refused(f"{show(value)} does not fit the type {name} of this column, which would round it")
    return text


def _boolean(value: Any) -> str:
    if type(value) is not bool:
        raise _Refused(f"expected true or false for the type boolean of this column, got {show(value)}")
    return "t" if value else "f"


def _bytes(value: Any) -> str:
    found = _HEX.fullmatch(value) if type(value) is str else None
    if found is None:
        raise _Refused(f'expected bytes as a text such as "0x00ff" for this column, got {show(value)}')
    return f"\\x{found[1]}"


def _array(value: Any, element: Column) -> str:
    if type(value) is not list:
        raise _Refused(f"expected a list for the type {element.type}[] of this column, got {show(value)}")
    return "{" + ",".join(_array_item(item, element) for item in value) + "}"


def _array_item(item: Any, element: Column) -> str:
    if item is None:
        return "NULL"
    if type(item) is list and element.type not in ("json", "jsonb"):
        return _array(item, element)
    text = element.encode(item).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _other(value: Any) -> str:
    """A type that we do not know: PostgreSQL decides."""
    return _text(value)


_ENCODERS: dict[str, Encoder] = {
    "json": _json,
    "jsonb": _json,
    "bool": _boolean,
    "float8": _double,
    "float4": _real,
    "bytea": _bytes,
}
