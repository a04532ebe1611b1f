"""Masking of secrets in texts that people see: passwords and tokens in URLs and connection strings.

Every line of the log goes through here, those that functions print included, on the one thread that serves everybody.
So the work must grow with the length of a text and never with its square, whatever the text is.
"""

from __future__ import annotations

import re

__all__ = ["MASK", "redact_url"]

MASK = "***"

_BETWEEN_WORDS = re.compile(r"([\s'\"]+)")
_LOGIN = re.compile(r"(?P<before>://[^/:@?#]*:).+")
_PARAMETER = re.compile(
    r"(?P<before>\b(?:password|passwd|pwd|sslpassword|token|access_token|secret|api_?key)=)(?P<secret>'[^']*'|[^&\s'\"]+)",
    re.IGNORECASE,
)


def redact_url(text: str) -> str:
    """The text with every password in a URL or ``password=`` parameter replaced by ``***``; all else unchanged."""
    if "://" in text and "@" in text:
        text = "".join(map(_mask_login, _BETWEEN_WORDS.split(text)))
    return _PARAMETER.sub(rf"\g<before>{MASK}", text)


def _mask_login(word: str) -> str:
    """Mask up to the last "@" of the word: a password may hold "/" or "@" by mistake and must not show for it."""
    before, at, after = word.rpartition("@")
    return _LOGIN.sub(rf"\g<before>{MASK}", before, count=1) + at + after if at else word
