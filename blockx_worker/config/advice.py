"""What an operator should hear at the start: settings that work and leave the worker more open than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from blockx_worker.config.addresses import is_loopback, parse_address
from blockx_worker.config.settings import Settings
from blockx_worker.security.tls import file_warnings

__all__ = ["security_advice"]


def security_advice(settings: Settings, now_s: float) -> Iterator[str]:
    """One sentence each. ``now_s`` is wall time since the Unix epoch."""
    tls = settings.tls
    if tls.cert is not None and tls.key is not None:
        certs = (tls.cert,) if tls.client_ca is None else (tls.cert, tls.client_ca)
        yield from file_warnings(certs=certs, key=tls.key, now_s=now_s)
    if is_loopback(parse_address(settings.listen)[0]):
        return
    if settings.tokens is not None and tls.cert is None:
        yield f"tokens travel in plain text to {settings.listen}, where others may read them; add --tls-cert and --tls-key"
    if settings.tokens is None and tls.client_ca is None:
        yield (
            f"whoever reaches {settings.listen} can run tasks; ask for tokens (--tokens F) or client certificates "
            "(--tls-client-ca F)"
        )
