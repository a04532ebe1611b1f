"""From flags to loaded settings, with configuration errors told as one list."""

from __future__ import annotations

import os
from pathlib import Path

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.config import ConfigError, LoadedSettings, load_settings
from blockx_worker.config.fields import FIELDS

__all__ = ["load"]

# A flag of a field inside a section: click knows it as tls_cert, the settings as tls.cert.
_PATHS = {f.flag.strip("-").replace("-", "_"): f.path for f in FIELDS.values() if f.flag and "." in f.path}


def load(profile: str | None, config_file: Path | None, flags: dict[str, object]) -> LoadedSettings:
    """Read all layers; a configuration that cannot be used ends the command with exit code 2."""
    paths = {_PATHS.get(name, name): value for name, value in flags.items()}
    try:
        return load_settings(profile, config_file, os.environ, paths)
    except ConfigError as error:
        raise CommandFailed(
            "bad configuration\n" + "\n".join(f"  * {line}" for line in error.problems)
        ) from None
