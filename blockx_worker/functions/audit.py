"""The audit gate's list: digests of the code that may run, one a line, in a file that is followed like the functions.

``#`` begins a comment, to the end of the line. A line that is no digest allows nothing and is reported; so is a file that
cannot be read, and then the last list stays. A change counts once two looks have read the same text.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import attrs

from blockx_worker.functions.view import FunctionProblem
from blockx_worker.model.fields import shorten

__all__ = ["AllowList", "AllowListFile", "parse_allow_list"]

MAX_LIST_BYTES = 16 * 1024 * 1024

_DIGEST = re.compile(r"[0-9a-f]{64}")


@attrs.frozen(kw_only=True)
class AllowList:
    """The digests (64 hex digits each) that may run, and the problems of the list."""

    digests: frozenset[str]
    problems: tuple[FunctionProblem, ...] = ()
    unsettled: bool = False


def parse_allow_list(path: str, text: str) -> AllowList:
    """The digests in the text of the file ``path``."""
    digests, problems = set(), []
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.partition("#")[0].strip().lower()
        if _DIGEST.fullmatch(word):
            digests.add(word)
        elif word:
            reason = f"expected a digest of 64 hex digits as `blockx functions list --digests` prints it, got {shorten(word)}"
            problems.append(FunctionProblem(path=path, line=number, reason=reason))
    return AllowList(digests=frozenset(digests), problems=tuple(problems))


class AllowListFile:
    """Follows the file; everything here blocks, one call at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._list: AllowList | None = None
        self._taken = b""
        self._read_last: bytes | None = None

    def look(self) -> AllowList:
        """The list as it stands; OSError, for people, if the first look cannot read it."""
        try:
            text = self._read()
        except OSError as error:
            return self._unreadable(error)
        if self._list is None or (text != self._taken and text == self._read_last):
            self._list = parse_allow_list(str(self._path), text.decode(errors="replace"))
            self._taken = text
        self._read_last = text
        return attrs.evolve(self._list, unsettled=text != self._taken)

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            content = file.read(MAX_LIST_BYTES + 1)
        if len(content) > MAX_LIST_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_LIST_BYTES} bytes")
        return content

    def _unreadable(self, error: OSError) -> AllowList:
        self._read_last = None
        if self._list is None:
            message = f"the list of audited code {self._path} (functions_allow_list) cannot be read: {error.strerror}"
            raise type(error)(message) from None
        reason = f"cannot be read: {error.strerror}; the list that was read before stays in force"
        return attrs.evolve(self._list, problems=(FunctionProblem(path=str(self._path), reason=reason),))
