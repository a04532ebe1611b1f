"""The bars that `progress` shows on a terminal; apart, because rich is slow to import and a pipe needs none of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from blockx_worker.model.tasks import TaskPhase, TaskSnapshot, TaskState
from blockx_worker.model.watch import TaskProgress

__all__ = ["BarProgress", "open_bars"]

_PHASES = {
    TaskPhase.PREPARING: "preparing",
    TaskPhase.BUILDER: "building calls",
    TaskPhase.CALLS: "running calls",
    TaskPhase.PLUGIN: "writing",
    TaskPhase.DONE: "done",
}


class BarProgress:
    """One bar for each task."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._rows: dict[str, TaskID] = {}

    def update(self, snapshot: TaskSnapshot, progress: TaskProgress | None) -> None:
        """Move the bar of this task."""
        row = self._rows.get(snapshot.task_id)
        if row is None:
            row = self._bars.add_task("", total=None, task=snapshot.task_id, count="", failed="")
            self._rows[snapshot.task_id] = row
        if progress is not None:
            failed = f"{progress.failed} failed" if progress.failed else ""
            done = progress.succeeded + progress.failed
            count = f"{done:,} of {'?' if progress.total is None else f'{progress.total:,}'}"
            self._bars.update(row, total=progress.total, completed=done, count=count, failed=failed)
        self._bars.update(row, description=_description(snapshot))


@contextmanager
def open_bars(console: Console | None = None) -> Iterator[BarProgress]:
    """Bars on stderr that vanish at the end, since a summary follows."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[task]}", style="bold", markup=False),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[failed]}", style="red"),
        TimeElapsedColumn(),
    )
    # stdout is for data and stays as it is: rich would send it where the bars are
    bars = Progress(*columns, console=console or Console(stderr=True), transient=True, redirect_stdout=False)
    with bars:
        yield BarProgress(bars)


def _description(snapshot: TaskSnapshot) -> str:
    if snapshot.state is TaskState.RUNNING and snapshot.phase is not None:
        return _PHASES[snapshot.phase]
    return snapshot.state.lower()
