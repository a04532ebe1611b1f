"""Values of settings as people may see them: without secrets."""

from __future__ import annotations

from typing import Any

from blockx_worker.config.fields import FIELDS, value_at
from blockx_worker.config.redact import MASK, redact_endpoint, redact_section, redact_url
from blockx_worker.config.settings import Settings

__all__ = ["shown_value"]


def shown_value(settings: Settings, path: str) -> Any:
    """The value at a path such as ``tick_ms``, ``targets.NAME`` or ``extensions.NAME``, with secrets masked."""
    section, _, name = path.partition(".")
    if section == "targets":
        return redact_url(settings.targets[name])
    if section == "extensions":
        return redact_section(settings.extensions[name])
    value = value_at(settings, path)
    match FIELDS[path].kind:
        case "urls":
            return list(map(redact_endpoint, value))
        case "secret":
            return value and MASK
        case _:
            return value
