"""What the write jobs ask of a database: one connection to one table, used by one thread at a time.

Every method may raise StepFailed with a sentence for people, and WriteStopped once the job was stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from blockx_worker.plugins.rows import Row

__all__ = ["LedgerEntry", "TableDatabase"]


@attrs.frozen
class LedgerEntry:
    """How far a task has appended: the next output to write, and how many outputs it had."""

    next_output: int
    outputs: int


class TableDatabase(Protocol):
    """A table, its ledger and transactions."""

    def open(self) -> None:
        """Connect."""

    def close(self) -> None:
        """Disconnect; harmless when not connected."""

    def interrupt(self) -> None:
        """From another thread: make what runs now fail soon, unless it is a commit."""

    def begin(self) -> None:
        """Begin a transaction as the only writer."""

    def commit(self) -> None:
        """Make it durable."""

    def rollback(self) -> None:
        """Undo it; harmless when there is none."""

    def check_columns(self, names: Sequence[str], row: Row) -> None:
        """Refuse names that can never be columns; ``row`` is the first with them."""

    def ensure_table(self, columns: Sequence[str]) -> None:
        """Make the table if it is missing."""

    def insert(self, rows: Iterable[Row]) -> int:
        """Insert in order; returns how many."""

    def delete_blocks(self, first: int, last: int) -> None:
        """Delete the rows of these blocks; nothing if the table is missing."""

    def ledger(self, task_id: str) -> LedgerEntry | None:
        """How far the task has appended to this table."""

    def set_ledger(self, task_id: str, entry: LedgerEntry, wall_ms: int) -> None:
        """Note how far it has."""
