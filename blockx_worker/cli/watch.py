"""`blockx watch`: follow tasks without owning them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from blockx_worker.cli.errors import Exit
from blockx_worker.cli.options import json_option, to_option
from blockx_worker.cli.progress import ProgressView, open_progress
from blockx_worker.cli.session import talk
from blockx_worker.cli.show import not_found_json
from blockx_worker.cli.submit import report
from blockx_worker.client import WorkerClient
from blockx_worker.model.tasks import ENDED_STATES
from blockx_worker.model.watch import TaskNotFound, TaskOutputs, TaskResulted, TaskSnapshotted

__all__ = ["watch"]


@click.command()
@to_option
@json_option
@click.argument("task_ids", metavar="[TASK_ID]...", nargs=-1)
def watch(address: str, task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Watch tasks until all have ended.

    Without ids these are all that are leased or running now. Watching changes nothing: leaving with Ctrl-C cancels no task. Exit code 0 if all succeeded, 1 if one did not, 2 if
    the worker does not know one. With --json one line for each task that ends.
    """

    async def work(client: WorkerClient) -> Exit:
        ids = task_ids or await _unfinished(client)
        if not ids:
            click.echo("no task is leased or running", err=True)
            return Exit.SUCCEEDED
        with open_progress() as view:
            return await _follow(client, ids, view, as_json=as_json)

    sys.exit(talk(address, work))


async def _unfinished(client: WorkerClient) -> Sequence[str]:
    status = await client.status()
    return [task.task_id for task in status.tasks if task.state not in ENDED_STATES]


async def _follow(client: WorkerClient, ids: Sequence[str], view: ProgressView, *, as_json: bool) -> Exit:
    worst = Exit.SUCCEEDED
    async with client.watch(ids, observe=True) as events:
        async for event in events:
            match event:
                case TaskSnapshotted(snapshot=snapshot, progress=progress):
                    view.update(snapshot, progress)
                case TaskResulted(result=result):
                    worst = max(worst, report(result, as_json=as_json))
                case TaskNotFound(task_id=task_id):
                    worst = Exit.REFUSED
                    click.echo(f"the worker does not know task {task_id} (any more)", err=True)
                    if as_json:
                        click.echo(not_found_json(task_id))
                case TaskOutputs():
                    pass  # for those who read results
    return worst
