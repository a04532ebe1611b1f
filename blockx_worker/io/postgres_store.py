"""Block tables in a PostgreSQL database.

A row's block is its ``block_number`` (``number`` in the table ``blocks``), of an integer type or NUMERIC. The server makes the
JSON text of each row: numbers come out exactly, ``bytea`` as ``0x…`` hex, times as ISO 8601 in UTC, JSON columns as they are.
Numbers that JSON has no word for (``NaN``, ``Infinity``) come out as strings.

Which blocks are known follows the rule of the folder store: with a table ``blocks`` in the schema, those in it; without one,
those from the first to the last block of the table that is read. Anything else is an error, never an empty answer.

Rows of a block come in the order of the ``order_columns`` that the table has, then of its primary key, then as they lie in the
table. An index on the block column makes reading fast; one that goes on with the order columns saves sorting.

A reading is one transaction that sees one state of the database, and fetches its rows in pieces. While it is open, the server
cannot clean up after later changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from blockx_worker.io.block_index import check_interrupted
from blockx_worker.io.postgres import PostgresLimits, psycopg_problem, shown_url
from blockx_worker.model.fields import shorten
from blockx_worker.ports import BlockNotFound, BlockStoreError, TableNotFound

if TYPE_CHECKING:
    from blockx_worker.io.postgres_connection import WatchedConnection  # needs the driver

__all__ = ["ORDER_COLUMNS", "PostgresBlockStore"]

BLOCKS_TABLE = "blocks"
ORDER_COLUMNS = ("transaction_index", "log_index")
INTEGER_TYPES = ("int2", "int4", "int8", "numeric")
FETCH_ROWS = 500
KINDS_WITH_PLACES = ("r", "m")  # tables and materialized views: each row lies somewhere
_ROW = '"the whole row"'  # a name that no column has: a column would win

_FIND = b"""
SELECT c.oid, c.relkind::text, a.attname, t.typname, array_position(i.indkey::int2[], a.attnum)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = coalesce(%s, current_schema()) AND c.relname = %s AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
ORDER BY a.attnum
"""
_TABLES = b"""
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = coalesce(%s, current_schema()) AND c.relkind IN ('r', 'v', 'm', 'f', 'p') AND NOT c.relispartition
    AND c.relname NOT LIKE 'blockx\\_%%'
ORDER BY c.relname
"""


@attrs.frozen
class _Column:
    name: str
    type: str
    key_position: int | None


@attrs.frozen
class _Table:
    name: str
    place: str
    kind: str
    columns: tuple[_Column, ...]
    block: str

    def has(self, column: str) -> bool:
        return any(c.name == column for c in self.columns)


class PostgresBlockStore:
    """A `BlockStore` over the tables of one schema; may be used by several threads at once.

    ``schema`` None: the first one of the login's search path. BlockStoreError if the driver is missing. `close` at the end.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        order_columns: Sequence[str] = ORDER_COLUMNS,
        limits: PostgresLimits | None = None,
    ) -> None:
        if problem := psycopg_problem():
            raise BlockStoreError(problem)
        from blockx_worker.io.postgres_pool import PostgresPool  # noqa: PLC0415 - needs the driver

        self._shown = shown_url(url)
        self._schema = schema
        self._order = tuple(order_columns)
        self._limits = limits or PostgresLimits()
        self._pool = PostgresPool(url, self._limits)
        self._pool.enter()

    def close(self) -> None:
        """Close the connections that are kept for the next reading."""
        self._pool.leave()

    def tables(self) -> list[str]:
        """Names of the tables that are there, sorted."""
        with self._reading(lambda: False) as connection:
            return self._tables(connection)

    def read_blocks(
        self, table: str, first: int, last: int, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (block, JSON text of each row) for each block of the range that has rows, in order.

        TableNotFound, BlockNotFound and other BlockStoreErrors name the table or block and the database.
        """
        with self._reading(interrupted) as connection:
            found = self._find(connection, table)
            self._check_known(connection, found, first, last)
            yield from _grouped(self._rows(connection, found, first, last, interrupted))

    @contextmanager
    def _reading(self, interrupted: Callable[[], bool]) -> Iterator[WatchedConnection]:
        """A connection with a transaction that only reads; what goes wrong with it is a BlockStoreError."""
        from blockx_worker.io.postgres_connection import PostgresError, explained  # noqa: PLC0415 - needs the driver

        begin = (
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
            f"SET LOCAL statement_timeout = {self._limits.statement_timeout_ms}; "
            f"SET LOCAL lock_timeout = {self._limits.lock_timeout_ms}; "
            "SET LOCAL idle_in_transaction_session_timeout = 0; "  # the reader may wait for credit in between
            "SET LOCAL TimeZone = 'UTC'; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'"
        )
        check_interrupted(interrupted)
        try:
            with explained(self._pool.url, self._limits):
                connection = self._pool.begin(begin.encode())
                connection.stopped = interrupted
                try:
                    yield connection
                finally:
                    connection.end()
                    self._pool.give_back(connection)
        except PostgresError as error:
            check_interrupted(interrupted)
            raise BlockStoreError(str(error)) from error

    # --- finding ----------------------------------------------------------------------------------------------

    def _tables(self, connection: WatchedConnection) -> list[str]:
        return [name for (name,) in connection.execute(_TABLES, (self._schema,))]

    def _find(self, connection: WatchedConnection, name: str) -> _Table:
        table = self._look_up(connection, name)
        if table is None:
            names = ", ".join(self._tables(connection)) or "no tables"
            raise TableNotFound(f'no table "{shorten(name)}" in {self._place}, which holds {names}')
        column = next((c for c in table.columns if c.name == table.block), None)
        if column is None or column.type not in INTEGER_TYPES:
            has = "no column" if column is None else f"as {column.type} the column"
            raise BlockStoreError(
                f'table "{name}" in {self._place} has {has} "{table.block}", which has to hold the block as an integer'
            )
        return table

    def _look_up(self, connection: WatchedConnection, name: str) -> _Table | None:
        rows = connection.execute(_FIND, (self._schema, name)).fetchall() if "\0" not in name else []
        if not rows:
            return None
        ((place,),) = connection.execute(b"SELECT %s::regclass::text", (rows[0][0],))
        columns = tuple(_Column(*row[2:]) for row in rows)
        block = "number" if name == BLOCKS_TABLE else "block_number"
        return _Table(name, place, rows[0][1], columns, block)

    @property
    def _place(self) -> str:
        return self._shown if self._schema is None else f'schema "{self._schema}" of {self._shown}'

    def _check_known(self, connection: WatchedConnection, table: _Table, first: int, last: int) -> None:
        """Each block of the range is known, so that no rows means that there are none."""
        blocks = self._look_up(connection, BLOCKS_TABLE)
        if blocks is not None:
            self._require_all(connection, self._find(connection, BLOCKS_TABLE), first, last)
            return
        low, high = _bounds(connection, table)
        if low is None or first < low or last > high:
            holds = "no rows" if low is None else f"blocks {low} to {high}"
            raise BlockNotFound(
                f'blocks {first} to {last} are not all there: table "{table.name}" in {self._place} holds {holds}'
            )

    def _require_all(self, connection: WatchedConnection, blocks: _Table, first: int, last: int) -> None:
        place, column = blocks.place, _quote(blocks.block)
        statement = f"SELECT DISTINCT {column}::int8 FROM {place} WHERE {column} BETWEEN {first} AND {last}"  # noqa: S608 - quoted names, numbers
        known = {block for (block,) in connection.execute(statement.encode())}
        if len(known) == last - first + 1:
            return
        missing = next(block for block in range(first, last + 1) if block not in known)
        count = last - first + 1 - len(known)
        more = f" (and {count - 1} more of the range)" if count > 1 else ""
        low, high = _bounds(connection, blocks)
        holds = "it holds none" if low is None else f"it holds {low} to {high}"
        raise BlockNotFound(
            f'block {missing}{more} is not in table "{BLOCKS_TABLE}" in {self._place}: {holds}'
        )

    # --- reading ----------------------------------------------------------------------------------------------

    def _rows(
        self,
        connection: WatchedConnection,
        table: _Table,
        first: int,
        last: int,
        interrupted: Callable[[], bool],
    ) -> Iterator[tuple[int, bytes]]:
        with connection.cursor("blockx_rows", binary=True) as cursor:
            cursor.execute(_select(table, self._order, first, last).encode())
            while rows := cursor.fetchmany(FETCH_ROWS):
                for block, text in rows:
                    check_interrupted(interrupted)
                    # A column of the type json may hold line breaks, between values only: inside strings they are escaped.
                    yield block, text.replace(b"\n", b" ").replace(b"\r", b" ")


def _select(table: _Table, order: Sequence[str], first: int, last: int) -> str:
    """Block and JSON text (as bytes) of each row in the range."""
    block = _quote(table.block)
    columns = ", ".join(f"{_value(column)} AS {_quote(column.name)}" for column in table.columns)
    by = [table.block, *filter(table.has, order)]
    by += [c.name for c in sorted(filter(_in_key, table.columns), key=_key_position) if c.name not in by]
    places = ", ".join(map(_quote, by)) + (", ctid" if table.kind in KINDS_WITH_PLACES else "")
    return (
        f"SELECT {block}::int8, convert_to((SELECT row_to_json({_ROW}) FROM (SELECT {columns}) {_ROW})::text, 'UTF8') "  # noqa: S608 - quoted names, numbers
        f"FROM {table.place} WHERE {block} BETWEEN {first} AND {last} ORDER BY {places}"
    )


def _value(column: _Column) -> str:
    name = _quote(column.name)
    if column.type == "bytea":
        return f"'0x' || encode({name}, 'hex')"
    if column.type == "_bytea":
        items = (
            f"SELECT '0x' || encode(item, 'hex') FROM unnest({name}) WITH ORDINALITY u (item, i) ORDER BY i"  # noqa: S608 - a quoted name
        )
        return f"CASE WHEN {name} IS NOT NULL THEN ARRAY({items}) END"
    return name


def _in_key(column: _Column) -> bool:
    return column.key_position is not None


def _key_position(column: _Column) -> int:
    return column.key_position or 0


def _bounds(connection: WatchedConnection, table: _Table) -> tuple[int | None, int]:
    column = _quote(table.block)
    statement = f"SELECT min({column})::int8, max({column})::int8 FROM {table.place}"  # noqa: S608 - quoted names
    ((low, high),) = connection.execute(statement.encode())
    return low, high


def _grouped(rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, list[bytes]]]:
    block: int | None = None
    texts: list[bytes] = []
    for number, text in rows:
        if block is not None and number != block:
            yield block, texts
            texts = []
        block = number
        texts.append(text)
    if block is not None:
        yield block, texts


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
