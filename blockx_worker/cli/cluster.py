"""``--etcd`` and ``--prefix``: instead of a worker, a cluster of them, of which the registry knows.

How to log in to etcd comes from the environment, by the names that a worker has for it (``BLOCKX_ETCD_USER``, …):
a password on the command line could be read by every user of the machine.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import click

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.options import ADDRESS
from blockx_worker.client import WorkerClient
from blockx_worker.config import ConfigError, EtcdSettings, load_settings

__all__ = ["ClusterDestination", "cluster_destination", "cluster_options"]

F = TypeVar("F", bound=Callable[..., Any])

_VARIABLES = "BLOCKX_ETCD_"
_PREFIX_FIELD = "worker_registry_prefix"


class EndpointsType(click.ParamType[list[str]]):
    """Addresses of etcd, separated by commas."""

    name = "host:port,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The addresses, checked."""
        if isinstance(value, list):
            return value
        return [ADDRESS.convert(part.strip(), param, ctx) for part in value.split(",")]


@attrs.frozen
class ClusterDestination:
    """The workers under a prefix of etcd; as text it is what messages call it."""

    etcd: EtcdSettings
    prefix: str

    def __str__(self) -> str:
        return f"the workers under {self.prefix}"

    @asynccontextmanager
    async def connect(self, client_options: Mapping[str, Any]) -> AsyncIterator[WorkerClient]:
        """A client for one task, which goes to the worker that has room."""
        from blockx_worker.client.core import ClientOptions  # noqa: PLC0415 - see blockx_worker.client.directory
        from blockx_worker.client.directory import WorkerDirectory  # noqa: PLC0415
        from blockx_worker.registry.etcd import EtcdAccess  # noqa: PLC0415

        etcd = self.etcd
        access = EtcdAccess(
            user=etcd.user,
            password=etcd.password,
            tls_ca=etcd.tls_ca,
            tls_cert=etcd.tls_cert,
            tls_key=etcd.tls_key,
        )
        options = ClientOptions(**client_options)
        async with WorkerDirectory.connect(
            etcd.endpoints, self.prefix, access=access, client=options
        ) as directory:
            yield directory.client()


def cluster_options(command: F) -> F:
    """``--etcd`` and ``--prefix``."""
    prefix = click.option(
        "--prefix", metavar="P", help="Start of the workers' keys in etcd; default that of the profile block."
    )
    etcd = click.option(
        "--etcd",
        type=EndpointsType(),
        metavar="HOST:PORT[,…]",
        help="Choose a worker from the registry in etcd, instead of --to.",
    )
    return etcd(prefix(command))


def cluster_destination(endpoints: list[str], prefix: str | None) -> ClusterDestination:
    """From the options and the environment; `CommandFailed` for what is wrong with them."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES) and name != f"{_VARIABLES}ENDPOINTS"
    }
    try:
        settings = load_settings(
            None, None, environ, {"etcd.endpoints": endpoints, _PREFIX_FIELD: prefix}
        ).settings
    except ConfigError as error:
        lines = (line.replace(f"{_PREFIX_FIELD} = ", "--prefix ") for line in error.problems)
        raise CommandFailed("\n".join(lines)) from None
    return ClusterDestination(settings.etcd, settings.worker_registry_prefix)
