"""`blockx status`: the worker at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import click
import msgspec

from blockx_worker.cli.options import json_option, to_option
from blockx_worker.cli.session import talk
from blockx_worker.cli.show import camel, describe_snapshot, snapshot_json
from blockx_worker.cli.words import binary_size, counted, milliseconds
from blockx_worker.client import WorkerClient
from blockx_worker.model.watch import ExecutorStatus, WorkerStatus

__all__ = ["status"]


@click.command()
@to_option
@json_option
@click.argument("task_ids", metavar="[TASK_ID]...", nargs=-1)
def status(address: str, task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Show the worker, or only the given tasks.

    Of the worker: slots, executors, stages, tasks, and events that came too late.
    """

    async def work(client: WorkerClient) -> list[tuple[str, bytes]]:
        if not task_ids:
            worker = await client.status()
            return [("\n".join(_describe(worker)), msgspec.json.encode(_as_json(worker)))]
        snapshots = [(await client.result(task_id)).snapshot for task_id in task_ids]
        return [(describe_snapshot(snapshot), snapshot_json(snapshot)) for snapshot in snapshots]

    for text, line in talk(address, work):
        click.echo(line if as_json else text)


def _describe(worker: WorkerStatus) -> Iterator[str]:
    state = "draining" if worker.draining else "serving"
    yield f"worker {worker.address}: {worker.profile}, version {worker.version}, {state}, up {milliseconds(worker.uptime_ms)}"
    free = worker.task_slots - worker.reserved_slots - worker.running_tasks
    yield f"slots: {worker.running_tasks} running, {worker.reserved_slots} leased, {free} free of {worker.task_slots}"
    yield f"functions: {worker.functions} in epoch {worker.function_epoch}"
    kept = f"{counted(worker.retained_results, 'result')} kept ({binary_size(worker.retained_bytes)})"
    yield f"done: {counted(worker.calls_done, 'call')}; {kept}"
    yield from _section("executors", map(_executor, worker.executors))
    yield from _section(
        "stages",
        (
            f"{stage}: {in_use} of {limit} in use" + (f", {waiting} waiting" if waiting else "")
            for stage, (in_use, waiting, limit) in worker.admission.items()
        ),
    )
    yield from _section("tasks", map(describe_snapshot, worker.tasks))
    yield from _section(
        "dropped events", (f"{reason}: {count}" for reason, count in worker.dropped.items() if count)
    )


def _section(title: str, rows: Iterator[str]) -> Iterator[str]:
    lines = list(rows)
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _executor(executor: ExecutorStatus) -> str:
    text = f"{executor.executor_id}  {executor.state}"
    if executor.pid:
        memory = binary_size(executor.memory_bytes)
        text += f"  pid {executor.pid}  {executor.inflight} aboard, {executor.runnable} runnable  {memory}"
    return f"{text}  running {executor.running_call_id}" if executor.running_call_id else text


def _as_json(worker: WorkerStatus) -> dict[str, Any]:
    fields = camel(attrs.asdict(worker, recurse=False))
    fields["executors"] = [camel(attrs.asdict(executor)) for executor in worker.executors]
    fields["tasks"] = [msgspec.Raw(snapshot_json(task)) for task in worker.tasks]
    fields["admission"] = {
        stage: {"inUse": in_use, "waiting": waiting, "limit": limit}
        for stage, (in_use, waiting, limit) in worker.admission.items()
    }
    return fields
