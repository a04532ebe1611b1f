"""Sections inside sections, lists of URLs, tables with free keys, and what of them is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from blockx_worker.cli.main import main
from blockx_worker.config import ConfigError, load_settings
from blockx_worker.config.fields import FIELDS, MAPS, SECTIONS
from blockx_worker.config.redact import redact_endpoint, redact_section
from blockx_worker.config.shown import shown_value
from blockx_worker.config.values import format_duration, format_size

NUMBERS = [
    f for f in FIELDS.values() if f.path.startswith("io.") and f.low is not None and f.high is not None
]


def load(folder: Path, toml: str = "", **env: str):
    file = folder / "worker.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(None, file, env, {})


def problem(folder: Path, toml: str = "", **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, toml, **env)
    (line,) = caught.value.problems
    return line


def test_a_section_inside_a_section_is_read_from_file_and_environment(tmp_path):
    toml = '[io]\nmax_queue = 7\n[io.rpc]\nendpoints = ["http://a:1", "https://b/x"]\ntimeout_ms = "5s"\n'
    loaded = load(tmp_path, toml, BLOCKX_IO_RPC_MAX_BATCH="10", BLOCKX_IO_BLOCKDB_MAX_BLOCKS="3")
    settings = loaded.settings.io
    assert (settings.max_queue, settings.rpc.timeout_ms, settings.rpc.max_batch) == (7, 5000, 10)
    assert settings.rpc.endpoints == ["http://a:1", "https://b/x"]
    assert settings.blockdb.max_blocks == 3
    assert loaded.origins["io.rpc.max_batch"] == "env BLOCKX_IO_RPC_MAX_BATCH"
    assert {"io", "io.rpc", "io.blockdb"} <= set(SECTIONS)


def test_endpoints_in_the_environment_are_separated_by_commas(tmp_path):
    loaded = load(tmp_path, BLOCKX_IO_RPC_ENDPOINTS="http://a:1, http://b:2")
    assert loaded.settings.io.rpc.endpoints == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize("field", NUMBERS, ids=lambda f: f.path)
def test_every_io_limit_has_a_range_that_is_enforced_and_named(tmp_path, field):
    """Both ends are accepted; one beyond either end is a problem that names the field and the range."""
    for value in (field.low, field.high):
        load(tmp_path, **{field.variable: str(value)})
    show = {"ms": format_duration, "bytes": format_size}.get(field.kind, str)
    for value in (field.low - 1, field.high + 1):
        line = problem(tmp_path, **{field.variable: str(value)})
        assert line.startswith(f"{field.path} = ")
        assert f"from {show(field.low)} to {show(field.high)}" in line


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "a:8545", "http://", "http://[::1", "http://a:99999", "http://a, http://a", "http:///x"],
)
def test_what_is_no_list_of_different_http_urls_is_refused(tmp_path, url):
    assert "expected a list of URLs such as http://127.0.0.1:8545" in problem(
        tmp_path, BLOCKX_IO_RPC_ENDPOINTS=url
    )


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[io]\nmax_que = 1", "io.max_que (file {}): unknown field; did you mean io.max_queue?"),
        ("[io.rcp]\nmax_batch = 1", "io.rcp (file {}): unknown field; "),
        ("[io]\nrpc = 5", "io.rpc = 5 (file {}): expected a table: [io.rpc]"),
        ("io = 5", "io = 5 (file {}): expected a table: [io]"),
        ("[extension.x]\nx = 1", "[extension] (file {}): unknown section; did you mean [extensions]?"),
        ("extensions = 1", "extensions = 1 (file {}): expected a table: [extensions]"),
        ("[extensions]\nx = 1", "extensions.x = 1 (file {}): expected a table: [extensions.NAME]"),
        ("[extensions.'a b']", "extensions.a b (file {}): this name may have at most 64 letters"),
    ],
)
def test_mistakes_in_sections_are_named(tmp_path, toml, line):
    assert problem(tmp_path, toml).startswith(line.format(tmp_path / "worker.toml"))


def test_an_extension_keeps_its_keys_as_they_are_written(tmp_path):
    toml = "[extensions.prices]\nurl = 'x'\nlimits = {a = 1}\n[extensions.empty]\n"
    loaded = load(tmp_path, toml, BLOCKX_EXTENSIONS_ENABLED="one,two")
    assert loaded.settings.extensions == {"prices": {"url": "x", "limits": {"a": 1}}, "empty": {}}
    assert loaded.settings.extensions_enabled == ["one", "two"]
    assert loaded.origins["extensions.empty"] == f"file {tmp_path / 'worker.toml'}"
    assert {"extensions", "targets"} == set(MAPS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://127.0.0.1:8545/", "http://127.0.0.1:8545"),
        ("https://node.example/v3/0123456789abcdef", "https://node.example/***"),
        ("https://node.example?apikey=1", "https://node.example/***"),
        ("https://user:pass@node.example/v3", "https://***@node.example/***"),
        ("https://us/er:p@ss@node.example", "https://***@node.example"),
        ("something else", "***"),
    ],
)
def test_of_an_endpoint_only_the_host_is_shown(url, shown):
    assert redact_endpoint(url) == shown


def test_secrets_of_endpoints_and_extensions_do_not_show(tmp_path):
    toml = (
        '[io.rpc]\nendpoints = ["https://a.example/SECRET"]\n'
        '[extensions.x]\napi_key = "SECRET"\nurl = "http://u:SECRET@h"\nn = 1\n'
    )
    loaded = load(tmp_path, toml)
    assert shown_value(loaded.settings, "io.rpc.endpoints") == ["https://a.example/***"]
    assert shown_value(loaded.settings, "extensions.x") == {"api_key": "***", "url": "http://u:***@h", "n": 1}
    for flags in ([], ["--json"]):
        done = CliRunner().invoke(main, ["config", "--config", str(tmp_path / "worker.toml"), *flags])
        assert done.exit_code == 0
        assert "SECRET" not in done.output
        assert "https://a.example/***" in done.output
    assert redact_section({"accessToken": 5}) == {"accessToken": "***"}


def test_a_wrong_endpoint_is_reported_without_its_key(tmp_path):
    line = problem(tmp_path, BLOCKX_IO_RPC_ENDPOINTS="https://a.example/SECRET,https://a.example:0/SECRET")
    assert line.startswith("io.rpc.endpoints = 'https://a.example/***,https://a.example:0/***'")
    assert "SECRET" not in line
