"""`blockx run`: the worker itself."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from blockx_worker.cli.options import settings_options
from blockx_worker.cli.settings import load

__all__ = ["run"]


@click.command()
@settings_options
def run(profile: str | None, config_file: Path | None, **flags: object) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    Settings come from --config, then the environment, then flags; `blockx config` shows them. On the first signal the
    worker stops taking tasks, finishes what runs, and exits with 0; with 1 if tasks had to be cut off. A second signal
    skips the waiting.
    """
    loaded = load(profile, config_file, flags)
    from blockx_worker.app import run as run_worker  # noqa: PLC0415 - a bad configuration is told before all imports

    sys.exit(run_worker(loaded))
