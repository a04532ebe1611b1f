"""Builds the back ends of a worker from its settings; nothing runs yet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping

from blockx_worker.config.settings import Settings
from blockx_worker.io.admission import Admission, QueueLimits
from blockx_worker.io.blockdb import BlockDbBackend, BlockDbLimits
from blockx_worker.io.port import BackendPort
from blockx_worker.io.scope import IoScopes
from blockx_worker.ports import BlockStore, IoBackend, Threads

__all__ = ["BLOCKDB", "BUILT_IN_BACKENDS", "RPC", "make_io"]

RPC = "rpc"
BLOCKDB = "blockdb"
BUILT_IN_BACKENDS = (RPC, BLOCKDB)
"""Names that no extension may take, whether this worker has the back end or not."""

_ABSENT = {
    RPC: "for rpc it needs io.rpc.endpoints in its configuration",
    BLOCKDB: "for blockdb it needs a block store (--blocks DIR)",
}

# The back end names the last trouble when its own time is over; the port's limit is only there in case it does not.
_PATIENCE_MS = 1000


def make_io(
    settings: Settings,
    threads: Threads,
    stores: Mapping[str, BlockStore],
    extra: Iterable[IoBackend] = (),
    *,
    jitter: Callable[[], float] = random.random,
) -> IoScopes:
    """The `IoProvider` of a worker.

    ``stores`` maps names of back ends to block stores, usually ``{"blockdb": store}``; ``extra`` are the back ends of
    extensions. ValueError if two have one name.
    """
    ports = [*_rpc(settings, jitter), *_blockdb(settings, threads, stores), *_extra(settings, extra)]
    return IoScopes(ports, cache_bytes=settings.io.cache_bytes, absent=_ABSENT)


def _rpc(settings: Settings, jitter: Callable[[], float]) -> Iterator[BackendPort]:
    if not settings.io.rpc.endpoints:
        return
    from blockx_worker.io.rpc_make import make_rpc  # noqa: PLC0415 - httpx takes 0.2 s to import; most need it not

    rpc = settings.io.rpc
    yield _port(settings, make_rpc(RPC, rpc, jitter), rpc.max_inflight, rpc.timeout_ms + _PATIENCE_MS)


def _blockdb(settings: Settings, threads: Threads, stores: Mapping[str, BlockStore]) -> Iterator[BackendPort]:
    config = settings.io.blockdb
    limits = BlockDbLimits(
        max_blocks=config.max_blocks,
        max_answer_bytes=settings.io.max_answer_bytes,
        sidecar_bytes=config.sidecar_bytes,
    )
    for name, store in stores.items():
        backend = BlockDbBackend(name, store, threads, limits)
        yield _port(settings, backend, config.max_inflight, config.timeout_ms)


def _extra(settings: Settings, backends: Iterable[IoBackend]) -> Iterator[BackendPort]:
    for backend in backends:
        yield _port(settings, backend, settings.io.max_inflight, settings.io.timeout_ms)


def _port(settings: Settings, backend: IoBackend, places: int, timeout_ms: int) -> BackendPort:
    queue = QueueLimits(requests=settings.io.max_queue, size=settings.io.max_queue_bytes)
    return BackendPort(
        backend=backend,
        admission=Admission(places, queue),
        timeout_ms=timeout_ms,
        max_answer_bytes=settings.io.max_answer_bytes,
    )
