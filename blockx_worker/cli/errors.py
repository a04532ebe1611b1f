"""How a command ends that cannot go on: the exit codes, and messages that say what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any, ClassVar

import click

__all__ = ["CommandFailed", "Exit", "Unreachable"]


class Exit(IntEnum):
    """Exit codes of all commands; INTERRUPTED (what shells expect) is a `watch` that was left before the end."""

    SUCCEEDED = 0
    TASK_FAILED = 1
    REFUSED = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandFailed(click.ClickException):
    """Bad usage, or the worker refused: one message on stderr, exit code 2."""

    exit_code: ClassVar[int] = int(Exit.REFUSED)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, always to stderr."""
        click.echo(f"error: {self.message}", file=file, err=True)


class Unreachable(CommandFailed):
    """No worker answers at the address; exit code 3."""

    exit_code: ClassVar[int] = int(Exit.UNREACHABLE)

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"no worker reachable at {address}: {why}\n"
            "Is it running? Start one with `blockx run --functions DIR`; --to must name the address that it prints."
        )
