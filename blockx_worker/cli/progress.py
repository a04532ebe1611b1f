"""Progress of a task: a bar on a terminal, nothing in a pipe. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from blockx_worker.model.tasks import TaskPhase, TaskSnapshot, TaskState
from blockx_worker.model.watch import TaskProgress

__all__ = ["ProgressView", "open_progress"]

_PHASES = {
    TaskPhase.PREPARING: "preparing",
    TaskPhase.BUILDER: "building calls",
    TaskPhase.CALLS: "running calls",
    TaskPhase.PLUGIN: "writing",
    TaskPhase.DONE: "done",
}


class ProgressView(Protocol):
    """Is told of every change of the watched tasks."""

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """A task stands so."""


class NoProgress:
    """Shows nothing."""

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """Nothing to do."""


class BarProgress:
    """One bar for each task."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._rows: dict[str, TaskID] = {}

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """Move the bar of this task."""
        row = self._rows.get(snapshot.task_id)
        if row is None:
            row = self._rows[snapshot.task_id] = self._bars.add_task(
                "", total=None, task=snapshot.task_id, failed=""
            )
        if progress is not None:
            failed = f"{progress.failed} failed" if progress.failed else ""
            done = progress.succeeded + progress.failed
            self._bars.update(row, total=progress.total, completed=done, failed=failed)
        self._bars.update(row, description=_description(snapshot))


@contextmanager
def open_progress() -> Iterator[ProgressView]:
    """A view for the length of a command; the bars vanish at its end, since a summary follows."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[task]}", style="bold"),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield BarProgress(bars)


def _description(snapshot: TaskSnapshot) -> str:
    if snapshot.state is TaskState.RUNNING and snapshot.phase is not None:
        return _PHASES[snapshot.phase]
    return snapshot.state.lower()
