"""`blockx config`: every setting, its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from blockx_worker.cli.options import json_option, settings_options
from blockx_worker.cli.settings import load
from blockx_worker.config import LoadedSettings, redact_url
from blockx_worker.config.fields import FIELDS, value_at
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
        section, _, name = path.partition(".")
        if section == "targets":
            yield path, redact_url(loaded.settings.targets[name]), origin
        else:
            yield path, value_at(loaded.settings, path), origin


def _text(path: str, value: Any) -> str:
    """As it would stand in the file, with the unit where that helps reading."""
    field = FIELDS.get(path)
    if value is None:
        return "(unset)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | Mapping):
        return ",".join(value)
    if field is not None and value and field.kind == "ms":
        return f"{value} ({format_duration(value)})"
    if field is not None and value and field.kind == "bytes":
        return f"{value} ({format_size(value)})"
    return str(value)
