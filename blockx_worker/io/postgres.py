"""PostgreSQL without its driver: URLs, time-outs, and what to say when the driver is missing.

The driver, psycopg, is an extra of this distribution. Whatever imports it is imported at its first use only, after
`psycopg_problem` had nothing to say.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import attrs

from blockx_worker.config.redact import MASK, redact_url
from blockx_worker.model.fields import shorten

__all__ = ["URL_PREFIXES", "PostgresLimits", "psycopg_problem", "shown_url", "without_password"]

URL_PREFIXES = ("postgresql://", "postgres://")


@attrs.frozen(kw_only=True)
class PostgresLimits:
    """How long a connection, a statement and the wait for a lock may take (ms, 0 = no limit), and how many connections.

    ``pool_size`` bounds the connections to one database that write at once.
    """

    connect_timeout_ms: int = 10_000
    statement_timeout_ms: int = 300_000
    lock_timeout_ms: int = 30_000
    pool_size: int = 4


def psycopg_problem() -> str | None:
    """Why PostgreSQL cannot be used here, and what to do; None if it can."""
    try:
        import psycopg  # noqa: F401, PLC0415 - an extra, tried only where somebody asks for it
    except ImportError as error:
        return (
            f"PostgreSQL needs the Python package psycopg, which cannot be imported ({str(error).splitlines()[0]}); install "
            'it into the environment of the worker: pip install "blockx-worker[postgres]"'
        )
    return None


def shown_url(url: str) -> str:
    """The URL for people: shortened, without the password."""
    return shorten(redact_url(url))


def without_password(text: str, url: str) -> str:
    """A text that may quote parts of the URL, with the URL's password masked."""
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    for secret in {password, unquote(password or "")} - {None, ""}:
        text = text.replace(str(secret), MASK)
    return redact_url(text)
