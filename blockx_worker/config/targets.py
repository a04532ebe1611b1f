"""Relative SQLite files in database URLs: whoever writes one means a folder of their own, not the worker's."""

from __future__ import annotations

from pathlib import Path

__all__ = ["absolute_sqlite"]

SQLITE = "sqlite:///"


def absolute_sqlite(url: str, folder: Path) -> str:
    """``sqlite:///out.db`` with the path starting at ``folder``; every other text unchanged."""
    path = url.removeprefix(SQLITE)
    if path == url or not path or path.startswith((":", "/")):
        return url
    return f"{SQLITE}{(folder / path).absolute()}"
