"""Looks at a function folder and keeps the last good version of every module in it.

Rules:

* A change counts once two looks in a row have seen the same file state (inode, times, size), so that a half-written
  file, or one that an editor is just replacing, is not taken. The first look of all takes everything as it is.
* File times are coarse (often 4 ms), and two writes within one tick look alike, so the text is read once more at the look
  after the one that took it.
* A file that cannot be read, decoded or compiled keeps its last good version; a file that is gone is gone.
* A folder that cannot be listed keeps all that was known below it.
* Symbolic links, hidden entries and entries that begin with ``_`` are no functions (``__init__.py`` is looked at only
  to report functions in it).

Everything here blocks: it runs in a thread, and in one at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import attrs

from blockx_worker.functions.inspect import Module, ModuleError, read_module
from blockx_worker.functions.view import FunctionProblem

__all__ = ["FolderScanner", "Look"]

MAX_FILES = 10_000

Signature: TypeAlias = tuple[int, int, int, int]


@attrs.frozen(kw_only=True)
class Look:
    """What one look saw: the modules as they stand, all problems, and whether a change waits for the next look."""

    modules: Sequence[Module]
    problems: Sequence[FunctionProblem]
    unsettled: bool


@attrs.define
class _File:
    signature: Signature
    text_hash: bytes = b""
    confirmed: bool = False
    module: Module | None = None
    problem: FunctionProblem | None = None


@attrs.define
class _Listing:
    files: dict[str, Signature] = attrs.field(factory=dict)
    unlisted: list[FunctionProblem] = attrs.field(factory=list)


class FolderScanner:
    """The state of one folder between looks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, _File] = {}
        self._unsettled: dict[str, Signature | None] = {}
        self._first = True

    def look(self) -> Look:
        """Look once; FileNotFoundError or NotADirectoryError, for people, if the first look finds no folder."""
        if self._first:
            self._require_folder()
        listing = self._list()
        for path in sorted(self._files.keys() | listing.files.keys()):
            self._follow(path, listing)
        self._first = False
        files = [self._files[path] for path in sorted(self._files)]
        return Look(
            modules=[f.module for f in files if f.module is not None],
            problems=[*listing.unlisted, *(f.problem for f in files if f.problem is not None)],
            unsettled=bool(self._unsettled),
        )

    def _require_folder(self) -> None:
        if not self._root.exists():
            message = f"the function folder {self._root} does not exist: create it, or name another with --functions"
            raise FileNotFoundError(message)
        if not self._root.is_dir():
            raise NotADirectoryError(
                f"{self._root} is not a folder: --functions names a folder of Python modules"
            )

    def _follow(self, path: str, listing: _Listing) -> None:
        """Take a change of one file once it has settled."""
        known, now = self._files.get(path), listing.files.get(path)
        if (known.signature if known is not None else None) == now or (now is None and _below(path, listing)):
            self._unsettled.pop(path, None)
            if known is not None and now is not None and not known.confirmed:
                self._load(path, now)
                known.confirmed = True
        elif not self._first and (path not in self._unsettled or self._unsettled[path] != now):
            self._unsettled[path] = now
        elif now is None:
            del self._files[path], self._unsettled[path]
        else:
            self._unsettled.pop(path, None)
            self._load(path, now)

    def _load(self, path: str, signature: Signature) -> None:
        file = self._files.setdefault(path, _File(signature))
        try:
            content = (self._root / path).read_bytes()
            after = _signature((self._root / path).stat(follow_symlinks=False))
        except OSError as error:
            file.problem = FunctionProblem(path=_shown(path), reason=f"cannot be read: {error.strerror}")
            file.text_hash = b""
        else:
            if after != signature and not self._first:
                self._unsettled[path] = after  # changed under our eyes; the next look decides
                return
            self._inspect(path, file, content)
        file.signature = signature
        file.confirmed = False

    def _inspect(self, path: str, file: _File, content: bytes) -> None:
        text_hash = hashlib.sha256(content).digest()
        if text_hash == file.text_hash:
            return
        file.text_hash = text_hash
        try:
            file.module = read_module(path, content)
            file.problem = None
        except ModuleError as error:
            kept = "" if file.module is None else " (its last good version stays in use)"
            file.problem = FunctionProblem(path=_shown(path), line=error.line, reason=error.reason + kept)

    def _list(self) -> _Listing:
        listing = _Listing()
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = list(_entries(self._root / folder))
            except OSError as error:
                reason = f"the folder cannot be listed: {error.strerror}"
                listing.unlisted.append(FunctionProblem(path=_shown(folder) or ".", reason=reason))
                continue
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif len(listing.files) < MAX_FILES:
                    self._add(listing, path, entry)
        if len(listing.files) == MAX_FILES:
            reason = f"holds {MAX_FILES} modules or more; the rest is not looked at"
            listing.unlisted.append(FunctionProblem(path=".", reason=reason))
        return listing

    def _add(self, listing: _Listing, path: str, entry: os.DirEntry[str]) -> None:
        try:
            listing.files[path] = _signature(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return  # gone between listing and looking: the same as not listed


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith((".", "_")):
                    yield entry
            elif entry.is_file(follow_symlinks=False) and _is_module(entry.name):
                yield entry


def _is_module(name: str) -> bool:
    return name.endswith(".py") and (name == "__init__.py" or not name.startswith((".", "_")))


def _signature(stat: os.stat_result) -> Signature:
    return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)


def _below(path: str, listing: _Listing) -> bool:
    """Whether the file lies below a folder that could not be listed."""
    parents = {_shown(str(parent)) for parent in PurePosixPath(path).parents}
    return any(problem.path in parents and "listed" in problem.reason for problem in listing.unlisted)


def _shown(path: str) -> str:
    """A path as text that can be printed: file names may hold bytes that are no text."""
    return path.encode(errors="backslashreplace").decode()
