"""Certificates and keys: what cannot be used is refused with one clause, before anything listens."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from blockx_worker.security.tls import TlsFileError, client_context, file_warnings, server_context
from tests.support.certificates import Certificates

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def refused(make: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(TlsFileError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return caught.value.file, caught.value.what


def test_good_files_give_contexts_for_tls_1_2_and_newer(certificates: Certificates):
    server = certificates.server
    context = server_context(str(server.cert), str(server.key), str(certificates.ca))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert server_context(str(server.cert), str(server.key)).verify_mode is ssl.CERT_NONE
    client = client_context(certificates.ca, certificates.client.cert, certificates.client.key)
    assert client.check_hostname
    assert client.verify_mode is ssl.CERT_REQUIRED
    assert client_context().verify_mode is ssl.CERT_REQUIRED


def test_what_is_wrong_with_a_file_is_told(certificates: Certificates, tmp_path: Path):
    cert, key = str(certificates.server.cert), str(certificates.server.key)
    missing, garbage, broken = str(tmp_path / "none"), tmp_path / "garbage", tmp_path / "broken"
    garbage.write_bytes(b"\x00\xffgarbage")
    broken.write_text(PEM)
    assert refused(lambda: server_context(missing, key)) == ("cert", "no such file")
    assert refused(lambda: server_context(cert, missing)) == ("key", "no such file")
    assert refused(lambda: server_context(cert, key, missing)) == ("ca", "no such file")
    assert refused(lambda: server_context(str(tmp_path), key)) == ("cert", "cannot be read: Is a directory")
    assert refused(lambda: server_context(str(garbage), key)) == ("cert", "holds no certificate in PEM form")
    assert refused(lambda: server_context(key, key)) == ("cert", "holds no certificate in PEM form")
    assert refused(lambda: server_context(cert, cert)) == ("key", "holds no private key in PEM form")
    assert refused(lambda: server_context(cert, key, key)) == ("ca", "holds no certificate in PEM form")
    assert refused(lambda: server_context(str(broken), key)) == (
        "cert",
        "holds a certificate that cannot be decoded",
    )
    other_key = str(certificates.client.key)
    assert refused(lambda: server_context(cert, other_key)) == (
        "key",
        f"is not the key of the certificate in {cert}",
    )


def test_an_encrypted_key_is_refused_and_no_terminal_is_asked(certificates: Certificates, tmp_path: Path):
    key = load_pem_private_key(certificates.server.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a-password"))
    )
    file, what = refused(lambda: server_context(str(certificates.server.cert), str(encrypted)))
    assert file == "key"
    assert "is encrypted" in what
    assert "openssl pkey" in what


def test_a_certificate_of_a_client_goes_with_its_key(certificates: Certificates):
    file, what = refused(lambda: client_context(certificates.ca, certificates.client.cert))
    assert (file, what) == ("cert", "a certificate and its key go together; give both")


def test_an_expired_certificate_and_an_open_key_are_worth_a_warning(
    certificates: Certificates, tmp_path: Path
):
    good, expired = certificates.server, certificates.expired_server
    now = time.time()
    assert list(file_warnings(certs=(str(good.cert),), key=str(good.key), now_s=now)) == []
    [warning] = file_warnings(certs=(str(expired.cert),), key=str(good.key), now_s=now)
    assert "expired on 2021-01-01" in warning
    [warning] = file_warnings(certs=(str(expired.cert),), key=str(good.key), now_s=0)
    assert "not valid before 2020-01-01" in warning
    open_key = tmp_path / "open.key"
    open_key.write_bytes(good.key.read_bytes())
    open_key.chmod(0o644)
    [warning] = file_warnings(certs=(str(good.cert),), key=str(open_key), now_s=now)
    assert "permissions 0644" in warning
