"""Write targets as people type them."""

from __future__ import annotations

from pathlib import Path

from blockx_worker.config import is_loopback, parse_address

__all__ = ["absolute_target"]

_SQLITE = "sqlite:///"


def absolute_target(target: str, address: str) -> str:
    """A relative SQLite path means the current directory, not the worker's, as long as both are on this machine."""
    path = target.removeprefix(_SQLITE)
    if path == target or path.startswith("/") or not path or not is_loopback(parse_address(address)[0]):
        return target
    return f"{_SQLITE}{Path(path).absolute()}"
