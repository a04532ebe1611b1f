"""The configuration file as a flat list of entries."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from blockx_worker.config.errors import problem_line
from blockx_worker.config.fields import SECTIONS
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


def _entries(document: Mapping[str, Any], file: Path, problems: list[str]) -> Iterator[Entry]:
    origin, base = f"file {file}", file.parent
    for key, value in document.items():
        if isinstance(value, dict) and key in (*SECTIONS, "targets"):
            for name, inner in value.items():
                yield Entry(f"{key}.{name}", inner, origin, base)
        elif key in (*SECTIONS, "targets"):
            problems.append(problem_line(key, value, origin, f"expected a table: [{key}]"))
        elif isinstance(value, dict) and unknown_section(key):
            problems.append(f"[{key}] ({origin}): {unknown_section(key)}")
        else:
            yield Entry(key, value, origin, base)
