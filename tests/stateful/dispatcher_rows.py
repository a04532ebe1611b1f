"""What the naive model of the dispatcher remembers: rows (calls), tasks, hosts (executors)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import attrs

from blockx_executor.wire.messages import ExecuteCall
from blockx_worker.dispatch.executors import HOGGED_MS


@attrs.define(eq=False)
class Row:
    """One call: open, or how it ended. A subcall has a parent.

    ``name`` is function and arguments, ``key`` the same, or empty for a function that shares nothing. ``beside``: it
    runs although an equal call does.
    """

    call_id: str
    name: bytes
    key: bytes
    args: bytes
    parent: Row | None = None
    request_id: int = 0
    end: str = ""
    output: bytes = b""
    executor: str = ""
    seq: int = 0
    charged: int = 0
    losses: int = 0
    backing_off: bool = False
    cancelled: bool = False
    beside: bool = False
    started_seq: int = 0
    started_losses: int = 0
    requests: dict[int, Row | None] = attrs.field(factory=dict)

    @property
    def root(self) -> Row:
        return self if self.parent is None else self.parent.root

    def above(self) -> Iterator[Row]:
        """The calls that wait for it through their subcalls, nearest first."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.above()

    def below(self) -> Iterator[Row]:
        """All subcalls that it waits for, directly or not."""
        for subcall in self.requests.values():
            if subcall is not None:
                yield subcall
                yield from subcall.below()


@attrs.define(eq=False)
class Task:
    """One task and what it is allowed."""

    task_id: str
    instance_id: str
    rows: list[Row]
    fast_fail: bool
    max_attempts: int
    base_ms: int
    output_limit: int
    budget_ms: int
    streams: bool = False
    production_open: bool = False
    batches: int = 0
    batches_settled: int = 0
    granted: int = 0
    subs: dict[str, Row] = attrs.field(factory=dict)
    subcalls: int = 0
    io_requests: int = 0
    stopping: bool = False
    over_limit: bool = False
    broken: bool = False
    announced: bool = False
    converged: bool = False
    settled: int = 0
    shared_failures: set[bytes] = attrs.field(factory=set)
    produced: dict[bytes, set[bytes]] = attrs.field(factory=dict)

    def add_rows(self, args: list[bytes]) -> None:
        for arg in args:
            self.rows.append(Row(f"{self.task_id}/{len(self.rows)}", b"f" + arg, b"f" + arg, arg))

    def find(self, call_id: str) -> Row | None:
        """The living subcall of that id, or the root call, living or not."""
        number = call_id.removeprefix(f"{self.task_id}/")
        if number.isdigit():
            return self.rows[int(number)] if int(number) < len(self.rows) else None
        return self.subs.get(call_id)

    def row(self, call_id: str) -> Row:
        row = self.find(call_id)
        assert row is not None, f"{call_id} is not known"
        return row

    def living(self) -> list[Row]:
        """All calls that are open."""
        return [*(row for row in self.rows if not row.end), *self.subs.values()]

    def equals(self, row: Row) -> list[Row]:
        """Other open calls with the same key."""
        return [other for other in self.living() if other is not row and row.key and other.key == row.key]


@attrs.define(eq=False)
class Held:
    """An attempt that takes a context; ``row`` may be over, ``task`` may have been dropped since."""

    call: ExecuteCall
    task: Task
    row: Row
    cancelled_ms: int | None = None

    @property
    def budget_ms(self) -> int:
        return self.call.payload.call_budget_ms


@attrs.define(eq=False)
class Host:
    """One executor."""

    contexts: int
    heard_ms: int
    held: dict[tuple[str, int], Held] = attrs.field(factory=dict)
    reads: list[tuple[int, int, int, bool]] = attrs.field(factory=list)
    killed: bool = False
    culprit: int = 0
    too_large: bool = False
    stuck: bool = False
    stuck_at: tuple[int, int] | None = None
    tenant: str | None = None

    def hogged(self) -> bool:
        """By all looks since some time ago, one call that is here keeps the main thread."""
        if not self.reads:
            return False
        last_ms, *shown = self.reads[-1]
        equal = takewhile(lambda read: list(read[1:]) == shown, reversed(self.reads))
        long = last_ms - min(read[0] for read in equal) >= HOGGED_MS
        return long and any(held.call.payload.call_no == shown[0] for held in self.held.values())

    def alone(self) -> Row | None:
        """The call that must have no company here."""
        return next((held.row for held in self.held.values() if held.row.started_losses >= 2), None)
