"""Where the outputs of a task go: a file that appears whole or not at all, or standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import click

from blockx_worker.cli.errors import CommandFailed

__all__ = ["FileSink", "OutputSink", "TerminalSink", "open_sink"]

TERMINAL_LINES = 20


class OutputSink(Protocol):
    """Takes JSON lines in pieces that may end anywhere."""

    def write(self, piece: bytes) -> None:
        """Take the next piece."""

    def finish(self) -> None:
        """The outputs are complete and count."""


class FileSink:
    """Collects into a temporary file beside the target; `finish` puts it in the target's place."""

    def __init__(self, target: Path, temporary: Path, file: BinaryIO) -> None:
        self._target = target
        self._temporary = temporary
        self._file = file

    def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self._file.write(piece)

    def finish(self) -> None:
        """Replace the target."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.replace(self._target)


class StreamSink:
    """Passes everything on to standard output."""

    def write(self, piece: bytes) -> None:
        """Take the next piece."""
        sys.stdout.buffer.write(piece)

    def finish(self) -> None:
        """Nothing is held back."""
        sys.stdout.buffer.flush()


class TerminalSink:
    """Shows a person the first lines, and how many more there are."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines = 0

    def write(self, piece: bytes) -> None:
        """Take the next piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines[: max(0, TERMINAL_LINES - self._lines)]:
            click.echo(line)
        self._lines += len(lines)

    def finish(self) -> None:
        """Say what was left out."""
        if self._lines > TERMINAL_LINES:
            more = self._lines - TERMINAL_LINES
            click.echo(f"… {more} more lines; --output F.jsonl writes them all to a file", err=True)


@contextmanager
def open_sink(output: str | None) -> Iterator[OutputSink]:
    """The sink for ``--output``: a file, ``-`` or None (then short on a terminal)."""
    if output is None and sys.stdout.isatty():
        yield TerminalSink()
    elif output in (None, "-"):
        yield StreamSink()
    else:
        assert output is not None
        with _file_sink(Path(output)) as sink:
            yield sink


@contextmanager
def _file_sink(target: Path) -> Iterator[FileSink]:
    """Opened before the task is sent, so that a path that cannot be written costs nobody any work."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        file = temporary.open("wb")
    except OSError as error:
        raise CommandFailed(f"cannot write {target}: {error.strerror}") from None
    try:
        with file:
            yield FileSink(target, temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
