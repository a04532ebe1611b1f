"""Who may call which method: bearer tokens and their scopes.

A refusal names what is needed and never the token that was shown. Tokens are judged before anything of a request's body is read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
from grpclib.server import Stream

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.security.tokens import Scope, Token, TokenTable

__all__ = ["OPEN_GATE", "Gate"]

_HEADER = "authorization"


@attrs.frozen
class Gate:
    """Lets requests through. ``tokens``: the table in force, or None where no token is asked for."""

    _tokens: Callable[[], TokenTable] | None
    _wall_ms: Callable[[], int]

    def admit(self, stream: Stream[Any, Any], scope: Scope | None = None) -> None:
        """Refuse a request without a known token that allows ``scope`` (None: any known token will do)."""
        if self._tokens is None:
            return
        token = self._token(self._tokens(), _shown(stream))
        if scope is not None and not token.allows(scope):
            raise WorkerError(
                ErrorCode.PERMISSION_DENIED,
                f"{_method(stream)} needs a token with the scope {scope}; the token {token.name!r} "
                f"has {', '.join(sorted(token.scopes))}",
            )

    def _token(self, table: TokenTable, shown: str) -> Token:
        token = table.find(shown)
        if token is None:
            raise _unauthenticated(
                "the token is not one that this worker knows; ask its operator for another"
            )
        if token.expires_ms is not None and token.expires_ms <= self._wall_ms():
            when = datetime.fromtimestamp(token.expires_ms / 1000, UTC)
            raise _unauthenticated(
                f"the token {token.name!r} expired at {when:%Y-%m-%d %H:%M} UTC; ask the worker's operator for another"
            )
        return token


OPEN_GATE = Gate(None, lambda: 0)
"""Asks for no token."""


def _shown(stream: Stream[Any, Any]) -> str:
    """The token that came with a request."""
    assert stream.metadata is not None  # set before a handler runs
    values = stream.metadata.getall(_HEADER, [])
    if not values:
        raise _unauthenticated(
            "this worker wants a token with every request, as metadata 'authorization: Bearer TOKEN' "
            "(command line: --token-file F)"
        )
    scheme, _, token = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise _unauthenticated("the authorization metadata must be one 'Bearer TOKEN'")
    return token.strip()


def _method(stream: Stream[Any, Any]) -> str:
    name: str = stream._method_name  # noqa: SLF001  # no public name for it
    return name.rpartition("/")[2]


def _unauthenticated(message: str) -> WorkerError:
    return WorkerError(ErrorCode.UNAUTHENTICATED, message)
