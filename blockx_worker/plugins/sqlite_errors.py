"""What SQLite's errors mean for people: which file, what happened, what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from blockx_worker.plugins.config import plugin_failed
from blockx_worker.ports import StepFailed

__all__ = ["explain", "primary_code"]

_SENTENCES = {
    sqlite3.SQLITE_READONLY: "is read-only for the worker; make the file and its folder writable, or choose another target",
    sqlite3.SQLITE_PERM: "may not be used by the worker; change its permissions or choose another target",
    sqlite3.SQLITE_AUTH: "may not be used by the worker; change its permissions or choose another target",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; choose another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a copy, or move it away and write anew",
    sqlite3.SQLITE_FULL: "cannot grow: the disk or quota is full; make room and submit again",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
}


def primary_code(error: sqlite3.Error) -> int:
    """The primary result code; extended codes hold it in their lowest byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def explain(error: sqlite3.Error, path: str, busy_timeout_ms: int) -> StepFailed:
    """The failure that tells a person what is wrong with the database at ``path``."""
    code = primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        sentence = (
            f"is locked by another program for longer than {busy_timeout_ms} ms; "
            "end that program's transaction, or raise writers.sqlite_busy_timeout_ms"
        )
    elif code == sqlite3.SQLITE_CANTOPEN:
        sentence = _cannot_open(path)
    else:
        sentence = _SENTENCES.get(code, "refused the work")
    return plugin_failed(f"database {path} {sentence} (SQLite: {error})")


def _cannot_open(path: str) -> str:
    if Path(path).is_dir():
        return "is a folder; name a file in it"
    if not Path(path).parent.is_dir():
        return (
            f"cannot be made: the folder {Path(path).parent} does not exist; create it or correct the target"
        )
    return "cannot be opened; check the permissions of the file and its folder"
