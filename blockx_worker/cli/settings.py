"""From flags to loaded settings, with configuration errors told as one list."""

from __future__ import annotations

import os
from pathlib import Path

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.config import ConfigError, LoadedSettings, load_settings

__all__ = ["load"]


def load(profile: str | None, config_file: Path | None, flags: dict[str, object]) -> LoadedSettings:
    """Read all layers; a configuration that cannot be used ends the command with exit code 2."""
    try:
        return load_settings(profile, config_file, os.environ, flags)
    except ConfigError as error:
        raise CommandFailed(
            "bad configuration\n" + "\n".join(f"  * {line}" for line in error.problems)
        ) from None
