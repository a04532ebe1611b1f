"""Where the outputs of a task go: a file that appears whole or not at all, or standard output.

Outputs are spooled to disk while the task runs and put in their place when it has delivered them, so that a broken
connection can start over and a task that fails leaves nothing half done.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

import click

from blockx_worker.cli.errors import CommandFailed

__all__ = ["OutputSpool", "open_spool", "show_first_lines"]

TERMINAL_LINES = 20


class OutputSpool:
    """Takes JSON lines in pieces that may end anywhere."""

    def __init__(self, file: IO[bytes], deliver: Callable[[], None]) -> None:
        self._file = file
        self._deliver = deliver

    def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self._file.write(piece)

    def restart(self) -> None:
        """Forget everything: the outputs come again from the first on."""
        self._file.seek(0)
        self._file.truncate()

    def finish(self) -> None:
        """The outputs are complete: put them in their place."""
        self._file.flush()
        self._deliver()


@contextmanager
def open_spool(output: str | None) -> Iterator[OutputSpool]:
    """The spool for ``--output``: a file, or for ``-`` and None standard output (None: a terminal gets a few lines).

    A path that cannot be written is refused here, before a task costs anybody any work.
    """
    if output is not None and output != "-":
        with _file_spool(Path(output)) as spool:
            yield spool
        return
    with tempfile.TemporaryFile() as file:
        deliver: Callable[[IO[bytes]], None] = (
            show_first_lines if output is None and sys.stdout.isatty() else _copy
        )
        yield OutputSpool(file, partial(deliver, file))


def show_first_lines(file: IO[bytes]) -> None:
    """Show a person the first lines, and how many more there are."""
    file.seek(0)
    for line in islice(file, TERMINAL_LINES):
        click.echo(line.rstrip(b"\n"))
    if more := sum(1 for _ in file):
        click.echo(f"… {more:,} more; --output F.jsonl writes them all to a file", err=True)


def _copy(file: IO[bytes]) -> None:
    file.seek(0)
    sys.stdout.flush()
    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


@contextmanager
def _file_spool(target: Path) -> Iterator[OutputSpool]:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        file = temporary.open("wb")
    except OSError as error:
        raise CommandFailed(f"cannot write {target}: {error.strerror}") from None

    def deliver() -> None:
        os.fsync(file.fileno())
        temporary.replace(target)

    try:
        with file:
            yield OutputSpool(file, deliver)
    finally:
        temporary.unlink(missing_ok=True)
