"""TLS contexts for both ends, and what is wrong with the files that they are made of.

TLS 1.2 at least, HTTP/2 by ALPN. All files are PEM and read once; a new certificate needs a restart.

Trap: OpenSSL asks the terminal for the password of an encrypted key; here such a key is refused instead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from blockx_worker.security.files import too_open

__all__ = ["TlsFile", "TlsFileError", "client_context", "file_warnings", "server_context"]

TlsFile: TypeAlias = Literal["cert", "key", "ca"]

_TLS_12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # what HTTP/2 allows; TLS 1.3 has its own list
_MISMATCH = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}


class TlsFileError(OSError):
    """A file cannot be used: which of the three, and one clause that says why."""

    def __init__(self, file: TlsFile, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.file = file
        self.what = what


def server_context(cert: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """For a server with the certificate chain ``cert`` and its key.

    With ``client_ca`` every client must show a certificate signed by one of these (mutual TLS).
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_identity(context, cert, key)
    if client_ca is not None:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """For a client: the server's certificate must be signed by one of ``ca`` (None: those that the system trusts).

    ``cert`` and ``key`` are the client's own, for mutual TLS. Raises `TlsFileError`.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_ca(context, os.fspath(ca))
    if cert is not None and key is not None:
        _load_identity(context, os.fspath(cert), os.fspath(key))
    elif cert is not None or key is not None:
        raise TlsFileError(
            "cert", os.fspath(cert or key or ""), "a certificate and its key go together; give both"
        )
    return context


def file_warnings(*, certs: tuple[str, ...], key: str, now_s: float) -> Iterator[str]:
    """Sentences about files that work, or will for some clients, and should be looked at."""
    for cert in certs:
        facts = _decode(cert)
        if ssl.cert_time_to_seconds(facts["notAfter"]) < now_s:
            yield f"{cert}: the certificate expired on {_day(facts['notAfter'])}; clients will refuse it"
        elif ssl.cert_time_to_seconds(facts["notBefore"]) > now_s:
            yield f"{cert}: the certificate is not valid before {_day(facts['notBefore'])}; clients will refuse it"
    if problem := too_open(Path(key).stat()):
        yield f"{key}: the key {problem}"


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_12_CIPHERS)
    context.set_alpn_protocols(["h2"])
    return context


def _load_identity(context: ssl.SSLContext, cert: str, key: str) -> None:
    _check_certificates("cert", cert)
    if "PRIVATE KEY-----" not in _text("key", key):
        raise TlsFileError("key", key, "holds no private key in PEM form")
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except _EncryptedKey:
        remedy = "decrypt it with `openssl pkey -in KEY -out NEW`"
        what = f"is encrypted, and nobody is there to type its password; {remedy}"
        raise TlsFileError("key", key, what) from None
    except ssl.SSLError as error:
        if error.reason in _MISMATCH:
            raise TlsFileError("key", key, f"is not the key of the certificate in {cert}") from None
        raise TlsFileError("key", key, f"cannot be used: {_why(error)}") from None


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    _check_certificates("ca", ca)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise TlsFileError("ca", ca, f"cannot be used: {_why(error)}") from None


def _check_certificates(file: TlsFile, path: str) -> None:
    if "-----BEGIN CERTIFICATE-----" not in _text(file, path):
        raise TlsFileError(file, path, "holds no certificate in PEM form")
    try:
        _decode(path)
    except ssl.SSLError:
        raise TlsFileError(file, path, "holds a certificate that cannot be decoded") from None


def _text(file: TlsFile, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise TlsFileError(file, path, "no such file") from None
    except OSError as error:
        raise TlsFileError(file, path, f"cannot be read: {error.strerror}") from None


def _decode(path: str) -> Any:
    """The facts of the first certificate in a file."""
    return ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # noqa: SLF001  # the library reads certificates nowhere else


def _day(time: str) -> str:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(time), UTC).strftime("%Y-%m-%d")


def _why(error: ssl.SSLError) -> str:
    return (error.reason or "OpenSSL cannot read it").lower().replace("_", " ")


class _EncryptedKey(Exception):
    """OpenSSL asked for a password."""


def _refuse_password() -> NoReturn:
    raise _EncryptedKey
