"""The databases that the writers' contract is tested with: making a writer for one, and reading rows back.

A database is added by a `Database` with its own way to make a target and to read rows back.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from psycopg.abc import Buffer
from psycopg.adapt import Loader

from blockx_worker.plugins.block_write import BlockWritePlugin
from tests.plugins.helpers import plugin, select
from tests.support.postgres import PostgresDatabase

__all__ = ["Database", "Postgres", "Sqlite"]


class Database(Protocol):
    """A place to write to. ``rows`` gives the rows of a table as lists in the order of insertion, None without table."""

    longest_name: int

    def plugin(self, **settings: Any) -> BlockWritePlugin: ...

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None: ...

    def stored(self, value: Any) -> Any:
        """How a JSON value is found in the database."""

    def wait_for_lock(self) -> None:
        """Wait until a transaction waits for another one's lock, where that can be seen."""


class Sqlite:
    longest_name = 200

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.db"

    def plugin(self, **settings: Any) -> BlockWritePlugin:
        return plugin(self.path, **settings)

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None:
        if not self.path.exists():
            return None
        there = {name for (name,) in select(self.path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
        if table not in there:
            return None
        wanted = ", ".join(map(quote, columns))
        return [list(row) for row in select(self.path, f"SELECT {wanted} FROM {quote(table)} ORDER BY rowid")]

    def stored(self, value: Any) -> Any:
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, list | dict):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value

    def wait_for_lock(self) -> None:
        """It waits in the other process or thread, and shows nothing."""


class _JsonText(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class Postgres:
    longest_name = 63

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database

    def plugin(self, **settings: Any) -> BlockWritePlugin:
        return plugin(self.database.url, **settings)

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None:
        with self.database.connect() as connection:
            connection.adapters.register_loader("jsonb", _JsonText)
            if connection.execute("SELECT to_regclass(%s)", (quote(table),)).fetchone() == (None,):
                return None
            wanted = ", ".join(map(quote, columns))
            found = connection.execute(
                f"SELECT {wanted} FROM {quote(table)} ORDER BY ctid".encode()
            ).fetchall()
        return [
            [int(v) if isinstance(v, Decimal) and v == v.to_integral() else v for v in row] for row in found
        ]

    def stored(self, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value

    def wait_for_lock(self) -> None:
        self.database.wait_for_activity("advisory")


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
