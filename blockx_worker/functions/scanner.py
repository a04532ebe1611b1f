"""Looks at a function folder and keeps the last good version of every unit of code in it.

Rules:

* A change counts once two looks in a row have seen the same file state (inode, times, size), so that a half-written
  file, or one that an editor is just replacing, is not taken. The first look of all takes everything as it is.
* File times are coarse (often 4 ms), and two writes within one tick look alike, so the text is read once more at the look
  after the one that took it.
* A unit of code (see `units`) changes as a whole: while a change of one of its files has not settled, or one of them
  cannot be read, decoded or compiled, it keeps its last good version. A unit whose files are gone is gone.
* A folder that cannot be listed keeps all that was known below it.
* Symbolic links and hidden entries are not looked at, nor, outside packages, entries that begin with ``_``.

Everything here blocks: it runs in a thread, and in one at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import attrs

from blockx_worker.functions.inspect import Module, ModuleError, module_name, read_module
from blockx_worker.functions.units import INITIALIZER, CodeUnit
from blockx_worker.functions.versions import UnitVersions
from blockx_worker.functions.view import FunctionProblem

__all__ = ["FolderScanner", "Look"]

MAX_FILES = 10_000

Signature: TypeAlias = tuple[int, int, int, int]


@attrs.frozen(kw_only=True)
class Look:
    """What one look saw: the units as they stand, all problems, and whether a change waits for the next look."""

    units: Sequence[CodeUnit]
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
    misnamed: list[FunctionProblem] = attrs.field(factory=list)


class FolderScanner:
    """The state of one folder between looks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, _File] = {}
        self._unsettled: dict[str, Signature | None] = {}
        self._versions = UnitVersions()
        self._first = True
        self._changed = False

    def look(self) -> Look:
        """Look once; FileNotFoundError or NotADirectoryError, for people, if the first look finds no folder."""
        if self._first:
            self._require_folder()
        listing = self._list()
        for path in sorted(self._files.keys() | listing.files.keys()):
            self._follow(path, listing)
        self._first = False
        if self._changed:
            self._versions.update(self._files, self._unsettled)
            self._changed = False
        return Look(
            units=self._versions.units,
            problems=[*listing.unlisted, *listing.misnamed, *self._of_top(), *self._versions.problems],
            unsettled=bool(self._unsettled),
        )

    def _of_top(self) -> Iterator[FunctionProblem]:
        """The function folder is no package: functions of its own ``__init__.py`` would have no module in their id."""
        top = self._files.get(INITIALIZER)
        if top is not None and top.module is not None and top.module.definitions:
            line = top.module.definitions[0].line
            reason = (
                "its functions have no id, since the function folder is no package: move them into a module"
            )
            yield FunctionProblem(path=INITIALIZER, line=line, reason=reason)

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
            if path in self._unsettled:
                del self._unsettled[path]
                self._changed = True
            if known is not None and now is not None and not known.confirmed:
                self._load(path, now)
                known.confirmed = True
            return
        self._changed = True
        if not self._first and (path not in self._unsettled or self._unsettled[path] != now):
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
            file.module = None
            file.problem = FunctionProblem(path=path, reason=f"cannot be read: {error.strerror}")
            file.text_hash = b""
            self._changed = True
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
        file.module = file.problem = None
        try:
            file.module = read_module(path, content)
        except ModuleError as error:
            file.problem = FunctionProblem(path=path, line=error.line, reason=error.reason)
        self._changed = True

    def _list(self) -> _Listing:
        listing = _Listing()
        folders = [("", False)]
        while folders:
            folder, packaged = folders.pop()
            try:
                entries = _entries(self._root / folder)
            except OSError as error:
                reason = f"the folder cannot be listed: {error.strerror}"
                listing.unlisted.append(FunctionProblem(path=_shown(folder) or ".", reason=reason))
                continue
            packaged = packaged or (folder != "" and any(entry.name == INITIALIZER for entry in entries))
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("_") and entry.name != INITIALIZER and not packaged:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append((path, packaged))
                elif len(listing.files) < MAX_FILES:
                    self._add(listing, path, entry)
        if len(listing.files) == MAX_FILES:
            reason = f"holds {MAX_FILES} modules or more; the rest is not looked at"
            listing.unlisted.append(FunctionProblem(path=".", reason=reason))
        return listing

    def _add(self, listing: _Listing, path: str, entry: os.DirEntry[str]) -> None:
        try:
            if path not in self._files:
                module_name(path)
            listing.files[path] = _signature(entry.stat(follow_symlinks=False))
        except ModuleError as error:
            listing.misnamed.append(FunctionProblem(path=_shown(path), reason=error.reason))
        except FileNotFoundError:
            return  # gone between listing and looking: the same as not listed


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Sub-folders and Python files, by name."""
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if _is_code(entry)]
    return sorted(found, key=lambda entry: entry.name)


def _is_code(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name == "__pycache__":
        return False
    if entry.is_dir(follow_symlinks=False):
        return True
    return entry.is_file(follow_symlinks=False) and entry.name.endswith(".py")


def _signature(stat: os.stat_result) -> Signature:
    return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)


def _below(path: str, listing: _Listing) -> bool:
    """Whether the file lies below a folder that could not be listed."""
    parents = {_shown(str(parent)) for parent in PurePosixPath(path).parents}
    return any(problem.path in parents and "listed" in problem.reason for problem in listing.unlisted)


def _shown(path: str) -> str:
    """A path as text that can be printed: file names may hold bytes that are no text."""
    return path.encode(errors="backslashreplace").decode()
