"""Masking of secrets in texts that people see: passwords and tokens in URLs and connection strings, bearer tokens.

Every line of the log goes through here, those that functions print included, on the one thread that serves everybody.
So the work must grow with the length of a text and never with its square, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["MASK", "redact_endpoint", "redact_section", "redact_url"]

MASK = "***"

_BETWEEN_WORDS = re.compile(r"([\s'\"]+)")
_LOGIN = re.compile(r"(?P<before>://[^/:@?#]*:).+")
_ENDPOINT = re.compile(r"(?P<before>https?://)(?P<login>.*@)?(?P<host>[^/?#@]*)/?(?P<rest>.*)", re.DOTALL)
_SECRET_NAME = re.compile(r"password|passwd|pwd|token|secret|key|credential", re.IGNORECASE)
_PARAMETER = re.compile(
    r"(?P<before>\b(?:password|passwd|pwd|sslpassword|token|access_token|secret|api_?key)=)(?P<secret>'[^']*'|[^&\s'\"]+)",
    re.IGNORECASE,
)

_BEARER = re.compile(r"(?P<before>\bbearer )(?P<secret>[A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE)
_OWN_TOKEN = re.compile(r"\bblx_[A-Za-z0-9_-]{20,}")


def redact_url(text: str) -> str:
    """The text with every password in a URL, ``password=`` parameter and bearer token replaced by ``***``."""
    if "://" in text and "@" in text:
        text = "".join(map(_mask_login, _BETWEEN_WORDS.split(text)))
    if "earer " in text or "EARER " in text:
        text = _BEARER.sub(rf"\g<before>{MASK}", text)
    if "blx_" in text:
        text = _OWN_TOKEN.sub(f"blx_{MASK}", text)
    return _PARAMETER.sub(rf"\g<before>{MASK}", text)


def redact_endpoint(url: str) -> str:
    """Scheme, host and port of a URL: for servers that take their key in the path, nothing else may be shown."""
    match = _ENDPOINT.match(url)
    if match is None:
        return MASK
    return (
        match["before"]
        + (f"{MASK}@" if match["login"] else "")
        + match["host"]
        + (f"/{MASK}" if match["rest"] else "")
    )


def redact_section(section: Mapping[str, Any]) -> dict[str, Any]:
    """A table of free keys with what is secret by its name or its form masked."""
    return {
        key: MASK if _SECRET_NAME.search(key) else redact_url(value) if isinstance(value, str) else value
        for key, value in section.items()
    }


def _mask_login(word: str) -> str:
    """Mask up to the last "@" of the word: a password may hold "/" or "@" by mistake and must not show for it."""
    before, at, after = word.rpartition("@")
    return _LOGIN.sub(rf"\g<before>{MASK}", before, count=1) + at + after if at else word
