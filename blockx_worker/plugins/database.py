"""What the write jobs ask of a database: one table, used by one thread at a time.

Every method may raise StepFailed with a sentence for people, and WriteStopped once the job was stopped. Between `begin` and
`commit` or `rollback` the locks come first, then changes of the table, then rows: so transactions never wait for one another
in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeAlias

import attrs

from blockx_worker.plugins.rows import Row

__all__ = ["Kinds", "LedgerEntry", "TableDatabase", "Writing"]

Kinds: TypeAlias = AbstractSet[type]
"""The Python types of the values seen in a column."""


@attrs.frozen
class LedgerEntry:
    """How far a task has appended: the next output to write, and how many outputs it has (None = not known yet)."""

    next_output: int
    outputs: int | None


@attrs.frozen
class Writing:
    """Who writes, and when: noted with the ledger and with the tables that a task makes."""

    task_id: str
    wall_ms: int


class TableDatabase(Protocol):
    """A table, its ledger and transactions."""

    @property
    def max_blocks(self) -> int:
        """How many blocks one transaction may replace."""

    def open(self) -> None:
        """Get ready; called once."""

    def close(self) -> None:
        """Let go of everything; harmless when not open."""

    def interrupt(self) -> None:
        """From another thread: make what runs now fail soon, unless it is a commit."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Make it durable."""

    def rollback(self) -> None:
        """Undo it; harmless when there is none."""

    def check_columns(self, names: Sequence[str], row: Row) -> None:
        """Refuse names that can never be columns; ``row`` is the first with them."""

    def ensure_table(self, columns: Mapping[str, Kinds], writing: Writing) -> None:
        """Make the table if it is missing; add columns to it if this task made it."""

    def insert(self, rows: Iterable[Row]) -> int:
        """Insert in order; returns how many."""

    def lock_blocks(self, first: int, last: int) -> None:
        """Wait until no other transaction replaces one of these blocks, and keep others out until the end of this one."""

    def delete_blocks(self, first: int, last: int) -> None:
        """Delete the rows of these blocks; nothing if the table is missing."""

    def ledger(self, task_id: str) -> LedgerEntry | None:
        """How far the task has appended to this table; no other transaction appends for it until the end of this one."""

    def set_ledger(self, entry: LedgerEntry, writing: Writing) -> None:
        """Note how far it has."""
