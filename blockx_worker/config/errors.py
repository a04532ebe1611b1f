"""What is wrong with a configuration, one line for each problem."""

from __future__ import annotations

from collections.abc import Iterable

from blockx_worker.config.redact import redact_url

__all__ = ["ConfigError", "problem_line"]

SHOWN_HEAD = 40
SHOWN_TAIL = 40


class ConfigError(Exception):
    """A configuration cannot be used. ``problems`` are lines that each name field, value, origin and what is accepted."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def problem_line(path: str, value: object, origin: str, what: str) -> str:
    """``path = value (origin): what``, with secrets masked and long values cut in the middle."""
    return f"{path} = {_shown(value)} ({origin}): {what}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = redact_url(repr(value))
    return text if len(text) <= SHOWN_HEAD + SHOWN_TAIL else f"{text[:SHOWN_HEAD]}…{text[-SHOWN_TAIL:]}"
