"""Commands with certificates and tokens: what works, what is refused, and that no token is printed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from blockx_worker.cli.main import main
from blockx_worker.rpc.access import Gate
from blockx_worker.security.tokens import Scope, Token, TokenTable, digest_of, new_token, parse_tokens
from tests.cli.worker_thread import RunningWorker, running
from tests.support.certificates import Certificates

CALLS = ("calls", "--function", "f.f", "--args", "[1]")
SECRET = new_token()
READER = new_token()


def known(secret: str, *scopes: Scope) -> Token:
    return Token(name="-".join(scopes), digest=digest_of(secret), scopes=frozenset(scopes))


TABLE = TokenTable((known(SECRET, Scope.SUBMIT, Scope.READ), known(READER, Scope.READ)))


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    """Run a command; whatever it prints has no token in it."""
    result = CliRunner(env=env).invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert SECRET not in result.output
    assert READER not in result.output
    return result


def refused(*arguments: object, env: dict[str, str] | None = None) -> str:
    """The one line of a command that must end with exit code 2."""
    result = run(*arguments, env=env)
    assert result.exit_code == 2, result.output
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    return result.output


def token_file(folder: Path, secret: str) -> Path:
    path = folder / "token"
    path.write_text(f"{secret}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def worker_log() -> Iterator[None]:
    """The worker runs in this process; its log is not what the command prints."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def worker(certificates: Certificates) -> Iterator[RunningWorker]:
    """TLS, client certificates, and tokens."""
    with running(
        tls=certificates.server_context(mutual=True), gate=Gate(lambda: TABLE, lambda: 0)
    ) as started:
        started.api.outputs = b"2\n"
        yield started


def test_a_command_shows_certificate_and_token(worker, certificates, tmp_path):
    """Before the command or after it."""
    credentials = [
        "--tls-ca",
        certificates.ca,
        *certificates.client.flags(),
        "--token-file",
        token_file(tmp_path, SECRET),
    ]
    for arguments in (
        ["--to", worker.address, *credentials, *CALLS],
        [*CALLS, "--to", worker.address, *credentials],
    ):
        result = run("submit", *arguments)
        assert (result.exit_code, result.stdout) == (0, "2\n"), result.output
    assert run("status", "--to", worker.address, *credentials).exit_code == 0
    [task_id] = list(worker.api.tasks)[:1]
    assert run("result", "--to", worker.address, *credentials, task_id).exit_code == 0
    assert run("watch", "--to", worker.address, *credentials, task_id).exit_code == 0
    assert run("cancel", "--to", worker.address, *credentials, task_id).exit_code == 0


def test_the_token_file_may_be_named_in_the_environment(worker, certificates, tmp_path):
    env = {"BLOCKX_TOKEN_FILE": str(token_file(tmp_path, READER))}
    tls = ["--tls-ca", certificates.ca, *certificates.client.flags()]
    assert run("status", "--to", worker.address, *tls, env=env).exit_code == 0
    line = refused("submit", "--to", worker.address, *tls, *CALLS, env=env)
    assert (
        "SubmitTask needs a token with the scope submit; the token 'read' has read (PERMISSION_DENIED)"
        in line
    )


def test_refusals_of_a_secure_worker_are_one_line(worker, certificates, tmp_path):
    status = ["status", "--to", worker.address]
    tls = ["--tls-ca", certificates.ca, *certificates.client.flags()]
    assert "takes TLS only; connect with TLS (--tls-ca F)" in refused(*status)
    assert "wants a client certificate" in refused(*status, "--tls-ca", certificates.ca)
    wrong_ca = ["--tls-ca", certificates.other_ca, *certificates.client.flags()]
    assert "not signed by a CA in --tls-ca" in refused(*status, *wrong_ca)
    for identity, told in (
        (certificates.expired_client, "the client certificate has expired"),
        (certificates.strangers_client, "does not know the CA that signed the client certificate"),
    ):
        assert told in refused(*status, "--tls-ca", certificates.ca, *identity.flags())
    assert "wants a token with every request" in refused(*status, *tls)
    other = token_file(tmp_path, new_token())
    line = refused(*status, *tls, "--token-file", other)
    assert "not one that this worker knows" in line
    assert other.read_text().strip() not in line


def test_tls_to_a_plain_worker_is_refused(certificates):
    with running() as plain:
        line = refused("status", "--to", plain.address, "--tls-ca", certificates.ca)
        assert "does not speak TLS; connect without --tls-ca" in line


def test_files_that_cannot_be_used_are_named(certificates, tmp_path):
    """Before anything is sent."""
    status = ["status", "--to", "127.0.0.1:1"]
    client = certificates.client
    ca = ["--tls-ca", certificates.ca]
    missing, empty, two = tmp_path / "none", tmp_path / "empty", tmp_path / "two"
    empty.touch(0o600)
    two.write_text("one token\nand another\n")
    two.chmod(0o600)
    assert f"--tls-ca {missing}: no such file" in refused(*status, "--tls-ca", missing)
    assert "holds no certificate in PEM form" in refused(*status, "--tls-ca", client.key)
    assert "a certificate and its key go together" in refused(*status, *ca, "--tls-cert", client.cert)
    wrong_key = ["--tls-cert", client.cert, "--tls-key", certificates.server.key]
    assert "is not the key of the certificate" in refused(*status, *ca, *wrong_key)
    assert "--tls-cert and --tls-key need --tls-ca" in refused(*status, *client.flags())
    assert f"--token-file {missing}: No such file" in refused(*status, "--token-file", missing)
    for file in (empty, two):
        assert "expected one token, alone in the file" in refused(*status, "--token-file", file)


def test_a_token_that_others_can_read_is_worth_a_warning(worker, certificates, tmp_path):
    path = token_file(tmp_path, READER)
    path.chmod(0o644)
    tls = ["--tls-ca", certificates.ca, *certificates.client.flags()]
    result = run("status", "--to", worker.address, *tls, "--token-file", path)
    assert result.exit_code == 0
    assert f"warning: {path} has the permissions 0644" in result.stderr


# --- making tokens ------------------------------------------------------------------------------------------------


def test_a_new_token_is_shown_once_and_its_entry_lets_it_in(tmp_path):
    result = run("token", "new", "--name", "ci", "--scopes", "submit, read")
    assert result.exit_code == 0
    secret = result.stderr.split()[-1]
    assert secret.startswith("blx_")
    assert secret not in result.stdout
    [token] = parse_tokens(result.stdout.encode()).tokens
    assert (token.name, token.expires_ms) == ("ci", None)
    assert token.scopes == {Scope.SUBMIT, Scope.READ}
    assert parse_tokens(result.stdout.encode()).find(secret) == token


def test_a_new_token_may_go_to_a_file_that_only_its_owner_reads(tmp_path):
    path = tmp_path / "ci.token"
    result = run(
        "token", "new", "--name", 'a "b" \\c', "--scopes", "admin", "--expires", "90d", "--out", path
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert path.stat().st_mode & 0o777 == 0o600
    [token] = parse_tokens(result.stdout.encode()).tokens
    assert token.name == 'a "b" \\c'
    assert token.expires_ms is not None
    assert parse_tokens(result.stdout.encode()).find(path.read_text().strip()) == token
    assert "another token may be in it" in refused(
        "token", "new", "--name", "b", "--scopes", "read", "--out", path
    )


def test_entries_can_be_added_up(tmp_path):
    entries = "".join(run("token", "new", "--name", name, "--scopes", "read").stdout for name in "abc")
    assert [token.name for token in parse_tokens(entries.encode()).tokens] == ["a", "b", "c"]
    assert tomllib.loads(entries)["token"][0]["scopes"] == ["read"]


@pytest.mark.parametrize(
    ("name", "scopes", "told"),
    [
        ("x", "write", "scopes must be a list of one or more of submit, read, admin"),
        ("x", "", "scopes must be a list"),
        ("", "read", "name must be 1 to 64 printable characters"),
        ("a\nb", "read", "name must be"),
        ("n" * 65, "read", "name must be"),
    ],
)
def test_a_token_that_no_worker_would_take_is_not_made(name, scopes, told, tmp_path):
    path = tmp_path / "token"
    assert told in refused("token", "new", "--name", name, "--scopes", scopes, "--out", path)
    assert not path.exists()
