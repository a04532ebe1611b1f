"""Small surroundings for writers and builders: real threads, a gate that can refuse, outputs from Python values."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import trio

from blockx_worker.plugins.block_write import BlockWritePlugin
from blockx_worker.plugins.targets import Targets
from blockx_worker.ports import CommitGate, WriterContext

T = TypeVar("T")


class TrioThreads:
    """`Threads` as it is meant: always joined, interrupted on cancellation."""

    async def run(self, work: Callable[..., T], *args: Any, interrupt: Callable[[], None] | None = None) -> T:
        finished: list[T] = []
        failed: list[BaseException] = []

        async def interrupt_on_cancel() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if interrupt is not None and not finished and not failed:
                    interrupt()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt_on_cancel)
            with trio.CancelScope(shield=True):
                try:
                    finished.append(await trio.to_thread.run_sync(work, *args))
                except Exception as error:  # noqa: BLE001 - raised below, outside the nursery
                    failed.append(error)
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()
        if failed:
            raise failed[0]
        return finished[0]

    def call_back(self, function: Callable[..., T], *args: Any) -> T:
        return trio.from_thread.run_sync(function, *args)


class Gate:
    """A commit gate that says no from the commit with index ``refuse_at`` on, and notes what it was asked."""

    def __init__(self, refuse_at: int | None = None) -> None:
        self.refuse_at = refuse_at
        self.asked: list[bool] = []
        self.ends = 0

    def start(self, *, final: bool, written: str = "") -> bool:
        self.asked.append(final)
        return self.refuse_at is None or len(self.asked) <= self.refuse_at

    def ended(self, *, written: str = "") -> None:
        self.ends += 1


class Outputs:
    """`OutputLines` over Python values, or over JSON texts where they are bytes."""

    def __init__(self, values: list[Any]) -> None:
        self._lines = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]

    @property
    def count(self) -> int:
        return len(self._lines)

    def lines(self, start: int = 0) -> Iterator[bytes]:
        yield from self._lines[start:]


def context(
    gate: CommitGate | None = None, *, task_id: str = "task-1", blocks: tuple[int, int] | None = None
) -> WriterContext:
    return WriterContext(
        task_id=task_id, blocks=blocks, threads=TrioThreads(), gate=gate or Gate(), wall_ms=1_700_000_000_000
    )


def plugin(path: Path, **settings: Any) -> BlockWritePlugin:
    """A writer with one configured target, ``main``."""
    return BlockWritePlugin(Targets({"main": f"sqlite:///{path}"}, allow_urls=False), **settings)


def config(**fields: Any) -> bytes:
    return json.dumps({"target": "main", "table": "t", **fields}).encode()


def select(path: Path, statement: str) -> list[Any]:
    """All rows of a query over a database that nobody has open."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def execute(path: Path, *statements: str) -> None:
    """Run statements, each committed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
