"""Settings of the back ends that calls may ask."""

from __future__ import annotations

from typing import Annotated

import msgspec

from blockx_worker.config.annotations import DAY_MS, GIB, KIB, MIB, Section, count, ms, size, word

__all__ = ["BlockDbSettings", "IoSettings", "JsonRpcSettings"]

# A frame to an executor holds 16 MiB; the rest of it needs some of that.
_MAX_ANSWER_BYTES = 15 * MIB


class JsonRpcSettings(Section, frozen=True, kw_only=True):
    """The back end `rpc`: JSON-RPC 2.0 over HTTP."""

    endpoints: Annotated[
        list[str],
        word(
            "URLs of JSON-RPC servers that answer alike; requests go round them, past those that fail. None: calls "
            "have no back end rpc.",
            kind="urls",
        ),
    ] = msgspec.field(default_factory=list)
    timeout_ms: Annotated[
        int, ms(1, DAY_MS, "Longest time for one request, with all its attempts and the pauses between.")
    ] = 30_000
    attempt_timeout_ms: Annotated[
        int, ms(1, DAY_MS, "Longest time for one HTTP request; then the next endpoint is tried.")
    ] = 10_000
    connect_timeout_ms: Annotated[int, ms(1, 600_000, "Longest time to connect to an endpoint.")] = 3000
    max_attempts: Annotated[int, count(1, 100, "Attempts of one request.")] = 10
    backoff_ms: Annotated[
        int, ms(1, 60_000, "How long an endpoint is left alone after it failed; doubled each time in a row.")
    ] = 50
    max_backoff_ms: Annotated[int, ms(1, 600_000, "Longest time that a failing endpoint is left alone.")] = (
        2000
    )
    max_batch: Annotated[
        int, count(1, 10_000, "Requests in one HTTP request; 1 for endpoints that take no batches.")
    ] = 100
    max_batch_bytes: Annotated[
        int, size(KIB, 64 * MIB, "Size of one HTTP request; a single request that is larger goes alone.")
    ] = MIB
    linger_ms: Annotated[int, ms(0, 1000, "How long a request waits for others to share a batch with.")] = 1
    max_connections: Annotated[
        int, count(1, 1024, "HTTP requests under way at once, over all endpoints.")
    ] = 16
    max_inflight: Annotated[int, count(1, 65_536, "Requests under way at once, over all tasks.")] = 1024
    max_response_bytes: Annotated[
        int, size(KIB, GIB, "Largest HTTP response; a batch with a larger one is asked for in parts.")
    ] = 32 * MIB


class BlockDbSettings(Section, frozen=True, kw_only=True):
    """The back end `blockdb`: rows of block tables."""

    timeout_ms: Annotated[int, ms(1, DAY_MS, "Longest time for one request.")] = 30_000
    max_inflight: Annotated[int, count(1, 64, "Requests under way at once, each in a thread.")] = 8
    max_blocks: Annotated[int, count(1, 1_000_000, "Blocks in one request.")] = 10_000
    sidecar_bytes: Annotated[
        int, size(0, _MAX_ANSWER_BYTES, "Answers above this size travel to the executor as raw bytes.")
    ] = 64 * KIB


class IoSettings(Section, frozen=True, kw_only=True):
    """What calls may ask of back ends. Time-out and limit here are for back ends of extensions."""

    timeout_ms: Annotated[int, ms(1, DAY_MS, "Longest time for one request.")] = 30_000
    max_inflight: Annotated[int, count(1, 65_536, "Requests under way at once in one back end.")] = 64
    max_queue: Annotated[
        int,
        count(0, 1_000_000, "Requests of one task that wait for one back end; more are refused as IO_BUSY."),
    ] = 4096
    max_queue_bytes: Annotated[
        int, size(16 * MIB, 64 * GIB, "Size of the requests of one task that wait for one back end.")
    ] = 64 * MIB
    max_answer_bytes: Annotated[
        int, size(KIB, _MAX_ANSWER_BYTES, "Largest answer; a larger one is an error of the call.")
    ] = _MAX_ANSWER_BYTES
    cache_bytes: Annotated[
        int, size(0, 64 * GIB, "Memory for the answers that one task has had already; 0 = no cache.")
    ] = 32 * MIB
    rpc: JsonRpcSettings = JsonRpcSettings()
    blockdb: BlockDbSettings = BlockDbSettings()
