"""Masking of secrets in texts that people see: passwords and tokens in URLs and connection strings."""

from __future__ import annotations

import re

__all__ = ["MASK", "redact_url"]

MASK = "***"

# Greedy up to the last "@" of the word: a password may hold "/" or "@" by mistake and must not show for it.
_USERINFO = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@?#'\"]*:)(?P<secret>[^\s'\"]+)@")
_PARAMETER = re.compile(
    r"(?P<before>\b(?:password|passwd|pwd|sslpassword|token|access_token|secret|api_?key)=)(?P<secret>'[^']*'|[^&\s'\"]+)",
    re.IGNORECASE,
)


def redact_url(text: str) -> str:
    """The text with every password in a URL or ``password=`` parameter replaced by ``***``; all else unchanged."""
    masked = _USERINFO.sub(rf"\g<before>{MASK}@", text)
    return _PARAMETER.sub(rf"\g<before>{MASK}", masked)
