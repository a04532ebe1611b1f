"""How a task's outputs become transactions: what append and replace_block have in common.

A job takes batches of outputs and works them off in steps. Each step is one transaction and runs in a thread while the job
holds a place in the lane of its database. Before each commit it asks the gate: the core may have ended the task meanwhile,
and then nothing is committed. Outputs that are there all at once are one batch; those of a stream are many. After `end` the
job writes what is left, and its last commit is the final one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs

from blockx_worker.plugins.database import TableDatabase, Writing
from blockx_worker.plugins.rows import BatchOutputs, OutputCursor
from blockx_worker.ports import CommitGate, OutputLines, WriterContext, WriteStopped

__all__ = ["CHECK_EVERY", "Batch", "WriteJob", "WriteStats"]

CHECK_EVERY = 1000


@attrs.define
class WriteStats:
    """What a job has committed so far."""

    rows: int = 0
    blocks: int | None = None
    skipped_outputs: int | None = None


@attrs.frozen
class Batch:
    """Consecutive outputs, which can be read again. ``size``: bytes of memory that go with it, 0 if others keep them.

    ``blocks_done``: all outputs of the blocks up to this one are in this batch or in earlier ones; None = not known.
    """

    cursor: OutputCursor
    first: int
    end: int
    size: int = 0
    blocks_done: int | None = None

    @classmethod
    def whole(cls, outputs: OutputLines) -> Batch:
        """All outputs of a task."""
        return cls(OutputCursor(outputs), 0, outputs.count)

    @classmethod
    def part(cls, first: int, outputs: Sequence[bytes | None], blocks_done: int | None) -> Batch:
        """Some outputs of a stream; None where there is none."""
        part = BatchOutputs(first, outputs)
        return cls(OutputCursor(part, first), first, part.count, part.size, blocks_done)


class WriteJob:
    """Base: one database, the gate, and a stop flag that any thread may set."""

    def __init__(self, database: TableDatabase, context: WriterContext, stopped: threading.Event) -> None:
        self.stats = WriteStats()
        self._database = database
        self._gate: CommitGate = context.gate
        self._writing = Writing(context.task_id, context.wall_ms)
        self._stopped = stopped
        self._opened = False
        self._ending = False

    def stop(self) -> None:
        """From another thread: end what runs soon, without a commit."""
        self._stopped.set()
        self._database.interrupt()

    def take(self, batch: Batch) -> None:
        """Accept the next batch, once the one before has been worked off."""
        raise NotImplementedError

    def end(self) -> None:
        """There are no more batches."""
        self._ending = True

    def has_work(self) -> bool:
        """Whether another step is due."""
        raise NotImplementedError

    def step(self) -> None:
        """Do one transaction."""
        try:
            self._check_stopped()
            if not self._opened:
                self._opened = True
                self._database.open()
            self._database.begin()
            self._transact()
        finally:
            self._database.rollback()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def kept(self) -> str:
        """What is written and stays, in words; empty if nothing."""
        raise NotImplementedError

    def _transact(self) -> None:
        raise NotImplementedError

    def _commit(self, *, final: bool, note: Callable[[], None]) -> None:
        """Commit if the task may still; ``note`` takes down what is written then."""
        self._check_stopped()
        if not self._gate.start(final=final, written=self.kept()):
            raise WriteStopped
        try:
            self._database.commit()
            note()
        finally:
            if not final:
                self._gate.ended(written=self.kept())

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise WriteStopped
