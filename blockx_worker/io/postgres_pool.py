"""Connections to one database: lent for one transaction, kept for the next while the pool has users.

The users see to it that not too many are lent at once; at most ``pool_size`` are kept. Used by several threads.
"""

from __future__ import annotations

import threading

import psycopg

from blockx_worker.io.postgres import PostgresLimits
from blockx_worker.io.postgres_connection import WatchedConnection, connect

__all__ = ["PostgresPool"]


class PostgresPool:
    """Connections to ``url``."""

    def __init__(self, url: str, limits: PostgresLimits) -> None:
        self.url = url
        self.limits = limits
        self._guard = threading.Lock()
        self._idle: list[WatchedConnection] = []
        self._users = 0

    def enter(self) -> None:
        """Somebody begins to use the pool."""
        with self._guard:
            self._users += 1

    def leave(self) -> None:
        """Somebody is done with it; after the last one the connections are closed."""
        with self._guard:
            self._users -= 1
            leftover = [] if self._users else self._idle
            if leftover:
                self._idle = []
        for connection in leftover:
            connection.close()

    def begin(self, statement: bytes) -> WatchedConnection:
        """A connection on which ``statement`` has begun a transaction.

        A kept one may have been closed by the server meanwhile: then the next is tried, at last a new one. PostgresError if
        that cannot be had.
        """
        while (kept := self._take()) is not None:
            try:
                kept.execute(statement)
            except psycopg.OperationalError:
                kept.close()
            else:
                return kept
        connection = connect(self.url, self.limits)
        try:
            connection.execute(statement)
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def give_back(self, connection: WatchedConnection) -> None:
        """Take back a connection without a transaction; one that is broken is dropped."""
        with self._guard:
            keep = self._users > 0 and len(self._idle) < self.limits.pool_size and not connection.closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _take(self) -> WatchedConnection | None:
        with self._guard:
            return self._idle.pop() if self._idle else None
