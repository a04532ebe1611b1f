"""What one HTTP request to an endpoint came to: from status and body to what follows for the requests in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from blockx_worker.io.http_post import HttpReply
from blockx_worker.io.jsonrpc import BadBody, NotBatch, RpcCall, read_answers
from blockx_worker.model.errors import IoErrorKind
from blockx_worker.ports import IoAnswer

__all__ = [
    "Answered",
    "BatchRefused",
    "EndpointFailed",
    "Outcome",
    "RequestRefused",
    "ResponseTooLarge",
    "read_reply",
]

# The endpoint, not the request, is wrong: keys that are not valid, a path that is not there.
ENDPOINT_STATUSES = frozenset({401, 402, 403, 404, 407, 410})
# Passing troubles of the server.
TOO_MANY_REQUESTS = 429
PASSING_STATUSES = frozenset({408, 425, TOO_MANY_REQUESTS})


@attrs.frozen
class Answered:
    """An answer to each request, which may be an error."""

    answers: Mapping[int, IoAnswer]


@attrs.frozen
class BatchRefused:
    """The server takes no batches, or none of this size."""


@attrs.frozen
class ResponseTooLarge:
    """The response was above the limit."""


@attrs.frozen
class RequestRefused:
    """The server does not take this one request; another server may."""

    reason: str


@attrs.frozen(kw_only=True)
class EndpointFailed:
    """The endpoint gave no answer.

    ``lasting``: it will refuse the next time too. ``sent``: it may have begun to work on the requests.
    """

    reason: str
    lasting: bool = False
    sent: bool = True
    rest_ms: int | None = None
    kind: IoErrorKind = IoErrorKind.RPC_UNAVAILABLE


Outcome: TypeAlias = Answered | BatchRefused | ResponseTooLarge | RequestRefused | EndpointFailed


def read_reply(reply: HttpReply, calls: Mapping[int, RpcCall]) -> Outcome:
    """What an HTTP response says. A valid JSON-RPC answer counts whatever the status, but for passing troubles."""
    status = reply.status
    if status in PASSING_STATUSES or status >= 500:
        busy = status == TOO_MANY_REQUESTS
        return EndpointFailed(reason=f"HTTP status {status}", rest_ms=reply.retry_after_ms, sent=not busy)
    try:
        return Answered(read_answers(reply.body, calls))
    except BadBody as bad:
        if 200 <= status < 300:
            return _bad_body(bad)
    if 300 <= status < 400 or status in ENDPOINT_STATUSES:
        return EndpointFailed(reason=f"HTTP status {status}", lasting=True)
    return BatchRefused() if len(calls) > 1 else RequestRefused(f"HTTP status {status}")


def _bad_body(bad: BadBody) -> Outcome:
    if isinstance(bad, NotBatch):
        return BatchRefused()
    return EndpointFailed(reason=str(bad), kind=IoErrorKind.RPC_BAD_RESPONSE)
