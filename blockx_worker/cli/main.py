"""The group `blockx`: each command is imported only when it is used, so that `--help` and errors come at once."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

COMMANDS = {
    "run": "blockx_worker.cli.run:run",
    "submit": "blockx_worker.cli.submit:submit",
    "watch": "blockx_worker.cli.watch:watch",
    "result": "blockx_worker.cli.tasks:result",
    "cancel": "blockx_worker.cli.tasks:cancel",
    "status": "blockx_worker.cli.status:status",
    "functions": "blockx_worker.cli.functions:functions",
    "token": "blockx_worker.cli.token:token",
    "config": "blockx_worker.cli.config:config",
    "demo": "blockx_worker.cli.demo:demo",
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="blockx-worker", prog_name="blockx")
def main() -> None:
    """Run a worker, and submit tasks to it.

    New here? `blockx demo` shows everything in a few seconds.

    Exit codes: 0 succeeded, 1 the task failed, 2 bad usage or refused, 3 no worker reachable.
    """
