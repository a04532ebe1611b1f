"""Certificates for the tests: a CA and what it signed, a second CA that nobody trusts, and files of all that."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import grpc
import trustme

from blockx_worker.security.tls import client_context, server_context

__all__ = ["Certificates", "Identity"]

LONG_AGO = {"not_before": datetime(2020, 1, 1), "not_after": datetime(2021, 1, 1)}  # noqa: DTZ001 - trustme takes UTC


@attrs.frozen
class Identity:
    """The files of one certificate chain and its key."""

    cert: Path
    key: Path

    def flags(self) -> list[str]:
        """As a command takes them."""
        return ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]


class Certificates:
    """Writes PEM files into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ours, other = trustme.CA(), trustme.CA()
        self.ca = self._write("ca.pem", [ours.cert_pem])
        self.other_ca = self._write("other-ca.pem", [other.cert_pem])
        self.server = self._issue(ours, "server", "localhost", "127.0.0.1")
        self.expired_server = self._issue(ours, "expired-server", "localhost", "127.0.0.1", **LONG_AGO)
        self.client = self._issue(ours, "client", "client@example.org")
        self.expired_client = self._issue(ours, "expired-client", "client@example.org", **LONG_AGO)
        self.strangers_client = self._issue(other, "stranger", "client@example.org")

    def _issue(self, ca: trustme.CA, name: str, *identities: str, **options: Any) -> Identity:
        issued = ca.issue_cert(*identities, **options)
        key = self._write(f"{name}.key", [issued.private_key_pem])
        key.chmod(0o600)
        return Identity(self._write(f"{name}.pem", issued.cert_chain_pems), key)

    def _write(self, name: str, blobs: Iterable[trustme.Blob]) -> Path:
        path = self._folder / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return path

    def server_context(self, identity: Identity | None = None, *, mutual: bool = False) -> ssl.SSLContext:
        """For a server; ``mutual`` asks clients for a certificate of our CA."""
        own = identity or self.server
        return server_context(str(own.cert), str(own.key), str(self.ca) if mutual else None)

    def client_context(self, identity: Identity | None = None, *, ca: Path | None = None) -> ssl.SSLContext:
        """For our client; ``ca`` is ours unless given."""
        return client_context(
            ca or self.ca, identity.cert if identity else None, identity.key if identity else None
        )

    def channel_credentials(
        self, identity: Identity | None = None, *, ca: Path | None = None, token: str | None = None
    ) -> grpc.ChannelCredentials:
        """For the official client; ``ca`` is ours unless given."""
        credentials = grpc.ssl_channel_credentials(
            (ca or self.ca).read_bytes(),
            identity.key.read_bytes() if identity else None,
            identity.cert.read_bytes() if identity else None,
        )
        if token is None:
            return credentials
        return grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
