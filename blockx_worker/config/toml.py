"""The configuration file as a flat list of entries."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from blockx_worker.config.errors import problem_line
from blockx_worker.config.fields import MAPS, SECTIONS
from blockx_worker.config.names import unknown_section

__all__ = ["Entry", "read_toml"]


@attrs.frozen
class Entry:
    """One value as somebody wrote it. ``base`` is where a relative path starts; None = the current directory."""

    path: str
    raw: object
    origin: str
    base: Path | None = None


def read_toml(file: Path, problems: list[str]) -> list[Entry]:
    """All entries of a file; problems with the file itself or its sections are added to ``problems``."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{file}: cannot read the configuration file: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{file}: the configuration file is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: not valid TOML: {error}")
    else:
        return list(_entries(document, file, problems))
    return []


def _entries(
    table: Mapping[str, Any], file: Path, problems: list[str], section: str | None = None
) -> Iterator[Entry]:
    origin, base = f"file {file}", file.parent
    for key, value in table.items():
        path = f"{section}.{key}" if section else key
        if isinstance(value, dict) and path in SECTIONS:
            yield from _entries(value, file, problems, path)
        elif isinstance(value, dict) and path in MAPS:
            for name, inner in value.items():
                yield Entry(f"{path}.{name}", inner, origin, base)
        elif path in SECTIONS or path in MAPS:
            problems.append(problem_line(path, value, origin, f"expected a table: [{path}]"))
        elif isinstance(value, dict) and section is None and unknown_section(key):
            problems.append(f"[{key}] ({origin}): {unknown_section(key)}")
        else:
            yield Entry(path, value, origin, base)
