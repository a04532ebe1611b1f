"""Commands that need no worker: `config`, help, and the mistakes of `run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from blockx_worker.cli.main import COMMANDS, main


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("BLOCKX_"):
            monkeypatch.delenv(name)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page(name):
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


def test_the_help_page_lists_every_command():
    text = run("--help").stdout
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["nonsense"], ["run", "--nonsense"], ["config", "--listen"]])
def test_bad_usage_is_exit_code_2(arguments):
    assert run(*arguments).exit_code == 2


def test_config_prints_value_and_origin(monkeypatch):
    monkeypatch.setenv("CALL_DEADLINE_MS", "2000")
    result = run("config", "--executors", "3")
    rows = {row.split()[0]: row for row in result.stdout.splitlines()}
    assert rows["executor_count"].split() == ["executor_count", "3", "flag", "--executors"]
    assert "2000 (2s)" in rows["dispatcher.call_deadline_ms"]
    assert rows["dispatcher.call_deadline_ms"].endswith("env CALL_DEADLINE_MS")
    assert rows["task_slots"].endswith("default")


def test_config_as_json_is_a_list_of_fields():
    fields = json.loads(run("config", "--json", "--profile", "bundle").stdout)
    by_path = {field["field"]: field for field in fields}
    assert by_path["task_slots"] == {"field": "task_slots", "value": 256, "origin": "profile bundle"}


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_config_masks_passwords(extra, monkeypatch):
    monkeypatch.setenv("BLOCKX_TARGETS_MAIN", "postgresql://bob:hunter2@db/prod")
    result = run("config", *extra)
    assert "hunter2" not in result.output
    assert "postgresql://bob:***@db/prod" in result.stdout


@pytest.mark.parametrize("command", ["run", "config"])
def test_a_bad_configuration_is_exit_code_2_with_one_line_for_each_problem(command):
    result = run(command, "--executors", "many", "--listen", "0.0.0.0")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "executor_count = 'many' (flag --executors): expected an integer" in result.stderr
    assert "listen = '0.0.0.0' (flag --listen): expected HOST:PORT" in result.stderr


def test_the_module_is_the_run_command():
    done = subprocess.run(
        [sys.executable, "-m", "blockx_worker", "--profile", "blok"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "profile = 'blok' (flag --profile): expected one of: block, bundle" in done.stderr
