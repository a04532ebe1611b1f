"""`blockx config`: every setting, its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from blockx_worker.cli.options import json_option, settings_options
from blockx_worker.cli.settings import load
from blockx_worker.config import LoadedSettings
from blockx_worker.config.fields import FIELDS
from blockx_worker.config.shown import shown_value
from blockx_worker.config.values import format_duration, format_size

__all__ = ["config"]


@click.command()
@settings_options
@json_option
def config(profile: str | None, config_file: Path | None, *, as_json: bool, **flags: object) -> None:
    """Print every setting with its value and origin.

    Takes the flags of `run`. Nothing is started. Passwords are masked.
    """
    loaded = load(profile, config_file, flags)
    rows = list(_rows(loaded))
    if as_json:
        fields = [{"field": path, "value": value, "origin": origin} for path, value, origin in rows]
        click.echo(msgspec.json.encode(fields))
        return
    shown = [(path, _text(path, value), origin) for path, value, origin in rows]
    path_width, value_width = (max(len(row[i]) for row in shown if len(row[i]) <= 44) for i in (0, 1))
    for path, text, origin in shown:
        click.echo(f"{path:<{path_width}}  {text:<{value_width}}  {origin}")


def _rows(loaded: LoadedSettings) -> Iterator[tuple[str, Any, str]]:
    for path, origin in loaded.origins.items():
        yield path, shown_value(loaded.settings, path), origin


def _text(path: str, value: Any) -> str:
    """As it would stand in the file, with the unit where that helps reading."""
    match value:
        case None:
            return "(unset)"
        case bool():
            return str(value).lower()
        case list():
            return ",".join(value)
        case Mapping():
            return ", ".join(f"{key} = {inner}" for key, inner in value.items()) or "(empty)"
        case _:
            return f"{value}{_unit(path, value)}"


def _unit(path: str, value: Any) -> str:
    kind = FIELDS[path].kind if path in FIELDS else "text"
    if value and kind == "ms":
        return f" ({format_duration(value)})"
    return f" ({format_size(value)})" if value and kind == "bytes" else ""
