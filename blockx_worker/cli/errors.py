"""How a command ends that cannot go on: the exit codes, and messages that say what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any, ClassVar

import click

__all__ = ["CommandFailed", "Exit", "Interrupted", "TaskFailed", "Unreachable"]


class Exit(IntEnum):
    """Exit codes of all commands; INTERRUPTED (what shells expect) is a command that was left before its end."""

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


class Interrupted(click.ClickException):
    """The user left; exit code 130, nothing to say."""

    exit_code: ClassVar[int] = int(Exit.INTERRUPTED)

    def __init__(self) -> None:
        super().__init__("interrupted")

    def show(self, file: IO[Any] | None = None) -> None:
        """Print nothing: the user knows."""


class TaskFailed(CommandFailed):
    """A task did not do what the command promised; exit code 1."""

    exit_code: ClassVar[int] = int(Exit.TASK_FAILED)


class Unreachable(CommandFailed):
    """No worker answers; exit code 3."""

    exit_code: ClassVar[int] = int(Exit.UNREACHABLE)

    @classmethod
    def at(cls, address: str, why: str) -> Unreachable:
        """Nobody answers at an address that the user named."""
        return cls(
            f"no worker reachable at {address}: {why}\n"
            "Is it running? Start one with `blockx run --functions DIR`; --to must name the address that it logs."
        )

    @classmethod
    def start_failed(cls, why: str, log: str) -> Unreachable:
        """A worker of our own did not come up."""
        return cls(f"the worker did not start: {why}\n{log}")
