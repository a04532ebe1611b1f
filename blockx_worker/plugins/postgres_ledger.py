"""The worker's own tables in PostgreSQL, and the names of its locks.

They stand in the schema of the table that is written: ``blockx_write_ledger`` says how far each task has appended,
``blockx_made_tables`` which task made a table. Old rows of the ledger may be deleted once their tasks will never run again.

Locks are advisory, for one transaction, and named by a hash of 64 bits; a rare clash of two names only makes one transaction
wait. They are taken in this order: those of the blocks, ascending, or of the task's ledger; then those for making tables.
"""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg

from blockx_worker.plugins.database import LedgerEntry, Writing
from blockx_worker.plugins.postgres_table import quote

__all__ = ["Books", "lock_key"]

_CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS {} (
    task_id text NOT NULL,
    table_name text NOT NULL,
    next_output bigint NOT NULL,
    outputs bigint,
    updated_unix_ms bigint NOT NULL,
    PRIMARY KEY (task_id, table_name)
)
"""
_READ_LEDGER = "SELECT next_output, outputs FROM {} WHERE task_id = %s AND table_name = %s"
_WRITE_LEDGER = """
INSERT INTO {} VALUES (%s, %s, %s, %s, %s) ON CONFLICT (task_id, table_name) DO UPDATE
SET next_output = excluded.next_output, outputs = excluded.outputs, updated_unix_ms = excluded.updated_unix_ms
"""
_CREATE_MADE = """
CREATE TABLE IF NOT EXISTS {} (
    table_name text NOT NULL PRIMARY KEY,
    task_id text NOT NULL,
    made_unix_ms bigint NOT NULL
)
"""
_READ_MADE = "SELECT FROM {} WHERE table_name = %s AND task_id = %s"
_WRITE_MADE = """
INSERT INTO {} VALUES (%s, %s, %s) ON CONFLICT (table_name) DO UPDATE
SET task_id = excluded.task_id, made_unix_ms = excluded.made_unix_ms
"""
_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"


def lock_key(*parts: object) -> int:
    """The name of a lock as PostgreSQL takes it: a signed number of 64 bits."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class Books:
    """The worker's tables for one table in ``schema``, inside the transaction of ``connection``."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, table: str) -> None:
        self._connection = connection
        self._schema = schema
        self._table = table

    def read_ledger(self, task_id: str) -> LedgerEntry | None:
        """How far the task has appended to the table; the ledger is there afterwards."""
        self._ensure("blockx_write_ledger", _CREATE_LEDGER)
        statement = self._fill(_READ_LEDGER, "blockx_write_ledger")
        found = self._connection.execute(statement, (task_id, self._table)).fetchone()
        return LedgerEntry(*found) if found is not None else None

    def write_ledger(self, entry: LedgerEntry, writing: Writing) -> None:
        """Note how far it has."""
        values = (writing.task_id, self._table, entry.next_output, entry.outputs, writing.wall_ms)
        self._connection.execute(self._fill(_WRITE_LEDGER, "blockx_write_ledger"), values)

    def made_by(self, task_id: str) -> bool:
        """Whether this task made the table."""
        self._ensure("blockx_made_tables", _CREATE_MADE)
        statement = self._fill(_READ_MADE, "blockx_made_tables")
        return self._connection.execute(statement, (self._table, task_id)).fetchone() is not None

    def note_made(self, writing: Writing) -> None:
        """This task makes the table."""
        self._ensure("blockx_made_tables", _CREATE_MADE)
        statement = self._fill(_WRITE_MADE, "blockx_made_tables")
        self._connection.execute(statement, (self._table, writing.task_id, writing.wall_ms))

    def lock(self, *keys: int) -> None:
        """Wait for these locks in order; held until the end of the transaction."""
        statement = b"SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) key"
        self._connection.execute(statement, (list(keys),))

    def _ensure(self, name: str, statement: str) -> None:
        place = f"{quote(self._schema)}.{name}"
        if not self._there(place):
            self.lock(lock_key("make", self._schema, name))
            self._connection.execute(statement.format(place).encode())

    def _there(self, place: str) -> bool:
        found = self._connection.execute(_EXISTS.encode(), (place,)).fetchone()
        return found == (True,)

    def _fill(self, statement: str, name: str) -> bytes:
        """The statement for one of our tables; a ``%`` in the schema's name would be taken for a value's place."""
        return statement.format(f"{quote(self._schema)}.{name}".replace("%", "%%")).encode()
