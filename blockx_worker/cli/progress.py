"""Progress of tasks: a bar on a terminal, nothing in a pipe. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from blockx_worker.model.tasks import TaskSnapshot
from blockx_worker.model.watch import TaskProgress

__all__ = ["ProgressView", "open_progress"]


class ProgressView(Protocol):
    """Is told of every change of the watched tasks."""

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """A task stands so."""


class NoProgress:
    """Shows nothing."""

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """Nothing to do."""


@contextmanager
def open_progress() -> Iterator[ProgressView]:
    """A view for the length of a command."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    from blockx_worker.cli.bars import open_bars  # noqa: PLC0415 - slow to import, and only needed here

    with open_bars() as bars:
        yield bars
