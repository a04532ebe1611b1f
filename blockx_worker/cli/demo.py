"""`blockx demo`: the whole path on this machine, from a synthetic chain to rows in a database and values that come back.

It does what a user would do, in that order: a folder of block tables, a folder of functions, a worker, two tasks. It
checks what it shows: the table must hold as many rows as the chain has transfers.
"""

from __future__ import annotations

import os
import shlex
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import click

from blockx_worker.cli.demo_folder import DemoFolder, prepare
from blockx_worker.cli.errors import TaskFailed
from blockx_worker.cli.local_worker import running_worker
from blockx_worker.cli.progress import open_progress
from blockx_worker.cli.session import talk
from blockx_worker.cli.show import describe_result
from blockx_worker.cli.words import counted
from blockx_worker.client import (
    BlockTableCallConfig,
    BlockWriteHandler,
    CallListCallConfig,
    Outputs,
    Task,
    WorkerClient,
)
from blockx_worker.model.tasks import TaskState
from blockx_worker.model.watch import TaskSnapshotted, WatchEvent

__all__ = ["demo"]

TABLE = "transfers"
COLUMNS = ("block_number", "log_index", "token", "sender", "receiver", "amount")
DECIMALS = 18
EXECUTORS = 2
SHOWN = 3
SHOWN_CHARS = 20


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("blockx-demo"),
    show_default=True,
    help="Folder to make or to use again.",
)
def demo(folder: Path) -> None:
    """Show everything once, in a few seconds.

    A worker, a task that writes rows, a task that returns values. All data is synthetic and lies in one folder. Running it again is safe.
    """
    signal.signal(signal.SIGTERM, _exit)  # the worker is stopped then, too
    _heading("1. A synthetic chain", "made from a seed; nothing in it ever happened")
    place = prepare(folder)
    size = place.size
    _line(f"{counted(size.blocks, 'block')} with {counted(size.logs, 'log')} in {folder / 'blocks'}")
    _line(f"example functions in {folder / 'functions' / 'transfers.py'}")
    _heading("2. A worker", f"with {EXECUTORS} executor processes")
    with running_worker(_arguments(place), place.ready_file, place.log) as address:
        _line(f"serving at {address}, logging to {folder / place.log.name}")
        amounts = _table_task(address, place)
        _call_task(address, amounts)
    _heading("The worker is stopped.", "Now you:")
    for line in _next_steps(folder, size.blocks):
        click.echo(line)


def _arguments(place: DemoFolder) -> Sequence[str]:
    folders = ("--functions", str(place.functions), "--blocks", str(place.blocks))
    return ("--profile", "block", "--listen", "127.0.0.1:0", "--executors", str(EXECUTORS), *folders)


def _table_task(address: str, place: DemoFolder) -> list[int]:
    """Write the transfers of the chain; returns the amounts that stand in the table."""
    _heading(
        "3. A table task", "call transfers.transfer for every log of all blocks, write the rows to SQLite"
    )
    config = BlockTableCallConfig("transfers.transfer", (1, place.size.blocks), ["logs"])
    _run(
        address,
        Task(config, BlockWriteHandler(f"sqlite:///{place.database}", TABLE), task_id="demo-table-task"),
    )
    with closing(sqlite3.connect(place.database)) as database:
        rows = database.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE} ORDER BY 1, 2").fetchall()  # noqa: S608 - constants
    if len(rows) != place.size.transfers and not place.edited:
        raise TaskFailed(
            f"{place.database} holds {len(rows)} rows, the chain has {place.size.transfers} transfers"
        )
    _line(
        f"{counted(len(rows), 'row')} in table {TABLE}, one for each ERC-20 transfer of the chain; the first:"
    )
    for row in (COLUMNS, *rows[:SHOWN]):
        _line("  " + "  ".join(f"{_short(str(cell)):<{SHOWN_CHARS}}" for cell in row).rstrip())
    return [int(row[-1]) for row in rows]


def _call_task(address: str, amounts: list[int]) -> None:
    """Call a function for each amount and show some of the values that come back."""
    _heading(
        "4. A call task", f"call transfers.as_units(amount, {DECIMALS}) for every amount, get the values back"
    )
    config = CallListCallConfig("transfers.as_units", [[amount, DECIMALS] for amount in amounts])
    outputs = _run(address, Task(config, task_id="demo-call-task"))
    _line(
        f"{counted(len(outputs), 'value')} in the order of the calls, exact up to 256 bits; the first and the largest:"
    )
    largest = amounts.index(max(amounts))
    for index in (*range(min(SHOWN, len(amounts))), largest):
        _line(f"  {amounts[index]} is {outputs[index]}")


def _run(address: str, task: Task) -> Outputs:
    async def work(client: WorkerClient) -> Outputs:
        with open_progress() as view:

            def show(event: WatchEvent) -> None:
                if isinstance(event, TaskSnapshotted):
                    view.update(event.snapshot, event.progress)

            result, outputs = await client.run(task, show)
        if result.state is not TaskState.SUCCEEDED:
            raise TaskFailed(describe_result(result))
        for line in describe_result(result).splitlines():
            _line(line.strip())
        return outputs

    return talk(address, work)


def _next_steps(folder: Path, blocks: int) -> Iterator[str]:
    blockx = "uv run blockx" if "UV_RUN_RECURSION_DEPTH" in os.environ else "blockx"
    place = shlex.quote(str(folder))
    yield "  a worker that goes on running:"
    yield f"    {blockx} run --functions {place}/functions --blocks {place}/blocks"
    yield "  then, in another terminal:"
    yield f"    {blockx} status --to 127.0.0.1:7420"
    yield (
        f"    {blockx} submit table --to 127.0.0.1:7420 --function transfers.transfer --block 1..{blocks} "
        f"--tables logs --write sqlite:///{place}/transfers.db --table transfers"
    )
    yield (
        f"    {blockx} submit calls --to 127.0.0.1:7420 --function transfers.as_units --args '[1500, 3]' --args '[7, 2]'"
    )
    yield f"  and edit {place}/functions/transfers.py: the next task uses the new version."


def _heading(title: str, text: str) -> None:
    click.echo(f"\n{click.style(title, bold=True)}  {text}")


def _line(text: str) -> None:
    click.echo(f"   {text}")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:10]}…{text[-8:]}"


def _exit(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)
