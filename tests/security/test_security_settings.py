"""Settings of security: each that cannot be used is one clear line and exit code 2, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from blockx_worker.cli.main import main
from blockx_worker.config import load_settings
from blockx_worker.config.advice import security_advice
from blockx_worker.config.settings import Settings
from blockx_worker.security.tokens import new_token
from tests.support.certificates import Certificates

NOW_S = 1_800_000_000
BEYOND = ["--listen", "10.0.0.1:7420"]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(f"[[token]]\nname = 'ci'\nsha256 = '{'0' * 64}'\nscopes = ['read']\n")
    path.chmod(0o600)
    return path


def problem(*flags: object) -> str:
    """What `blockx run` says; it must be one line and exit code 2."""
    result = CliRunner().invoke(main, ["run", *map(str, flags)])
    assert result.exit_code == 2, result.output
    title, line = result.output.splitlines()
    assert title == "error: bad configuration"
    assert line.startswith("  * ")
    return line.removeprefix("  * ")


def test_each_file_that_cannot_be_used_is_one_line(certificates: Certificates, tmp_path: Path, tokens: Path):
    cert, key = certificates.server.cert, certificates.server.key
    pair = ["--tls-cert", cert, "--tls-key", key]
    missing = tmp_path / "none"
    assert problem("--tls-cert", cert).endswith("(flag --tls-cert): needs tls.key")
    assert problem("--tls-key", key).endswith("(flag --tls-key): needs tls.cert")
    assert problem("--tls-client-ca", certificates.ca).endswith("needs tls.cert and tls.key")
    assert problem("--tls-cert", missing, "--tls-key", key).endswith("(flag --tls-cert): no such file")
    assert problem("--tls-cert", cert, "--tls-key", missing).endswith("(flag --tls-key): no such file")
    assert problem(*pair, "--tls-client-ca", missing).endswith("(flag --tls-client-ca): no such file")
    assert problem("--tls-cert", key, "--tls-key", key).endswith("holds no certificate in PEM form")
    assert problem("--tls-cert", cert, "--tls-key", cert).endswith("holds no private key in PEM form")
    other = certificates.client.key
    assert "is not the key of the certificate" in problem("--tls-cert", cert, "--tls-key", other)
    assert problem("--tokens", missing).endswith("(flag --tokens): no such file")
    tokens.write_text("[[token]]\nname = 'ci'\n")
    assert "token 1 ('ci'): sha256 must be" in problem("--tokens", tokens)
    tokens.chmod(0o644)
    assert "has the permissions 0644" in problem("--tokens", tokens)


def test_a_token_in_the_wrong_place_of_the_file_is_not_printed(tokens: Path):
    secret = new_token()
    for text in (f"sha256 = '{secret}'\nname = 'x'", f"name = 'x'\n{secret} = 1"):
        tokens.write_text(f"[[token]]\n{text}\n")
        line = problem("--tokens", tokens)
        assert secret not in line


def test_beyond_loopback_it_takes_tls_or_a_word_of_consent(certificates: Certificates, tokens: Path):
    line = problem(*BEYOND)
    assert "--tls-cert" in line
    assert "--insecure" in line
    assert "--tls-cert" in problem(*BEYOND, "--tokens", tokens)
    tls = {"tls.cert": str(certificates.server.cert), "tls.key": str(certificates.server.key)}
    assert load_settings(None, None, {}, {"listen": "10.0.0.1:7420", **tls}).settings.tls.cert
    assert load_settings(None, None, {}, {"listen": "10.0.0.1:7420", "insecure": True}).settings.insecure


def test_the_files_may_come_from_the_configuration_file_and_the_environment(
    certificates: Certificates, tmp_path: Path
):
    (tmp_path / "key").write_bytes(certificates.server.key.read_bytes())
    file = tmp_path / "worker.toml"
    file.write_text(f"[tls]\ncert = '{certificates.server.cert}'\nkey = 'key'\n")
    loaded = load_settings(None, file, {"BLOCKX_TLS_CLIENT_CA": str(certificates.ca)}, {})
    assert loaded.settings.tls.key == str(tmp_path / "key")
    assert loaded.origins["tls.client_ca"] == "env BLOCKX_TLS_CLIENT_CA"


def test_the_variable_of_the_commands_does_not_disturb_a_worker():
    assert load_settings(None, None, {"BLOCKX_TOKEN_FILE": "x"}, {}).settings == Settings()


def test_limits_of_connections_have_names_and_ranges():
    for flag, value, told in (
        ("rpc.max_connections", 0, "from 1 to 1000000"),
        ("rpc.max_concurrent_streams", 0, "from 1 to 1000000"),
        ("rpc.max_header_bytes", 1, "from 1KiB to 1MiB"),
        ("rpc.handshake_timeout_ms", 1, "from 10ms to 10m"),
    ):
        with pytest.raises(Exception, match=told):
            load_settings(None, None, {}, {flag: value})


def advice(**settings: object) -> list[str]:
    return list(security_advice(load_settings(None, None, {}, settings).settings, NOW_S))


def test_an_operator_is_told_of_what_works_and_is_open(certificates: Certificates, tokens: Path):
    files = certificates.server
    tls: dict[str, object] = {"tls.cert": str(files.cert), "tls.key": str(files.key)}
    beyond: dict[str, object] = {"listen": "10.0.0.1:7420"}
    insecure = beyond | {"insecure": True}
    assert advice() == []
    assert advice(tokens=str(tokens)) == []
    assert advice(**tls) == []
    assert advice(**tls, **beyond, tokens=str(tokens)) == []
    assert advice(**tls, **beyond, **{"tls.client_ca": str(certificates.ca)}) == []
    [open_to_all] = advice(**tls, **beyond)
    assert "whoever reaches 10.0.0.1:7420 can run tasks" in open_to_all
    [in_plain_text] = advice(**insecure, tokens=str(tokens))
    assert "tokens travel in plain text" in in_plain_text
    assert len(advice(**insecure)) == 1
    old = certificates.expired_server
    [expired] = advice(**{"tls.cert": str(old.cert), "tls.key": str(old.key)})
    assert "expired on 2021-01-01" in expired
