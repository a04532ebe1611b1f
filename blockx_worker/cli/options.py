"""Parameter types and groups of options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from blockx_worker.cli.credentials import credentials_options
from blockx_worker.config import parse_address
from blockx_worker.config.values import parse_duration

__all__ = ["ADDRESS", "BLOCKS", "DURATION", "json_option", "settings_options", "to_option"]

F = TypeVar("F", bound=Callable[..., Any])

_BLOCKS = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", re.ASCII)


class DurationType(click.ParamType[int]):
    """``500ms``, ``5s``, ``10m``; the value is milliseconds. A bare number is refused: nobody can know its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ValueError:
            hint = f"; did you mean {value}s?" if value.isdigit() else ""
            self.fail(f"{value!r} is no duration such as 500ms, 5s, 10m, 1h or 0s{hint}", param, ctx)


class AddressType(click.ParamType[str]):
    """HOST:PORT of a worker."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address, checked."""
        try:
            _host, port = parse_address(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if port == 0:
            self.fail(
                f"{value!r}: port 0 is only for listening; the worker's ready file names its port", param, ctx
            )
        return str(value)


class BlocksType(click.ParamType[tuple[int, int]]):
    """One block ``N``, or an inclusive range ``N..M``."""

    name = "N|N..M"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """First and last block."""
        if isinstance(value, tuple):
            return value
        match = _BLOCKS.fullmatch(value)
        if match is None:
            self.fail(
                f"{value!r} is no block such as 17000000 and no range such as 17000000..17000099", param, ctx
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            self.fail(f"{value!r}: the range ends before it begins", param, ctx)
        return first, last


DURATION = DurationType()
ADDRESS = AddressType()
BLOCKS = BlocksType()


def to_option(command: F) -> F:
    """``--to``, the worker to talk to, and how to make that secret."""
    to = click.option("--to", "address", type=ADDRESS, required=True, help="The worker, as HOST:PORT.")
    return to(credentials_options(command))


def json_option(command: F) -> F:
    """``--json``, for programs that read the output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def settings_options(command: F) -> F:
    """The flags that set the worker's configuration, in the order of the help page."""
    options = (
        click.option("--profile", metavar="block|bundle", help="Deployment profile; default block."),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file."),
        click.option("--functions", "functions_dir", metavar="DIR", help="Folder of the functions."),
        click.option("--blocks", "blocks_dir", metavar="DIR", help="Folder of the block tables."),
        click.option("--listen", metavar="HOST:PORT", help="Where to serve; port 0 picks a free one."),
        click.option("--executors", "executor_count", metavar="N", help="Number of executor processes."),
        click.option("--tls-cert", metavar="F", help="The worker's certificate chain (PEM)."),
        click.option("--tls-key", metavar="F", help="Its key."),
        click.option(
            "--tls-client-ca", metavar="F", help="Ask clients for certificates signed by these CAs."
        ),
        click.option("--tokens", metavar="F", help="Ask clients for a token of this file."),
        click.option("--insecure", is_flag=True, default=None, help="Serve beyond loopback in plain text."),
        click.option("--ready-file", metavar="F", help="File that appears once the worker serves."),
    )
    for option in reversed(options):
        command = option(command)
    return command
