"""Builds the JSON-RPC back end from its section of the settings."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from blockx_worker.config.io_settings import JsonRpcSettings
from blockx_worker.io.endpoints import EndpointConfig
from blockx_worker.io.http_post import HttpConfig
from blockx_worker.io.rpc import RpcBackend, RpcConfig

__all__ = ["make_rpc"]


def make_rpc(
    name: str,
    settings: JsonRpcSettings,
    jitter: Callable[[], float],
    transport: httpx.AsyncBaseTransport | None = None,
) -> RpcBackend:
    """The back end; ``transport`` replaces the network in tests."""
    config = RpcConfig(
        timeout_ms=settings.timeout_ms,
        max_attempts=settings.max_attempts,
        linger_ms=settings.linger_ms,
        max_batch_bytes=settings.max_batch_bytes,
        endpoints=EndpointConfig(
            backoff_ms=settings.backoff_ms,
            max_backoff_ms=settings.max_backoff_ms,
            max_batch=settings.max_batch,
        ),
        http=HttpConfig(
            max_connections=settings.max_connections,
            connect_timeout_ms=settings.connect_timeout_ms,
            attempt_timeout_ms=settings.attempt_timeout_ms,
            max_response_bytes=settings.max_response_bytes,
        ),
    )
    return RpcBackend(name, settings.endpoints, config, jitter=jitter, transport=transport)
