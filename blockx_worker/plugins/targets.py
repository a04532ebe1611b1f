"""Which databases tasks may write to, and how they are named.

A target is a name that the operator configured, or, where that is allowed, a URL. ``sqlite:///out.db`` is relative to
the worker's directory, ``sqlite:////data/out.db`` (four slashes) is absolute; ``postgresql://USER:PASSWORD@HOST/DATABASE``
is a PostgreSQL database, with all that libpq understands in a URL. No text that leaves here shows a password.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from blockx_worker.config.redact import redact_url
from blockx_worker.io.postgres import URL_PREFIXES, shown_url
from blockx_worker.model.fields import FieldError, shorten

__all__ = ["PostgresTarget", "SqliteTarget", "Target", "Targets"]

SQLITE = "sqlite:///"
EXPECTED = "expected sqlite:///FILE or postgresql://USER@HOST/DATABASE"


@attrs.frozen(kw_only=True)
class SqliteTarget:
    """An SQLite file: its absolute path, and what people call it (the configured name, or the URL)."""

    label: str
    path: str


@attrs.frozen(kw_only=True)
class PostgresTarget:
    """A PostgreSQL database. ``url`` holds the password, ``shown`` is the URL for people."""

    label: str
    url: str = attrs.field(repr=False)
    shown: str


Target: TypeAlias = SqliteTarget | PostgresTarget


class Targets:
    """The databases of this worker: ``names`` maps names to URLs, ``allow_urls`` admits URLs from tasks."""

    def __init__(self, names: Mapping[str, str], *, allow_urls: bool) -> None:
        self._names = dict(names)
        self._allow_urls = allow_urls

    def resolve(self, target: str) -> Target:
        """The database behind a name or URL; FieldError says what is accepted."""
        if target in self._names:
            return self._parse(self._names[target], target)
        shown = shorten(redact_url(target))
        if ":" not in target:
            raise self._error(f'no target is called "{shown}"; {self._accepted()}')
        if not self._allow_urls:
            raise self._error(
                f'this worker takes no URLs from tasks, and "{shown}" is one; {self._accepted()}'
            )
        return self._parse(target, shown)

    def _parse(self, url: str, label: str) -> Target:
        shown = shorten(redact_url(url))
        if url.startswith(URL_PREFIXES):
            return PostgresTarget(label=label, url=url, shown=shown_url(url))
        path = url.removeprefix(SQLITE)
        if path == url or not path:
            raise self._error(f'"{shown}" names no database; {EXPECTED}')
        if "?" in path or "\0" in path or path == ":memory:":
            raise self._error(f'"{shown}": expected the path of a file, without options')
        return SqliteTarget(label=label, path=os.path.abspath(path))  # noqa: PTH100 - text, not a look at the disk

    def _accepted(self) -> str:
        names = ", ".join(sorted(self._names)) or "none"
        urls = (
            "; or a URL such as sqlite:///FILE or postgresql://USER@HOST/DATABASE" if self._allow_urls else ""
        )
        return f"targets of this worker: {names}{urls}"

    def _error(self, problem: str) -> FieldError:
        return FieldError(f"resultHandler.target: {problem}")
