"""Clients and requests that do not get as far as a handler: what they are sent, and what the log says.

Log lines about them are useful to an operator, and a flood in the hands of an attacker. So for each event and reason
there is one line in `INTERVAL_S`; it says how many were left out since the last.
"""

from __future__ import annotations

import attrs
import trio
from grpclib.encoding.base import GRPC_CONTENT_TYPE
from grpclib.metadata import encode_grpc_message

from blockx_worker.model.errors import WorkerError
from blockx_worker.rpc.errors import to_grpc_error
from blockx_worker.telemetry.log import get_logger

__all__ = ["RefusalLog", "refusal_headers"]

INTERVAL_S = 10.0

MAX_KINDS = 64
"""Kinds of lines that are remembered; beyond that all are forgotten, which costs a few lines too many."""


@attrs.define
class _Kind:
    written_at: float
    left_out: int = 0


class RefusalLog:
    """Writes at most one line of each kind in `INTERVAL_S`, on Trio's clock."""

    def __init__(self, name: str) -> None:
        self._log = get_logger(name)
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def refused(self, event: str, peer: str, reason: str) -> None:
        """One client was not let in."""
        now, known = trio.current_time(), self._kinds.get((event, reason))
        if known is not None and now - known.written_at < INTERVAL_S:
            known.left_out += 1
            return
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[event, reason] = _Kind(now)
        left_out = {"more_like_this": known.left_out} if known and known.left_out else {}
        self._log.info(event, peer=peer, reason=reason, **left_out)


def refusal_headers(refusal: WorkerError) -> list[tuple[str, str]]:
    """The whole answer to a request that is refused without more ado: headers that are trailers at once."""
    error = to_grpc_error(refusal)
    return [
        (":status", "200"),
        ("content-type", GRPC_CONTENT_TYPE),
        ("grpc-status", str(error.status.value)),
        ("grpc-message", encode_grpc_message(error.message or "")),
    ]
