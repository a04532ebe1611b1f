"""Writes rows to SQLite: one connection, one table, one transaction after the other.

* A file that the worker creates gets the write-ahead log, so that readers and the writer do not wait for each other; an
  existing one keeps its journal mode. Commits are durable (``synchronous`` stays FULL).
* Transactions begin IMMEDIATE. While another process holds the lock the wait is made of short ones, so that a stop is
  heard; after the busy time-out the task fails with a sentence that names the file.
* The ledger of appends is the table ``blockx_write_ledger``, one row per task and table. It is small; old rows may be deleted
  once their tasks will never run again. ``blockx_made_tables`` says which task made a table: that task, and no other, adds
  columns for keys that come later.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, groupby
from pathlib import Path

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.plugins.database import Kinds, LedgerEntry, Writing
from blockx_worker.plugins.rows import BLOCK_COLUMN, Row, bad_row
from blockx_worker.plugins.sqlite_errors import explain, primary_code
from blockx_worker.plugins.sqlite_table import Column, Columns, check_names, fold, quote
from blockx_worker.ports import WriteStopped

__all__ = ["SqliteDatabase"]

BUSY_STEP_MS = 50
CHECK_EVERY = 200
UNKNOWN = -1  # outputs of a task that has not brought its last one yet

_CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS blockx_write_ledger (
    task_id TEXT NOT NULL,
    table_name TEXT NOT NULL COLLATE NOCASE,
    next_output INTEGER NOT NULL,
    outputs INTEGER NOT NULL,
    updated_unix_ms INTEGER NOT NULL,
    PRIMARY KEY (task_id, table_name)
) WITHOUT ROWID
"""
_READ_LEDGER = "SELECT next_output, outputs FROM blockx_write_ledger WHERE task_id = ? AND table_name = ?"
_WRITE_LEDGER = "INSERT OR REPLACE INTO blockx_write_ledger VALUES (?, ?, ?, ?, ?)"
_CREATE_MADE = """
CREATE TABLE IF NOT EXISTS blockx_made_tables (
    table_name TEXT NOT NULL COLLATE NOCASE PRIMARY KEY,
    task_id TEXT NOT NULL,
    made_unix_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
_READ_MADE = "SELECT 1 FROM blockx_made_tables WHERE table_name = ? AND task_id = ?"
_WRITE_MADE = "INSERT OR REPLACE INTO blockx_made_tables VALUES (?, ?, ?)"


class SqliteDatabase:
    """A `TableDatabase` over an SQLite file."""

    max_blocks = 2**63  # a transaction locks the whole file anyway

    def __init__(
        self,
        path: str,
        table: str,
        columns: Sequence[str] | None,
        *,
        busy_timeout_ms: int,
        stopped: threading.Event,
    ) -> None:
        self._path = path
        self._table = table
        self._selected = columns
        self._busy_timeout_ms = busy_timeout_ms
        self._stopped = stopped
        self._connection: sqlite3.Connection | None = None
        self._committing = False
        self._columns: Columns | None = None
        self._schema: list[tuple[str, str]] = []

    # --- connection and transactions --------------------------------------------------------------------------

    def open(self) -> None:
        """Connect; a new file gets the write-ahead log."""
        with self._explained():
            file = Path(self._path)
            new = not file.exists() or (file.is_file() and file.stat().st_size == 0)
            # Threads take turns with the connection; none uses it while another does.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_STEP_MS / 1000, isolation_level=None, check_same_thread=False
            )
            if new:
                self._patiently("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Make the running statement fail soon. A commit is left alone: its outcome is wanted."""
        connection = self._connection
        if connection is not None and not self._committing:
            connection.interrupt()

    def begin(self) -> None:
        """Begin as the only writer, waiting for other processes up to the busy time-out."""
        with self._explained():
            self._patiently("BEGIN IMMEDIATE")
            self._read_schema()

    def commit(self) -> None:
        """Make the transaction durable."""
        self._committing = True
        try:
            with self._explained():
                self._patiently("COMMIT")
        finally:
            self._committing = False

    def rollback(self) -> None:
        """Undo the transaction if there is one (SQLite has ended it itself after some errors)."""
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):  # closing the connection undoes it as well
                self._connection.execute("ROLLBACK")

    # --- the table --------------------------------------------------------------------------------------------

    def check_columns(self, names: Sequence[str], row: Row) -> None:
        """Refuse names that can never be columns."""
        check_names(names, row)

    def ensure_table(self, columns: Mapping[str, Kinds], writing: Writing) -> None:
        """Make the table with these columns (or the configured ones) if it is missing, and an index of its blocks.

        If this task made it, columns that it does not have yet are added.
        """
        names = list(self._selected or columns)
        if self._columns is None:
            self._make_table(names, writing)
        elif missing := [name for name in names if name not in self._columns]:
            self._add_columns(self._columns, missing, writing)

    def insert(self, rows: Iterable[Row]) -> int:
        """Insert in order; rows with the same keys in a row are one statement."""
        assert self._columns is not None
        written = 0
        for keys, run in groupby(rows, key=_keys):
            written += self._insert_run(self._columns, keys, run)
        return written

    def lock_blocks(self, first: int, last: int) -> None:
        """The transaction has locked the whole file when it began."""

    def delete_blocks(self, first: int, last: int) -> None:
        """Delete the rows of these blocks."""
        if self._columns is None:
            return
        if BLOCK_COLUMN not in self._columns:
            # SQLite would take the quoted name of a missing column for a text, and delete nothing.
            raise plugin_failed(
                f'table "{self._table}" in {self._path} has no column "{BLOCK_COLUMN}", which replace_block needs'
            )
        column = quote(BLOCK_COLUMN)
        with self._explained():
            self._db.execute(
                f"DELETE FROM {quote(self._table)} WHERE {column} BETWEEN ? AND ?",  # noqa: S608 - quoted names
                (first, last),
            )

    def ledger(self, task_id: str) -> LedgerEntry | None:
        """How far the task has appended to this table."""
        with self._explained():
            self._db.execute(_CREATE_LEDGER)
            found = self._db.execute(_READ_LEDGER, (task_id, self._table)).fetchone()
        if found is None:
            return None
        next_output, outputs = found
        return LedgerEntry(next_output, None if outputs == UNKNOWN else outputs)

    def set_ledger(self, entry: LedgerEntry, writing: Writing) -> None:
        """Note how far it has."""
        outputs = UNKNOWN if entry.outputs is None else entry.outputs
        values = (writing.task_id, self._table, entry.next_output, outputs, writing.wall_ms)
        with self._explained():
            self._db.execute(_WRITE_LEDGER, values)

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None, "not open"
        return self._connection

    def _make_table(self, names: Sequence[str], writing: Writing) -> None:
        self._check_new(names)
        with self._explained():
            self._db.execute(f"CREATE TABLE {quote(self._table)} ({', '.join(map(quote, names))})")
            if BLOCK_COLUMN in names:
                index = quote(f"blockx_{self._table}_{BLOCK_COLUMN}")
                self._db.execute(f"CREATE INDEX {index} ON {quote(self._table)} ({quote(BLOCK_COLUMN)})")
            self._db.execute(_CREATE_MADE)
            self._db.execute(_WRITE_MADE, (self._table, writing.task_id, writing.wall_ms))
            self._read_schema()

    def _add_columns(self, columns: Columns, missing: Sequence[str], writing: Writing) -> None:
        with self._explained():
            self._db.execute(_CREATE_MADE)
            if self._db.execute(_READ_MADE, (self._table, writing.task_id)).fetchone() is None:
                return  # the rows that have them will be refused by name
            self._check_new([*columns.names, *missing])
            for name in missing:
                self._db.execute(f"ALTER TABLE {quote(self._table)} ADD COLUMN {quote(name)}")
            self._read_schema()

    def _insert_run(self, columns: Columns, keys: tuple[str, ...], rows: Iterator[Row]) -> int:
        """Insert rows that all have these keys; at least one."""
        first = current = next(rows)
        shape = columns.shape(keys, first)
        count = 0

        def cells() -> Iterator[list[object]]:
            nonlocal current, count
            for count, current in enumerate(chain((first,), rows), start=1):
                if not count % CHECK_EVERY and self._stopped.is_set():
                    raise WriteStopped
                yield shape.cells(current)

        try:
            with self._explained():
                self._db.executemany(shape.statement, cells())
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise bad_row(current, f'table "{self._table}" refused it: {error}') from error
        return count

    def _read_schema(self) -> None:
        """The table as it is in this transaction; other programs may have changed it since the last."""
        schema = self._db.execute("SELECT name, type FROM pragma_table_info(?)", (self._table,)).fetchall()
        if schema == self._schema:
            return
        self._schema = schema
        self._columns = None
        if schema:
            columns = [Column.declared(name, declaration) for name, declaration in schema]
            self._columns = Columns(self._table, columns, self._selected)
            self._check_selected(self._columns)

    def _check_selected(self, columns: Columns) -> None:
        for name in self._selected or ():
            if name not in columns:
                raise plugin_failed(
                    f'resultHandler.columns: table "{self._table}" in {self._path} has no column "{name}"; '
                    f"it has {', '.join(columns.names)}"
                )

    def _check_new(self, names: Sequence[str]) -> None:
        limit = self._db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)
        if len(names) > limit:
            raise plugin_failed(
                f'table "{self._table}" would have {len(names)} columns, and SQLite takes {limit}; '
                "name those to write in resultHandler.columns"
            )
        folded: dict[str, str] = {}
        for name in names:
            other = folded.setdefault(fold(name), name)
            if other != name:
                raise plugin_failed(
                    f'rows have the columns "{other}" and "{name}", which SQLite does not tell apart; rename one of them'
                )

    def _patiently(self, statement: str) -> None:
        """Run a statement that needs a lock, again and again while another process holds it."""
        rounds = self._busy_timeout_ms // (2 * BUSY_STEP_MS)  # a round waits in SQLite and then here
        while True:
            try:
                self._db.execute(statement)
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or rounds <= 0:
                    raise
            else:
                return
            rounds -= 1
            if self._stopped.wait(BUSY_STEP_MS / 1000) and not self._committing:
                raise WriteStopped

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the database says into a sentence; what it says of one row passes through."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError):
            raise
        except sqlite3.Error as error:
            if self._stopped.is_set() and primary_code(error) == sqlite3.SQLITE_INTERRUPT:
                raise WriteStopped from None
            raise explain(error, self._path, self._busy_timeout_ms) from error
        except OSError as error:
            raise plugin_failed(f"database {self._path} cannot be used: {error.strerror}") from error


def _keys(row: Row) -> tuple[str, ...]:
    return tuple(row.values)
