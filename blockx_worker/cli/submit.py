"""`blockx submit`: hand a task to a worker and stay until it has ended."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from blockx_worker.cli.args import args_list, check_request_size, read_args_file
from blockx_worker.cli.cluster import ClusterDestination, cluster_destination, cluster_options
from blockx_worker.cli.credentials import credentials_options
from blockx_worker.cli.errors import Exit
from blockx_worker.cli.options import ADDRESS, BLOCKS, DURATION
from blockx_worker.cli.outputs import open_spool
from blockx_worker.cli.progress import open_progress
from blockx_worker.cli.session import see_through, talk
from blockx_worker.cli.show import describe_result, result_json, snapshot_json
from blockx_worker.client import (
    BlockTableCallConfig,
    BlockWriteHandler,
    CallListCallConfig,
    ReturnValueResultHandler,
    Task,
    WorkerClient,
)
from blockx_worker.config import is_loopback, parse_address
from blockx_worker.config.targets import absolute_sqlite
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, TaskResult, TaskState
from blockx_worker.ports import SubmitReply

__all__ = ["report", "submit"]

F = TypeVar("F", bound=Callable[..., Any])

REQUEST_ENVELOPE_BYTES = 64 * 1024  # everything in a request but the arguments


@attrs.frozen(kw_only=True)
class Common:
    """Options of both kinds of tasks; each may stand before or after ``calls`` and ``table``."""

    address: str | None = None
    etcd: list[str] | None = None
    prefix: str | None = None
    task_id: str | None = None
    timeout: int | None = None
    budget: int | None = None
    attempts: int | None = None
    collect_all: bool | None = None
    no_wait: bool | None = None
    as_json: bool | None = None

    def destination(self) -> str | ClusterDestination:
        """The worker, or the cluster that has one; UsageError if neither or both were named."""
        if self.address is not None and (self.etcd is not None or self.prefix is not None):
            raise click.UsageError("--to names a worker, --etcd and --prefix choose one; give either")
        if self.etcd is not None:
            return cluster_destination(self.etcd, self.prefix)
        if self.address is None:
            raise click.UsageError("which worker? add --to HOST:PORT, or --etcd HOST:PORT --prefix P")
        return self.address

    def merged(self, later: dict[str, Any]) -> Common:
        """These options, with those that were given again replaced."""
        return attrs.evolve(self, **{name: value for name, value in later.items() if value is not None})


def common_options(command: F) -> F:
    """Add the options of `Common`."""
    options = (
        click.option("--to", "address", type=ADDRESS, help="The worker, as HOST:PORT."),
        click.option(
            "--task-id", metavar="T", help="Id of the task, its idempotency key; default a new one."
        ),
        click.option("--timeout", type=DURATION, help="Longest time for the whole task, e.g. 60s."),
        click.option("--budget", type=DURATION, help="Longest time for one call, e.g. 5s; 0s = no limit."),
        click.option("--attempts", type=click.IntRange(1, 100), metavar="N", help="Attempts for one call."),
        click.option("--collect-all", is_flag=True, default=None, help="Run every call even if some fail."),
        click.option("--no-wait", is_flag=True, default=None, help="Return once the worker has the task."),
        click.option("--json", "as_json", is_flag=True, default=None, help="End with one line of JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return credentials_options(cluster_options(command))


@click.group()
@common_options
@click.pass_context
def submit(ctx: click.Context, /, **common: Any) -> None:
    """Submit a task and wait for its end; Ctrl-C cancels it.

    Outputs go to stdout, or with --output to a file that appears whole or not at all. With --no-wait the task runs on
    without you: `blockx watch` follows it, `blockx result` reads its outputs.
    """
    ctx.obj = Common().merged(common)


@submit.command()
@common_options
@click.option("--function", required=True, metavar="ID", help="The function, as MODULE.NAME.")
@click.option(
    "--args-file",
    type=click.Path(path_type=Path),
    metavar="F.jsonl",
    help="One JSON array a line; - = stdin.",
)
@click.option(
    "--args", "args", multiple=True, metavar="'[1,2]'", help="Arguments of one call; may be repeated."
)
@click.option(
    "--output",
    metavar="F.jsonl",
    help="One JSON value a line, in order; null where a call failed; - = stdout.",
)
@click.pass_context
def calls(
    ctx: click.Context,
    /,
    *,
    function: str,
    args_file: Path | None,
    args: tuple[str, ...],
    output: str | None,
    **common: Any,
) -> None:
    """Call a function once for each list of arguments."""
    if (args_file is None) == (not args):
        raise click.UsageError("give the arguments either with --args-file or with --args")
    if args_file is not None:
        listed = read_args_file(args_file)
    else:
        listed = args_list([text.encode(errors="surrogateescape") for text in args], "--args")
    check_request_size(len(listed) + REQUEST_ENVELOPE_BYTES, str(args_file or "--args"))
    options = _complete(ctx, common, output)
    _run(
        options,
        _task(options, function, CallListCallConfig(function, listed), ReturnValueResultHandler()),
        output,
    )


@submit.command()
@common_options
@click.option("--function", required=True, metavar="ID", help="The function, as MODULE.NAME.")
@click.option("--block", type=BLOCKS, required=True, help="One block, or an inclusive range.")
@click.option(
    "--tables", required=True, metavar="T,…", help="The tables whose rows the function gets, in order."
)
@click.option(
    "--write",
    "target",
    metavar="TARGET|URL",
    help="A target of the worker, or sqlite:///F.db, postgresql://…",
)
@click.option("--table", metavar="T", help="The table to write; made from the first rows if it is missing.")
@click.option("--mode", type=click.Choice(["append", "replace_block"]), help="Default: replace_block.")
@click.option("--output", metavar="F.jsonl", help="Instead of writing: one JSON value a line; - = stdout.")
@click.pass_context
def table(
    ctx: click.Context,
    /,
    *,
    function: str,
    block: tuple[int, int],
    tables: str,
    target: str | None,
    table: str | None,
    mode: str | None,
    output: str | None,
    **common: Any,
) -> None:
    """Call a function for every row of block tables.

    What it returns is written to a database, or comes back with --output. The function gets one row; it returns a row, a list of rows, or None.
    """
    if (target is None) == (output is None):
        raise click.UsageError(
            "say where the results go: --write TARGET --table T, or --output F.jsonl (- = stdout)"
        )
    if (target is None) != (table is None):
        raise click.UsageError("--write and --table belong together")
    if mode is not None and target is None:
        raise click.UsageError("--mode only goes with --write")
    options = _complete(ctx, common, output)
    config = BlockTableCallConfig(function, block, [name.strip() for name in tables.split(",")])
    if target is None or table is None:
        _run(options, _task(options, function, config, ReturnValueResultHandler()), output)
    else:
        handler = BlockWriteHandler(_absolute_target(target, options.address), table, mode)
        _run(options, _task(options, function, config, handler), output)


def report(result: TaskResult, *, as_json: bool) -> Exit:
    """Tell people and programs how a task ended; the exit code."""
    click.echo(describe_result(result), err=True)
    if as_json:
        click.echo(result_json(result))
    return Exit.SUCCEEDED if result.state is TaskState.SUCCEEDED else Exit.TASK_FAILED


def _absolute_target(target: str, address: str | None) -> str:
    """A relative SQLite file means our current directory, unless the worker is on another machine."""
    local = address is None or is_loopback(parse_address(address)[0])
    return absolute_sqlite(target, Path.cwd()) if local else target


def _complete(ctx: click.Context, common: dict[str, Any], output: str | None) -> Common:
    options: Common = ctx.obj.merged(common)
    options.destination()  # usage errors come before anything else
    if options.no_wait and output is not None:
        raise click.UsageError(
            "--no-wait returns before there are outputs; read them later with `blockx result --output`"
        )
    return options


def _task(
    options: Common,
    function: str,
    config: CallListCallConfig | BlockTableCallConfig,
    handler: ReturnValueResultHandler | BlockWriteHandler,
) -> Task:
    return Task(
        config,
        handler,
        task_id=options.task_id or _new_task_id(function),
        timeout_ms=options.timeout,
        call_budget_ms=options.budget,
        max_attempts=options.attempts,
        call_failure_policy=CallFailurePolicy.COLLECT_ALL
        if options.collect_all
        else CallFailurePolicy.FAST_FAIL,
    )


def _new_task_id(function: str) -> str:
    """Readable, sorted by time, and unique: ``transfer-20240229-101530-3f9a1c``."""
    return f"{function.rpartition('.')[2][:60]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _run(options: Common, task: Task, output: str | None) -> None:
    destination = options.destination()
    if options.no_wait:
        _hand_over(destination, task, as_json=bool(options.as_json))
        return
    with open_spool(output) as spool:
        with open_progress() as view:
            result = talk(destination, partial(see_through, task=task, spool=spool, view=view))
        if result is None:
            click.echo(f"left before the end of task {task.task_id}", err=True)
            sys.exit(Exit.INTERRUPTED)
        if isinstance(task.handler, ReturnValueResultHandler) and _is_complete(task, result):
            spool.finish()
    sys.exit(report(result, as_json=bool(options.as_json)))


def _is_complete(task: Task, result: TaskResult) -> bool:
    """Whether there is an output for every call: also after failures, if all calls were asked for."""
    if result.state is TaskState.SUCCEEDED:
        return True
    collected = task.call_failure_policy is CallFailurePolicy.COLLECT_ALL
    return collected and result.failure is not None and result.failure.code is TaskFailureCode.CALLS_FAILED


def _hand_over(destination: str | ClusterDestination, task: Task, *, as_json: bool) -> None:
    async def work(client: WorkerClient) -> tuple[SubmitReply, str]:
        return await client.submit(task), client.address

    reply, address = talk(destination, work)
    click.echo(snapshot_json(reply.snapshot) if as_json else task.task_id)
    click.echo(f"follow it: blockx watch --to {address} {task.task_id}", err=True)
