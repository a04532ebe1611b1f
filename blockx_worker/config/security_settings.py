"""Settings of who may talk to the worker, and how."""

from __future__ import annotations

from typing import Annotated

from blockx_worker.config.annotations import Section, path

__all__ = ["TlsSettings"]


class TlsSettings(Section, frozen=True, kw_only=True):
    """TLS of the gRPC port. The files are PEM and read at the start."""

    cert: Annotated[
        str | None,
        path(
            "The worker's certificate chain, its own first. Needs key. Unset: plain text.", flag="--tls-cert"
        ),
    ] = None
    key: Annotated[str | None, path("The key of cert, without a password.", flag="--tls-key")] = None
    client_ca: Annotated[
        str | None,
        path(
            "CAs of clients: each must show a certificate that one of them signed. Needs cert.",
            flag="--tls-client-ca",
        ),
    ] = None
