"""Connections to PostgreSQL that can be stopped, and what its errors mean for people.

psycopg waits for the server in short turns. Between two of them `WatchedConnection` asks whether anybody still wants the
answer; if not, it sends a cancel request, from the thread that waits, and waits for the statement to end. So a request never
hits a later statement, and no other thread ever touches the connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.waiting import READY_NONE, Wait

from blockx_worker.io.postgres import PostgresLimits, shown_url, without_password

__all__ = ["PostgresError", "WatchedConnection", "connect", "explained", "sentence", "server_message"]

T = TypeVar("T")

POLL_S = 0.05
CANCEL_EVERY_S = 0.5
CANCEL_TIMEOUT_S = 5.0
GIVE_UP_S = 5.0

_DEFAULTS: dict[str, str | int | None] = {
    "application_name": "blockx-worker",
    "client_encoding": "UTF8",
    # A server that has vanished is noticed within a minute or so, also in the middle of a statement.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

_SENTENCES = {
    "28000": "refuses the login; check user, password and the server's pg_hba.conf",
    "28P01": "refuses the login; check user and password of the target",
    "3D000": "does not exist; create it or correct the URL",
    "3F000": "has no such schema; create it or correct the table's name",
    "25006": "is read-only; choose the primary server",
    "42501": "forbids this to the user of the URL; grant the privilege or choose another user",
    "53100": "cannot grow: its disk is full; make room and submit again",
    "53300": "has no connection left; raise its max_connections or lower writers.postgres_pool_size",
    "40P01": "ended the transaction to break a deadlock with another program; submit again",
    "40001": "ended the transaction because of a conflict with another program; submit again",
    "57P01": "was shut down or ended the session; submit again once it runs",
    "57P02": "has crashed; submit again once it runs",
    "57P03": "does not accept connections now; submit again once it runs",
}


class PostgresError(Exception):
    """A database cannot be used or refuses the work: one sentence for people that names it."""


class WatchedConnection(psycopg.Connection[Any]):
    """A connection whose waits end soon after ``stopped`` has become true: the statement is cancelled."""

    stopped: Callable[[], bool] = staticmethod(lambda: False)
    """Whether nobody wants the answer any more; set on each connection by who uses it."""

    spoiled = False
    """Whether a statement was cancelled: the request may still hit a later one."""

    def end(self) -> None:
        """Undo the transaction if there is one, and be ready for the next user unless that cannot be."""
        self.stopped = WatchedConnection.stopped
        if self.spoiled:
            self.close()  # the server undoes the transaction
        elif self.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):  # a broken one is not used again
                self.execute(b"ROLLBACK")

    def wait(self, gen: Generator[Any, Any, T], *_args: Any, **_options: Any) -> T:
        """Wait as psycopg does, and look up now and then."""
        return super().wait(self._watched(gen), POLL_S)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Wait, Any, T]:
        asked = since = 0.0
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready == READY_NONE and self.stopped():
                    self.spoiled = True
                    now = time.monotonic()
                    since = since or now
                    if now - since > GIVE_UP_S:
                        raise psycopg.OperationalError("the server does not answer a cancel request")
                    if now - asked > CANCEL_EVERY_S:
                        asked = now
                        self._cancel()
                state = gen.send(ready)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _cancel(self) -> None:
        with suppress(psycopg.Error):  # asked again, then given up
            self.cancel_safe(timeout=CANCEL_TIMEOUT_S)


def connect(url: str, limits: PostgresLimits) -> WatchedConnection:
    """Connect, every statement its own transaction unless one is begun; PostgresError says what is wrong.

    It cannot be interrupted, only times out (whole seconds, at least two).
    """
    with explained(url, limits):
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            problem = without_password(server_message(error), url)
            raise PostgresError(f"{shown_url(url)} is not a valid PostgreSQL URL: {problem}") from None
        seconds = -(-limits.connect_timeout_ms // 1000)
        conninfo = make_conninfo(url, **({"connect_timeout": seconds} | _DEFAULTS | given))
        return WatchedConnection.connect(conninfo, autocommit=True, prepare_threshold=None)


@contextmanager
def explained(url: str, limits: PostgresLimits) -> Iterator[None]:
    """Turn what the driver raises into a PostgresError."""
    try:
        yield
    except psycopg.Error as error:
        raise PostgresError(sentence(error, url, limits)) from error


def sentence(error: psycopg.Error, url: str, limits: PostgresLimits) -> str:
    """What the error means for people and what to do about it."""
    message = without_password(server_message(error), url)
    return f"database {shown_url(url)} {_meaning(error, limits)} (PostgreSQL: {message})"


def server_message(error: psycopg.Error) -> str:
    """The server's words, or the driver's, in one line."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__


def _meaning(error: psycopg.Error, limits: PostgresLimits) -> str:
    state = error.sqlstate
    if state == "55P03":
        return (
            f"is locked by another transaction for longer than {limits.lock_timeout_ms} ms; end that transaction, or raise "
            "writers.postgres_lock_timeout_ms"
        )
    if state == "57014":
        return (
            f"needs more than {limits.statement_timeout_ms} ms for one statement, or somebody cancelled it; raise "
            "writers.postgres_statement_timeout_ms"
        )
    if isinstance(error, psycopg.OperationalError) and state is None:
        return _unreachable(error)
    return _SENTENCES.get(state or "", "refused the work")


def _unreachable(error: psycopg.OperationalError) -> str:
    text = str(error)
    for code in ("28P01", "28000", "3D000"):
        if _LOGIN_WORDS[code] in text:
            return _SENTENCES[code]
    return "cannot be reached, or the connection was lost; check that it runs and that the address is right"


# While connecting, libpq passes on the server's words only, not its code.
_LOGIN_WORDS = {
    "28P01": "password authentication failed",
    "28000": "no pg_hba.conf entry",
    "3D000": 'database "',
}
