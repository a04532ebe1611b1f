"""`blockx submit --etcd`: how it logs in to etcd, and what it says when it cannot."""

from __future__ import annotations

import pytest
import trustme
from click.testing import CliRunner, Result

from blockx_worker.cli import main
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]

CALLS = ("calls", "--function", "f.double", "--args", "[4]")


def submit(server: EtcdServer, *arguments: str, **env: str) -> Result:
    variables = {f"BLOCKX_ETCD_{name.upper()}": value for name, value in env.items()}
    result = CliRunner().invoke(main, ("submit", "--etcd", server.address, *arguments, *CALLS), env=variables)
    assert isinstance(result.exception, SystemExit), result.exception
    return result


def test_user_and_password_come_from_the_environment_and_are_not_shown(etcd):
    etcd.lock("worker", "geheim-1")
    let_in = submit(etcd, user="worker", password="geheim-1")
    assert (let_in.exit_code, "no worker is registered" in let_in.stderr) == (3, True)
    for env in ({}, {"user": "worker", "password": "geheim-2"}):
        turned_away = submit(etcd, **env)
        assert turned_away.exit_code == 3
        assert "INVALID_ARGUMENT: etcdserver: " in turned_away.stderr
        assert "geheim" not in turned_away.output


def test_certificates_come_from_the_environment():
    server = EtcdServer(trustme.CA())
    try:
        let_in = submit(server, **server.tls_files)
        assert (let_in.exit_code, "no worker is registered" in let_in.stderr) == (3, True)
        assert submit(server).exit_code == 3
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (("--prefix", "/a"), {}, "--prefix '/a'"),
        ((), {"user": "u"}, "etcd.user = 'u' (env BLOCKX_ETCD_USER): needs etcd.password"),
        (("--etcd", "a:1,a:1"), {}, "none twice"),
        (("--to", "127.0.0.1:1"), {}, "give either"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_clear_line(arguments, env, said):
    variables = {f"BLOCKX_ETCD_{name.upper()}": value for name, value in env.items()}
    result = CliRunner().invoke(main, ("submit", "--etcd", "127.0.0.1:1", *arguments, *CALLS), env=variables)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
