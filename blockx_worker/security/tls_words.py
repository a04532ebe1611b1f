"""Broken TLS connections in words for people."""

from __future__ import annotations

import ssl

__all__ = ["seen_by_client", "seen_by_server"]

_NO_TLS = {
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "BAD_PROTOCOL_VERSION_NUMBER",
}

# Verification codes of OpenSSL's x509_vfy.h.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_SIGNERS = {18, 19, 20, 21}

_ALERTS = {
    "CERTIFICATE_REQUIRED": "the worker wants a client certificate: give one with --tls-cert and --tls-key",
    "UNKNOWN_CA": "the worker does not know the CA that signed the client certificate",
    "CERTIFICATE_EXPIRED": "the client certificate has expired",
    "BAD_CERTIFICATE": "the worker does not accept the client certificate",
    "CERTIFICATE_UNKNOWN": "the worker does not accept the client certificate",
    "UNSUPPORTED_CERTIFICATE": "the client certificate is not one for clients",
    "PROTOCOL_VERSION": "the worker speaks TLS 1.2 and newer",
    "HANDSHAKE_FAILURE": "no common ground with the worker: it wants TLS 1.2 or newer, and maybe a client certificate",
}


def seen_by_client(error: ssl.SSLError) -> str:
    """Why a client could not connect."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the worker's certificate {_verdict(error, '--tls-ca')}"
    if error.reason in _NO_TLS:
        return "the port does not speak TLS; connect without --tls-ca, or start the worker with --tls-cert and --tls-key"
    alert = (error.reason or "").partition("_ALERT_")[2]
    return _ALERTS.get(alert) or f"the TLS handshake failed: {_plain(error)}"


def seen_by_server(error: ssl.SSLError) -> str:
    """Why a client was not let in."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client certificate {_verdict(error, 'tls.client_ca')}"
    return f"the TLS handshake failed: {_plain(error)}"


def _verdict(error: ssl.SSLCertVerificationError, ca: str) -> str:
    if error.verify_code == _EXPIRED:
        return "has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "is not valid yet"
    if error.verify_code in _UNKNOWN_SIGNERS:
        return f"is not signed by a CA in {ca}"
    return f"is not accepted: {error.verify_message}"


def _plain(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
