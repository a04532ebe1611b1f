"""`blockx result` and `blockx cancel`: tasks that were submitted before."""

from __future__ import annotations

import sys
from functools import partial

import click

from blockx_worker.cli.errors import CommandFailed, Exit
from blockx_worker.cli.options import json_option, to_option
from blockx_worker.cli.outputs import OutputSpool, open_spool
from blockx_worker.cli.session import copy_outputs, talk
from blockx_worker.cli.show import describe_snapshot, snapshot_json
from blockx_worker.cli.submit import report
from blockx_worker.client import WorkerClient
from blockx_worker.model.tasks import TaskSnapshot

__all__ = ["cancel", "result"]


@click.command()
@to_option
@json_option
@click.option("--output", metavar="F.jsonl", help="One JSON value a line, in order; - = stdout.")
@click.argument("task_id")
def result(address: str, task_id: str, output: str | None, *, as_json: bool) -> None:
    """Read the result and the outputs of a task that has ended.

    Exit code 0 if it succeeded, 1 if it did not, 2 if it has not ended or is not known.
    """
    with open_spool(output) as spool:
        snapshot = talk(address, partial(_read, task_id=task_id, spool=spool))
        if snapshot.result is None:
            if as_json:
                click.echo(snapshot_json(snapshot))
            raise CommandFailed(
                f"{describe_snapshot(snapshot)}: no result yet; wait for it with `blockx watch --to {address} {task_id}`"
            )
        if snapshot.result.output_count:
            spool.finish()
    sys.exit(report(snapshot.result, as_json=as_json))


@click.command()
@to_option
@json_option
@click.argument("task_ids", metavar="TASK_ID...", nargs=-1, required=True)
def cancel(address: str, task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Cancel tasks, or give leased slots back.

    Running code is stopped. Cancelling a task that has ended changes nothing.
    """

    async def work(client: WorkerClient) -> None:
        for task_id in task_ids:
            snapshot = await client.cancel(task_id, "cancelled at the command line")
            click.echo(f"task {task_id}: {snapshot.state}", err=True)
            if as_json:
                click.echo(snapshot_json(snapshot))

    talk(address, work)
    sys.exit(Exit.SUCCEEDED)


async def _read(client: WorkerClient, task_id: str, spool: OutputSpool) -> TaskSnapshot:
    snapshot = (await client.result(task_id)).snapshot
    if snapshot.result is not None and snapshot.result.output_count:
        await copy_outputs(client, task_id, spool)
    return snapshot
