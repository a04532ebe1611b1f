"""Writes rows to PostgreSQL: one table, one transaction after the other, rows by COPY.

* A connection is borrowed for each transaction; time-outs are set inside it, so a pooler in between is fine.
* Before a block is replaced its advisory lock is taken, on (table, block): two tasks that replace the same block at once do so
  one after the other, and the rows of exactly one of them stay. Other programs do not heed that lock.
* The server says in which line of a COPY it found a bad value; from that we know the row.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import psycopg

from blockx_worker.io.postgres_connection import PostgresError, WatchedConnection, sentence, server_message
from blockx_worker.io.postgres_pool import PostgresPool
from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import Kinds, LedgerEntry, Writing
from blockx_worker.plugins.postgres_ledger import Books, lock_key
from blockx_worker.plugins.postgres_table import Column, Columns, Shape, check_names, column_type, quote
from blockx_worker.plugins.rows import BLOCK_COLUMN, Row, bad_row
from blockx_worker.plugins.targets import PostgresTarget
from blockx_worker.ports import StepFailed, WriteStopped

__all__ = ["PostgresDatabase", "copied_line"]

CHECK_EVERY = 200
MAX_BLOCKS = 256  # the server's table of locks is shared by all its clients
BAD_ROW_CLASSES = ("22", "23", "54", "P0")
NO_POSITION = -1

_READ_TABLE = b"""
SELECT coalesce(n.nspname, %(schema)s, current_schema()), c.oid IS NOT NULL,
    a.attname, b.typname, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END, e.typname,
    a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL
FROM (SELECT to_regclass(%(place)s) AS oid) place
LEFT JOIN pg_class c ON c.oid = place.oid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
ORDER BY a.attnum
"""


class PostgresDatabase:
    """A `TableDatabase` over a table in PostgreSQL; ``schema`` None: by the search path."""

    max_blocks = MAX_BLOCKS

    def __init__(
        self,
        target: PostgresTarget,
        pool: PostgresPool,
        schema: str | None,
        table: str,
        columns: Sequence[str] | None,
        *,
        stopped: threading.Event,
    ) -> None:
        self._shown = target.shown
        self._pool = pool
        self._schema = schema
        self._table = table
        self._selected = columns
        self._stopped = stopped
        self._opened = False
        self._committing = False
        self._connection: WatchedConnection | None = None
        self._place = schema or ""
        self._columns: Columns | None = None
        self._rows: list[tuple[object, ...]] = []

    # --- connection and transactions --------------------------------------------------------------------------

    def open(self) -> None:
        """Join the pool."""
        self._opened = True
        self._pool.enter()

    def close(self) -> None:
        """Leave the pool."""
        if self._opened:
            self._opened = False
            self._pool.leave()

    def interrupt(self) -> None:
        """The connection looks at the flag by itself."""

    def begin(self) -> None:
        """Begin a transaction and look at the table."""
        limits = self._pool.limits
        statement = (
            "BEGIN ISOLATION LEVEL READ COMMITTED; "  # each statement sees what was committed while it waited for a lock
            f"SET LOCAL statement_timeout = {limits.statement_timeout_ms}; "
            f"SET LOCAL lock_timeout = {limits.lock_timeout_ms}"
        )
        with self._explained():
            self._connection = self._pool.begin(statement.encode())
            self._connection.stopped = self._is_stopped
            self._read_table()

    def commit(self) -> None:
        """Make the transaction durable; a cancellation does not touch it any more."""
        self._committing = True
        try:
            with self._explained():
                self._db.execute(b"COMMIT")
        except StepFailed as failed:
            if self._db.broken:
                problem = f"{failed.message}; whether the last transaction was written is not known"
                raise StepFailed(failed.code, problem) from failed
            raise
        finally:
            self._committing = False

    def rollback(self) -> None:
        """Undo the transaction if there is one, and give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()
            self._pool.give_back(connection)

    # --- the table --------------------------------------------------------------------------------------------

    def check_columns(self, names: Sequence[str], row: Row) -> None:
        """Refuse names that can never be columns."""
        check_names(names, row)

    def ensure_table(self, columns: Mapping[str, Kinds], writing: Writing) -> None:
        """Make the table with these columns (or the configured ones) if it is missing, and an index of its blocks.

        If this task made it, columns that it does not have yet are added, and those that have had no value yet get the type of
        their first one.
        """
        wanted = {name: column_type(columns.get(name, set())) for name in self._selected or columns}
        if not self._lacks(wanted):
            return
        with self._explained():
            self._books.lock(lock_key("make", self._place, self._table))
            self._read_table()  # another transaction may have made it while we waited
            if self._columns is None:
                self._make_table(wanted, writing)
            elif (lacking := self._lacks(wanted)) and self._books.made_by(writing.task_id):
                self._change_table(self._columns, lacking)
            self._read_table()

    def insert(self, rows: Iterable[Row]) -> int:
        """Insert in order; rows that fill the same columns in a row are one COPY."""
        assert self._columns is not None
        return sum(self._copy(shape, run) for shape, run in groupby(rows, key=self._columns.shape))

    def lock_blocks(self, first: int, last: int) -> None:
        """Wait for the locks of these blocks, in ascending order."""
        keys = [lock_key("block", self._place, self._table, block) for block in range(first, last + 1)]
        with self._explained():
            self._books.lock(*keys)

    def delete_blocks(self, first: int, last: int) -> None:
        """Delete the rows of these blocks."""
        if self._columns is None:
            return
        column = self._columns.get(BLOCK_COLUMN)
        if column is None or not column.holds_blocks:
            kind = "has no column" if column is None else f"has, as {column.type}, the column"
            raise plugin_failed(
                f'table "{self._table}" in {self._shown} {kind} "{BLOCK_COLUMN}", which replace_block needs as an integer'
            )
        with self._explained():
            statement = f"DELETE FROM {self._name} WHERE {quote(BLOCK_COLUMN)} BETWEEN {first} AND {last}"  # noqa: S608 - quoted names, numbers
            self._db.execute(statement.encode())

    def ledger(self, task_id: str) -> LedgerEntry | None:
        """How far the task has appended to this table."""
        with self._explained():
            self._books.lock(lock_key("ledger", self._place, self._table, task_id))
            return self._books.read_ledger(task_id)

    def set_ledger(self, entry: LedgerEntry, writing: Writing) -> None:
        """Note how far it has."""
        with self._explained():
            self._books.write_ledger(entry, writing)

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _db(self) -> WatchedConnection:
        assert self._connection is not None, "no transaction"
        return self._connection

    @property
    def _books(self) -> Books:
        return Books(self._db, self._place, self._table)

    @property
    def _name(self) -> str:
        return f"{quote(self._place)}.{quote(self._table)}"

    def _is_stopped(self) -> bool:
        return self._stopped.is_set() and not self._committing

    def _lacks(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Columns that are not there, or are TEXT perhaps only because no value said what they hold."""
        lacking = {}
        for name, type_ in wanted.items():
            column = self._columns.get(name) if self._columns is not None else None
            if column is None or (column.type == "text" and type_ != "TEXT"):
                lacking[name] = type_
        return lacking

    def _make_table(self, types: Mapping[str, str], writing: Writing) -> None:
        columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in types.items())
        self._db.execute(f"CREATE TABLE {self._name} ({columns})".encode())
        if BLOCK_COLUMN in types:
            self._db.execute(f"CREATE INDEX ON {self._name} ({quote(BLOCK_COLUMN)})".encode())
        self._books.note_made(writing)

    def _change_table(self, columns: Columns, lacking: Mapping[str, str]) -> None:
        for name, type_ in lacking.items():
            column = quote(name)
            if columns.get(name) is None:
                change = f"ADD COLUMN {column} {type_}"
            elif self._has_values(column):
                continue
            else:
                change = f"ALTER COLUMN {column} TYPE {type_} USING {column}::{type_}"
            self._db.execute(f"ALTER TABLE {self._name} {change}".encode())

    def _has_values(self, column: str) -> bool:
        statement = f"SELECT FROM {self._name} WHERE {column} IS NOT NULL LIMIT 1"
        return self._db.execute(statement.encode()).fetchone() is not None

    def _read_table(self) -> None:
        """The table as it is now; other programs may have changed it since the last transaction."""
        place = quote(self._table) if self._schema is None else f"{quote(self._schema)}.{quote(self._table)}"
        rows = self._db.execute(_READ_TABLE, {"schema": self._schema, "place": place}).fetchall()
        if rows == self._rows:
            return
        schema, exists = rows[0][:2]
        if schema is None:
            raise plugin_failed(
                f"database {self._shown} has no schema in the search path of the login; name the table as SCHEMA.TABLE"
            )
        self._rows, self._place, self._columns = rows, schema, None
        if exists:
            columns = [Column(*row[2:]) for row in rows if row[2] is not None]
            self._columns = Columns(self._table, columns, self._selected)
            self._check_selected(self._columns)

    def _check_selected(self, columns: Columns) -> None:
        for name in self._selected or ():
            if columns.get(name) is None:
                raise plugin_failed(
                    f'resultHandler.columns: table "{self._table}" in {self._shown} has no column "{name}"; '
                    f"it has {', '.join(columns.names)}"
                )

    def _copy(self, shape: Shape, rows: Iterator[Row]) -> int:
        """Copy rows into the same columns; a row that the server refuses is found again by its number."""
        statement = f"COPY {self._name} ({shape.names}) FROM STDIN"
        places = array("q")
        try:
            with (
                self._explained(rows=True),
                self._db.cursor() as cursor,
                cursor.copy(statement.encode()) as copy,
            ):
                for count, row in enumerate(rows, start=1):
                    if not count % CHECK_EVERY and self._stopped.is_set():
                        raise WriteStopped
                    places.extend((row.output, NO_POSITION if row.position is None else row.position))
                    copy.write_row(shape.cells(row))
        except psycopg.Error as error:
            raise self._refused(error, places) from error
        return len(places) // 2

    def _refused(self, error: psycopg.Error, places: Sequence[int]) -> StepFailed:
        """The row and column that the server names, or at least the outputs that they are among."""
        problem = f'table "{self._table}" refused it: {server_message(error)}'
        line, column = copied_line(error.diag.context or "", self._table)
        if not 0 < line <= len(places) // 2:
            among = f"outputs {places[0]} to {places[-2]}" if places else "outputs"
            return plugin_failed(f"bad row: one of the {among}: {problem}")
        output, position = places[2 * line - 2 : 2 * line]
        row = Row(output, None if position == NO_POSITION else position, {})
        return bad_row(row, problem, error.diag.column_name or column)

    @contextmanager
    def _explained(self, *, rows: bool = False) -> Iterator[None]:
        """Turn what the server says into a sentence; ``rows``: what it says of a row passes through."""
        try:
            yield
        except PostgresError as error:
            self._raise_stopped()
            raise plugin_failed(str(error)) from error
        except psycopg.Error as error:
            self._raise_stopped()
            if rows and (error.sqlstate or "").startswith(BAD_ROW_CLASSES):
                raise
            raise plugin_failed(sentence(error, self._pool.url, self._pool.limits)) from error

    def _raise_stopped(self) -> None:
        if self._is_stopped():
            raise WriteStopped from None


def copied_line(context: str, table: str) -> tuple[int, str | None]:
    """The line of a COPY that the server complains of, counted from 1 (0 = none), and the column if it names one.

    It says so in its own language, such as ``COPY t, line 2, column v: "x"``.
    """
    found = re.search(
        rf"COPY {re.escape(table)}, \S+ (\d+)(?:, \S+ (.*?)(?:\s?: |$))?", context, re.MULTILINE
    )
    return (int(found[1]), found[2]) if found is not None else (0, None)
