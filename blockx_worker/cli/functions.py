"""`blockx functions`: what a folder of functions holds, and what is wrong with it, without a worker."""

from __future__ import annotations

import sys

import attrs
import click
import msgspec

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.options import json_option
from blockx_worker.functions import FunctionDescription, LoadedView, load_directory

__all__ = ["functions"]


@click.group()
def functions() -> None:
    """Look at a folder of functions; nothing in it is executed."""


@functions.command("list")
@click.argument("folder", metavar="DIR")
@json_option
def list_functions(folder: str, *, as_json: bool) -> None:
    """List the functions of DIR with their parameters.

    A function is every public module-level `def`; its id is the dotted path to it.
    """
    view = _load(folder)
    if as_json:
        click.echo(msgspec.json.encode([_as_json(function) for function in view.describe()]))
    else:
        for function in view.describe():
            click.echo(_line(function))
    for problem in view.problems():
        click.echo(f"problem: {problem}", err=True)
    if not view.function_ids and not as_json:
        click.echo(
            f"no functions in {folder}: a function is a public module-level `def` in a .py file", err=True
        )


@functions.command()
@click.argument("folder", metavar="DIR")
@json_option
def check(folder: str, *, as_json: bool) -> None:
    """Say whether every module of DIR can be used; exit code 1 if not."""
    view = _load(folder)
    problems = view.problems()
    if as_json:
        found = [attrs.asdict(problem) for problem in problems]
        click.echo(msgspec.json.encode({"functions": len(view.function_ids), "problems": found}))
    else:
        for problem in problems:
            click.echo(str(problem))
        click.echo(f"{len(view.function_ids)} functions, {len(problems)} problems", err=True)
    sys.exit(1 if problems else 0)


def _load(folder: str) -> LoadedView:
    try:
        return load_directory(folder)
    except OSError as error:
        raise CommandFailed(str(error) if error.filename is None else f"{folder}: {error.strerror}") from None


def _line(function: FunctionDescription) -> str:
    module, _, _name = function.function_id.rpartition(".")
    notes = "  [no cache]" if function.no_cache else ""
    doc = f"  {function.doc}" if function.doc else ""
    return f"{module}.{function.signature}{notes}{doc}"


def _as_json(function: FunctionDescription) -> dict[str, object]:
    return {
        "functionId": function.function_id,
        "signature": function.signature,
        "doc": function.doc,
        "noCache": function.no_cache,
        "path": function.path,
        "line": function.line,
        "digest": function.digest,
    }
