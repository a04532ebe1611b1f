"""A worker with everything on: who gets in with which client, what functions see of it, and what never shows anywhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
import trio

from blockx_worker.client import CallListCallConfig, Task, TlsFailed, WorkerClient, WorkerError
from blockx_worker.security.tokens import digest_of, new_token
from tests.e2e.conftest import StartWorker
from tests.support.certificates import Certificates
from tests.support.official import OfficialClient, refusal, typed
from tests.support.worker_process import WorkerProcess, eventually

FUNCTIONS = '''
import os


def double(i):
    return i * 2


def environment():
    return dict(os.environ)


def spill(text):
    """Functions print what they like."""
    print("Authorization: Bearer", text)
    print("connecting to postgresql://me:" + text + "@db/x")
    raise ValueError("no login with password=" + text)
'''

PASSWORD, API_KEY, ENV_SECRET = "url-passw0rd-4711", "api-key-0815-0815", "secret-of-the-environment"
CONFIG = f"""
tokens_poll_ms = 20
executor_env_allow = ["PATH", "HOME", "SHARED_WITH_FUNCTIONS"]

[log]
level = "debug"

[targets]
main = "postgresql://writer:{PASSWORD}@127.0.0.1:1/db"

[io.rpc]
endpoints = ["http://127.0.0.1:1/v3/{API_KEY}"]
"""


@attrs.frozen
class Secure:
    worker: WorkerProcess
    certificates: Certificates
    tokens: dict[str, str]
    folder: Path

    def allow(self, *names: str) -> None:
        """Write the tokens file anew."""
        write_tokens(self.folder, self.tokens, *names)

    def official(self, name: str) -> OfficialClient:
        """The official client with a token and a certificate."""
        credentials = self.certificates.channel_credentials(
            self.certificates.client, token=self.tokens.get(name, name)
        )
        return OfficialClient(self.worker.address, credentials)

    def ours(self, name: str = "submit-read") -> Any:
        """Our client, for each flavour."""
        context = self.certificates.client_context(self.certificates.client)
        return WorkerClient.connect(self.worker.address, tls=context, token=self.tokens[name])

    def secrets(self) -> list[str]:
        """Texts that must not show anywhere: tokens, passwords, and the lines of all keys."""
        keys = [line for key in self.folder.glob("*.key") for line in key.read_text().splitlines()[1:-1]]
        assert len(keys) > 5
        return [*self.tokens.values(), PASSWORD, API_KEY, ENV_SECRET, *keys]

    def command(
        self, *arguments: object, token: str | None = "submit-read"
    ) -> subprocess.CompletedProcess[str]:
        """A command that talks to the worker."""
        flags: list[object] = ["--to", self.worker.address, "--tls-ca", self.certificates.ca]
        flags += self.certificates.client.flags()
        if token:
            flags += ["--token-file", self.folder / f"{token}.token"]
        return blockx(*arguments, *flags)


def write_tokens(folder: Path, tokens: dict[str, str], *names: str) -> None:
    """Each token may do what its name says."""
    entries = (
        f'[[token]]\nname = "{name}"\nsha256 = "{digest_of(tokens[name]).hex()}"\n'
        f"scopes = {json.dumps(name.split('-'))}\n"
        for name in names
    )
    (folder / "tokens.toml").write_text("".join(entries))


def blockx(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from blockx_worker.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def secure(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Secure:
    folder = tmp_path_factory.mktemp("secure")
    certificates = Certificates(folder)
    tokens = {name: new_token() for name in ("submit-read", "read", "admin", "later")}
    for name, token in tokens.items():
        (folder / f"{name}.token").write_text(token)
        (folder / f"{name}.token").chmod(0o600)
    (folder / "tokens.toml").touch(0o600)
    write_tokens(folder, tokens, "submit-read", "read", "admin")
    worker = start_worker(
        {"f": FUNCTIONS},
        config=CONFIG,
        env={"SHARED_WITH_FUNCTIONS": "yes", "WORKERS_OWN": ENV_SECRET},
        tls_cert=certificates.server.cert,
        tls_key=certificates.server.key,
        tls_client_ca=certificates.ca,
        tokens=folder / "tokens.toml",
    )
    return Secure(worker, certificates, tokens, folder)


def double(numbers: list[int]) -> Task:
    return Task(CallListCallConfig("f.double", [[number] for number in numbers]))


# --- who gets in --------------------------------------------------------------------------------------------------


def test_the_official_client_gets_in_with_certificate_and_token(secure):
    with secure.official("submit-read") as client:
        client.submit_calls("official", "f.double", [[1], [2]])
        client.wait("official", observe=False)
        assert client.outputs("official") == [2, 4]
    with secure.official("admin") as client:
        assert client.GetWorkerStatus().status.executors


def test_the_official_client_is_told_why_it_does_not_get_in(secure):
    with secure.official("read") as client:
        code, message = refusal(lambda: client.submit_calls("no", "f.double", [[1]]))
        assert (code, "needs a token with the scope submit" in message) == ("PERMISSION_DENIED", True)
    with secure.official("blx_nobody-knows-this-token-here-at-all") as client:
        code, message = refusal(lambda: client.submit_calls("no", "f.double", [[1]]))
        assert (code, "not one that this worker knows" in message) == ("UNAUTHENTICATED", True)
        assert "blx_nobody" not in message
    address, files = secure.worker.address, secure.certificates
    with OfficialClient(address, files.channel_credentials(files.client)) as client:
        code, message = refusal(client.GetWorkerStatus)
        assert (code, "wants a token with every request" in message) == ("UNAUTHENTICATED", True)
    with OfficialClient(address) as client:
        code, message = refusal(client.GetWorkerStatus)
        assert (code, "takes TLS only" in message) == ("UNAUTHENTICATED", True)
    for identity in (None, files.expired_client, files.strangers_client):
        with OfficialClient(address, files.channel_credentials(identity)) as client:
            assert refusal(client.GetWorkerStatus)[0] == "UNAVAILABLE"
    with OfficialClient(address, files.channel_credentials(files.client, ca=files.other_ca)) as client:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(client.GetWorkerStatus)[1]


def test_our_client_gets_in_in_all_three_flavours(secure):
    async def run(numbers: list[int]) -> list[Any]:
        async with secure.ours() as client:
            _, outputs = await client.run(double(numbers))
            return list(outputs)

    with secure.ours() as client:
        assert list(client.run(double([1]))[1]) == [2]
    assert trio.run(run, [2]) == [4]
    with asyncio.Runner(
        loop_factory=asyncio.SelectorEventLoop
    ) as runner:  # trio-asyncio has set a policy of its own
        assert runner.run(run([3])) == [6]


def test_our_client_is_told_why_it_does_not_get_in(secure):
    with (
        secure.ours("read") as client,
        pytest.raises(WorkerError, match="needs a token with the scope submit"),
    ):
        client.run(double([1]))
    files = secure.certificates
    for identity, told in (
        (None, "wants a client certificate"),
        (files.expired_client, "the client certificate has expired"),
        (files.strangers_client, "does not know the CA"),
    ):
        with pytest.raises(TlsFailed, match=told):
            WorkerClient.connect(secure.worker.address, tls=files.client_context(identity)).__enter__()


def test_commands_get_in(secure):
    done = secure.command("submit", "calls", "--function", "f.double", "--args", "[21]")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    refused = secure.command("submit", "calls", "--function", "f.double", "--args", "[21]", token="read")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "needs a token with the scope submit" in refused.stderr
    without = secure.command("status", token=None)
    assert (without.returncode, without.stderr.count("\n")) == (2, 1)
    assert "wants a token with every request" in without.stderr


def test_a_token_is_taken_in_and_taken_away_while_the_worker_runs(secure):
    def lets_in() -> bool:
        with secure.official("later") as client:
            try:
                client.GetWorkerStatus()
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    return False
                raise
            return True

    assert not lets_in()
    write_tokens(
        secure.folder, {**secure.tokens, "admin": secure.tokens["later"]}, "submit-read", "read", "admin"
    )
    eventually(lets_in, what="the new token is good")
    secure.allow("submit-read", "read", "admin")
    eventually(lambda: not lets_in(), what="it is not any more")


# --- what shows ---------------------------------------------------------------------------------------------------


def test_functions_see_the_allowed_part_of_the_environment_alone(secure):
    with secure.official("submit-read") as client:
        client.submit_calls("environment", "f.environment", [[]])
        client.wait("environment", observe=False)
        [seen] = client.outputs("environment")
    assert seen["SHARED_WITH_FUNCTIONS"] == "yes"
    assert ENV_SECRET not in seen.values()
    assert set(seen) <= {"PATH", "HOME", "SHARED_WITH_FUNCTIONS", "LC_CTYPE"}  # the last one is Python's own


def test_no_secret_shows_in_any_log_output_or_configuration(secure):
    """Also not at level debug, after everything that the tests above did, and when functions print them."""
    texts: list[str] = []
    with secure.official("submit-read") as client:
        client.submit_calls("spill", "f.spill", [[secure.tokens["admin"]], [PASSWORD]])
        client.wait("spill", observe=False)
        handler = typed("BlockWriteHandler", {"target": "main", "table": "t"})
        client.submit_calls("database", "f.double", [[1]], result_handler=handler)
        texts.append(str(client.wait("database", observe=False)))  # nobody listens there
    for wrong in ("no-such-token-anywhere", "blx_looks-like-one-but-nobody-knows-it"):
        with secure.official(wrong) as client:
            texts.append(refusal(client.GetWorkerStatus)[1])
    texts += [
        text
        for done in (secure.command("status"), secure.command("status", "--json"))
        for text in (done.stdout, done.stderr)
    ]
    config = secure.worker.folder / "worker.toml"
    for flags in ([], ["--json"]):
        shown = blockx("config", "--config", config, "--tokens", secure.folder / "tokens.toml", *flags)
        assert shown.returncode == 0, shown.stderr
        texts.append(shown.stdout)
    eventually(lambda: secure.worker.log_events("task_finished", task_id="database"))
    texts.append(secure.worker.log())
    for secret in secure.secrets():
        assert [text for text in texts if secret in text] == []
    log = secure.worker.log()
    assert "Authorization: Bearer ***" in log  # masked, not missing
    assert "postgresql://me:***@db/x" in log
    assert "postgresql://writer:***@127.0.0.1:1/db" in texts[-2]
