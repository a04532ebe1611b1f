"""Settings of a worker among others: where it announces itself, and which tasks it mirrors."""

from __future__ import annotations

from typing import Annotated

import msgspec

from blockx_worker.config.annotations import GIB, MIB, Section, count, ms, path, ratio, size, word

__all__ = ["EtcdSettings", "ShadowSettings"]


class EtcdSettings(Section, frozen=True, kw_only=True):
    """The registry of workers, in etcd. Serving never depends on it."""

    endpoints: Annotated[
        list[str],
        word(
            "HOST:PORT of the members of one etcd cluster, used in turn. None: the worker announces itself nowhere.",
            kind="addresses",
        ),
    ] = msgspec.field(default_factory=list)
    lease_ttl_s: Annotated[
        int,
        count(2, 3600, "Seconds after which a worker that is gone vanishes from etcd; renewed every third."),
    ] = 10
    put_interval_ms: Annotated[
        int, ms(10, 60_000, "The numbers of slots in etcd change at most this often.")
    ] = 500
    user: Annotated[str | None, word("User of etcd. Needs password.")] = None
    password: Annotated[str | None, word("Password of the user.", kind="secret")] = None
    tls_ca: Annotated[
        str | None, path("Certificates (PEM) that etcd's must be signed by. Unset: no encryption.")
    ] = None
    tls_cert: Annotated[
        str | None,
        path("The worker's own certificate (PEM), where etcd asks for one. Needs tls_ca, tls_key."),
    ] = None
    tls_key: Annotated[str | None, path("The key (PEM) of tls_cert.")] = None


class ShadowSettings(Section, frozen=True, kw_only=True):
    """Mirroring of accepted tasks to another worker, which runs them and writes nothing."""

    target: Annotated[
        str | None,
        word("HOST:PORT of the worker that gets the copies. Unset: none are sent.", kind="address"),
    ] = None
    sample_rate: Annotated[float, ratio("Share of the accepted tasks that is mirrored.")] = 0.0
    queue_tasks: Annotated[
        int, count(1, 100_000, "Copies that wait to be sent; more are dropped and counted.")
    ] = 256
    queue_bytes: Annotated[int, size(MIB, 16 * GIB, "Size of the copies that wait to be sent.")] = 64 * MIB
    max_inflight: Annotated[int, count(1, 1024, "Copies that are being sent at once.")] = 4
    timeout_ms: Annotated[int, ms(100, 600_000, "Longest time to hand over one copy.")] = 10_000
    backoff_ms: Annotated[
        int, ms(100, 600_000, "How long nothing is sent to a target that cannot be reached.")
    ] = 5000
