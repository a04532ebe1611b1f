"""`blockx functions`: what a folder of functions holds, and what is wrong with it, without a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import click
import msgspec

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.options import json_option
from blockx_worker.cli.words import counted
from blockx_worker.functions import (
    AllowListFile,
    FunctionDescription,
    FunctionProblem,
    LoadedView,
    load_directory,
)

__all__ = ["functions"]

SHOWN_DIGEST_CHARS = 12
MAX_COLUMN = 60  # a longer signature pushes its own line out of the columns, not all lines


@click.group()
def functions() -> None:
    """Look at a folder of functions; nothing in it is executed."""


@functions.command("list")
@click.argument("folder", metavar="DIR")
@click.option(
    "--digests", is_flag=True, help="Print a line for each unit of code, ready for functions_allow_list."
)
@json_option
def list_functions(folder: str, *, digests: bool, as_json: bool) -> None:
    """List the functions of DIR: id with parameters, digest, selector, first line of the docstring.

    A function is every public module-level `def`; its id is the dotted path to it. A module is a unit of code with a digest,
    and so is a package (a folder with an __init__.py) as a whole.
    """
    view = _load(folder)
    if digests and as_json:
        raise CommandFailed("--digests and --json exclude each other; the JSON has the digests, too")
    if as_json:
        click.echo(msgspec.json.encode([_as_json(function) for function in view.describe()]))
    else:
        for line in _digests(view) if digests else _table(view):
            click.echo(line)
    for problem in view.problems():
        click.echo(f"problem: {problem}", err=True)
    if not view.function_ids and not as_json:
        click.echo(
            f"no functions in {folder}: a function is a public module-level `def` in a .py file", err=True
        )


@functions.command()
@click.argument("folder", metavar="DIR")
@click.option("--allow-list", metavar="FILE", help="Also say which code is not on this list of audited code.")
@json_option
def check(folder: str, *, allow_list: str | None, as_json: bool) -> None:
    """Say whether all code of DIR can be used; exit code 1 if not.

    Warnings are about code that can be used, but hardly as it was meant; they leave the exit code alone.
    """
    view, of_list = _load_audited(folder, allow_list)
    problems, warnings = [*view.problems(), *of_list], view.warnings()
    if as_json:
        click.echo(
            msgspec.json.encode(
                {
                    "functions": len(view.function_ids),
                    "problems": [_problem_json(problem) for problem in problems],
                    "warnings": [_problem_json(warning) for warning in warnings],
                }
            )
        )
    else:
        for line in (*map(str, problems), *(f"warning: {warning}" for warning in warnings)):
            click.echo(line)
        parts = [
            counted(len(view.function_ids), "function"),
            counted(len(problems), "problem"),
            *([counted(len(warnings), "warning")] if warnings else []),
        ]
        click.echo(", ".join(parts), err=True)
    sys.exit(1 if problems else 0)


def _load(folder: str, audited: frozenset[str] | None = None) -> LoadedView:
    try:
        return load_directory(folder, audited)
    except OSError as error:
        raise CommandFailed(str(error) if error.filename is None else f"{folder}: {error.strerror}") from None


def _load_audited(folder: str, allow_list: str | None) -> tuple[LoadedView, list[FunctionProblem]]:
    """The view behind the audit gate, and a problem for each bad line of the list and each unit that is not on it."""
    if allow_list is None:
        return _load(folder), []
    try:
        allowed = AllowListFile(allow_list).look()
    except OSError as error:
        raise CommandFailed(str(error)) from None
    view = _load(folder, allowed.digests)
    missing = [
        FunctionProblem(
            path=_unit(view, digest), reason=f"its code (digest {digest}) is not on the list of audited code"
        )
        for digest, _ in _units(view.unaudited())
    ]
    return view, [*allowed.problems, *missing]


def _units(found: Sequence[FunctionDescription]) -> Iterator[tuple[str, list[FunctionDescription]]]:
    """The functions by digest, in order of id."""
    by_digest: dict[str, list[FunctionDescription]] = {}
    for function in found:
        by_digest.setdefault(function.digest, []).append(function)
    yield from by_digest.items()


def _unit(view: LoadedView, digest: str) -> str:
    """Path of the module, or of the folder of the package."""
    main = PurePosixPath(view.code(digest).main)
    return str(main.parent if main.name == "__init__.py" else main)


def _digests(view: LoadedView) -> Iterator[str]:
    for digest, found in _units(view.describe()):
        yield f"{digest}  # {_unit(view, digest)}: {', '.join(function.function_id for function in found)}"


def _table(view: LoadedView) -> Iterator[str]:
    rows = [
        (
            _signature(function),
            function.digest[:SHOWN_DIGEST_CHARS],
            function.entry_selector,
            ("[no cache] " if function.no_cache else "") + function.doc,
        )
        for function in view.describe()
    ]
    widths = [min(MAX_COLUMN, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _signature(function: FunctionDescription) -> str:
    module, _, _name = function.function_id.rpartition(".")
    return f"{module}.{function.signature}"


def _as_json(function: FunctionDescription) -> dict[str, object]:
    return {
        "functionId": function.function_id,
        "signature": function.signature,
        "doc": function.doc,
        "noCache": function.no_cache,
        "path": function.path,
        "line": function.line,
        "digest": function.digest,
        "entrySelector": function.entry_selector,
    }


def _problem_json(problem: FunctionProblem) -> dict[str, object]:
    return {"path": problem.path, "line": problem.line, "reason": problem.reason}
