"""Configuration of the gRPC server: where it listens, and the named limit of everything that a client can send."""

from __future__ import annotations

import ssl

import attrs

from blockx_worker.rpc.access import OPEN_GATE, Gate

__all__ = ["RequestLimits", "RpcConfig"]

_DAY_MS = 86_400_000


@attrs.frozen(kw_only=True)
class RequestLimits:
    """Limits and defaults of request fields. Times are ms; text lengths are characters unless they say bytes."""

    max_id_chars: int = 256
    max_type_chars: int = 256
    max_reason_chars: int = 1000
    max_ttl_ms: int = 600_000
    default_timeout_ms: int = 600_000
    max_timeout_ms: int = _DAY_MS
    default_call_budget_ms: int = 5000
    max_call_budget_ms: int = _DAY_MS
    default_max_attempts: int = 3
    max_max_attempts: int = 100
    default_base_backoff_ms: int = 10
    max_base_backoff_ms: int = 60_000
    max_labels: int = 64
    max_label_key_bytes: int = 256
    max_label_value_bytes: int = 4096
    max_wait_ms: int = 600_000
    max_watch_ids: int = 1000


@attrs.frozen(kw_only=True)
class RpcConfig:
    """Where and how the server serves.

    ``port`` 0 picks a free one. ``max_request_bytes`` limits one request message. A client that does not answer a ping
    for ``keepalive_timeout_s`` is gone; pings go out every ``keepalive_time_s``. ``health_poll_s`` is how soon a health
    watcher hears of a change, and ``max_health_watchers`` may watch at once. ``close_timeout_s`` bounds how long running requests may take to end at shutdown.

    ``max_connections`` counts all that are open, whatever they do. A connection has ``handshake_timeout_s`` for TLS and
    its HTTP/2 greeting, may have ``max_concurrent_streams`` requests under way, and ``max_header_bytes`` of headers in
    each, names and values and 32 bytes a header. ``tls`` None = plain text. ``gate`` judges tokens.
    """

    host: str = "127.0.0.1"
    port: int = 7420
    max_request_bytes: int = 64 * 2**20
    keepalive_time_s: float = 20.0
    keepalive_timeout_s: float = 20.0
    health_poll_s: float = 0.5
    max_health_watchers: int = 128
    close_timeout_s: float = 5.0
    max_connections: int = 512
    handshake_timeout_s: float = 10.0
    max_concurrent_streams: int = 100
    max_header_bytes: int = 16 * 2**10
    tls: ssl.SSLContext | None = None
    gate: Gate = OPEN_GATE
    limits: RequestLimits = RequestLimits()
