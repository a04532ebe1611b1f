"""The progress bar."""

from __future__ import annotations

import io

import click
import pytest
from rich.console import Console

from blockx_worker.cli.bars import open_bars
from blockx_worker.cli.progress import open_progress
from blockx_worker.model.tasks import TaskPhase, TaskSnapshot, TaskState
from blockx_worker.model.watch import TaskProgress

RUNNING = TaskSnapshot(task_id="[x]", slot_id="s", state=TaskState.RUNNING, phase=TaskPhase.CALLS)


@pytest.mark.parametrize("total", [None, 200])
def test_a_bar_shows_task_phase_counts_and_failures(total):
    """Also for a task id that looks like rich's markup, and while the total is unknown."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with open_bars(console) as bars:
        bars.update(RUNNING, None)
        bars.update(RUNNING, TaskProgress(total=total, succeeded=98, failed=2))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("[x]", "running calls", f"100 of {total or '?'}", "2 failed"):
        assert part in text


def test_data_printed_under_a_bar_still_goes_to_stdout(capsys):
    with open_bars(Console(file=io.StringIO(), force_terminal=True)):
        click.echo("data")
    assert capsys.readouterr().out == "data\n"


def test_a_pipe_gets_no_bar(capsys):
    with open_progress() as view:
        view.update(RUNNING, TaskProgress(total=2, succeeded=1))
    assert capsys.readouterr() == ("", "")
