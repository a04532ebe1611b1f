"""Settings of the registry and of mirroring: their forms in file and environment, and what belongs together."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from blockx_worker.cli.main import main
from blockx_worker.config import ConfigError, load_settings


def load(*, profile: str | None = None, file: Path | None = None, **env: str):
    return load_settings(profile, file, env, {})


def problem(**env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**env)  # type: ignore[arg-type]  # names of the environment only
    (line,) = caught.value.problems
    return line


def test_endpoints_of_etcd_come_from_the_environment_as_a_comma_list_or_from_the_file_as_a_list(tmp_path):
    etcd = load(BLOCKX_ETCD_ENDPOINTS="a:2379, [::1]:2380", BLOCKX_ETCD_LEASE_TTL_S="3").settings.etcd
    assert (etcd.endpoints, etcd.lease_ttl_s) == (["a:2379", "[::1]:2380"], 3)
    file = tmp_path / "worker.toml"
    file.write_text('[etcd]\nendpoints = ["a:1"]\nuser = "u"\npassword = "p"\n')
    assert load(file=file).settings.etcd.endpoints == ["a:1"]


def test_deployment_and_prefix_follow_the_profile_and_can_be_set():
    assert load().settings.worker_registry_prefix == "/blockx/workers/block/"
    bundle = load(profile="bundle")
    assert (bundle.settings.deployment, bundle.settings.worker_registry_prefix) == (
        "bundle",
        "/blockx/workers/bundle/",
    )
    assert bundle.origins["worker_registry_prefix"] == "profile bundle"
    own = load(profile="bundle", BLOCKX_WORKER_REGISTRY_PREFIX="/x/").settings
    assert (own.deployment, own.worker_registry_prefix) == ("bundle", "/x/")


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"ETCD_ENDPOINTS": "a"}, "etcd.endpoints = 'a' (env BLOCKX_ETCD_ENDPOINTS): expected HOST:PORT"),
        ({"ETCD_ENDPOINTS": "a:0"}, "port 0 is only for listening"),
        ({"ETCD_ENDPOINTS": "a:1,a:1"}, "none twice"),
        ({"ETCD_ENDPOINTS": "http://a:2379"}, "expected a list of HOST:PORT; in the environment separated by commas; without http://"),
        ({"ETCD_LEASE_TTL_S": "1"}, "expected an integer from 2 to 3600"),
        ({"ETCD_USER": "u"}, "etcd.user = 'u' (env BLOCKX_ETCD_USER): needs etcd.password"),
        ({"ETCD_PASSWORD": "geheim"}, "etcd.password = '***' (env BLOCKX_ETCD_PASSWORD): needs etcd.user"),
        ({"ETCD_TLS_CA": "/no/such"}, "etcd.tls_ca = '/no/such' (env BLOCKX_ETCD_TLS_CA): no such file"),
        ({"WORKER_REGISTRY_PREFIX": "/a"}, "expected names of letters, digits"),
        ({"WORKER_REGISTRY_PREFIX": "//"}, "expected names of letters, digits"),
        ({"SHADOW_SAMPLE_RATE": "0.5"}, "shadow.sample_rate = 0.5 (env BLOCKX_SHADOW_SAMPLE_RATE): needs shadow.target"),
        ({"SHADOW_SAMPLE_RATE": "1.5"}, "expected a number from 0 to 1 such as 0.05"),
        ({"SHADOW_SAMPLE_RATE": "nan"}, "expected a number from 0 to 1 such as 0.05"),
        ({"SHADOW_SAMPLE_RATE": "half"}, "expected a number from 0 to 1 such as 0.05"),
        ({"SHADOW_TARGET": "a:0"}, "port 0 is only for listening"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_that_says_what_is_accepted(variables, line):
    shown = problem(**{f"BLOCKX_{name}": value for name, value in variables.items()})
    assert line in shown
    assert "geheim" not in shown


def test_a_certificate_needs_its_key_and_a_ca(tmp_path):
    file = tmp_path / "c.pem"
    file.touch()
    with pytest.raises(ConfigError) as caught:
        load(BLOCKX_ETCD_TLS_CERT=str(file))
    assert [line.rpartition(": ")[2] for line in caught.value.problems] == [
        "needs etcd.tls_ca",
        "needs etcd.tls_key",
    ]


def test_the_password_of_etcd_is_shown_nowhere():
    env = {"BLOCKX_ETCD_USER": "u", "BLOCKX_ETCD_PASSWORD": "geheim"}
    for flags in ([], ["--json"]):
        done = CliRunner().invoke(main, ["config", *flags], env=env)
        assert done.exit_code == 0
        assert "geheim" not in done.output
        assert "***" in done.output
