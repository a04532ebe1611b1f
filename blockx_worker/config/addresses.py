"""HOST:PORT texts: parsed, told apart by reach, and put together again. IPv6 hosts stand in brackets."""

from __future__ import annotations

import ipaddress

__all__ = ["format_address", "is_loopback", "is_wildcard", "parse_address"]

ACCEPTED = "expected HOST:PORT such as 127.0.0.1:7420, worker-3.example:7420 or [::1]:7420"


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT``; ValueError that says what is accepted."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(host[1:-1])
    elif ":" in host:
        raise ValueError(f"{ACCEPTED}; an IPv6 address needs brackets")
    if not colon or not host or any(c.isspace() or c in "/@" for c in host):
        raise ValueError(ACCEPTED)
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(f"{ACCEPTED}; the port is a number from 0 to 65535")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """True for "all interfaces", an address that nobody can connect to by name."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError(ACCEPTED) from None
