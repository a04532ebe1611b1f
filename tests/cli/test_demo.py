"""`blockx demo`: its folder, and the whole of it against a real worker."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from blockx_worker.cli.demo_folder import prepare
from blockx_worker.cli.errors import CommandFailed, Unreachable
from blockx_worker.cli.local_worker import clean_environment, running_worker


def test_preparing_again_keeps_edited_functions(tmp_path):
    folder = prepare(tmp_path / "demo")
    assert not folder.edited
    (folder.functions / "transfers.py").write_text("def transfer(log):\n    return None\n")
    assert prepare(tmp_path / "demo").edited
    assert (folder.functions / "transfers.py").read_text().startswith("def transfer")


def test_the_folder_says_that_its_data_is_synthetic(tmp_path):
    assert "SYNTHETIC" in (prepare(tmp_path / "demo").root / "README.txt").read_text()


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(CommandFailed, match="holds something else; name another folder with --dir"):
        prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_worker_of_the_demo_does_not_depend_on_the_users_environment():
    environ = {"PATH": "/bin", "BLOCKX_LISTEN": "x", "EXECUTOR_COUNT": "9", "HOME": "/root"}
    assert clean_environment(environ) == {"PATH": "/bin", "HOME": "/root"}


def test_a_worker_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path):
    arguments = ("--functions", str(tmp_path / "nowhere"))
    with (
        pytest.raises(Unreachable, match="ended with exit code 2") as caught,
        running_worker(arguments, tmp_path / "ready.json", tmp_path / "worker.log"),
    ):
        pass
    assert "no such folder" in caught.value.message


@pytest.mark.e2e
def test_the_demo_runs_and_may_be_run_again(tmp_path):
    """The second run replaces the rows of the first: as many as the chain has transfers."""
    folder = tmp_path / "demo"
    command = [
        sys.executable,
        "-c",
        "from blockx_worker.cli import main; main()",
        "demo",
        "--dir",
        str(folder),
    ]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    transfers = prepare(folder).size.transfers
    with closing(sqlite3.connect(folder / "transfers.db")) as database:
        [(rows, amounts)] = database.execute("SELECT count(*), count(DISTINCT amount) FROM transfers")
    assert (rows, amounts > 1000) == (transfers, True)
    for part in (
        f"{transfers:,} rows",
        "A synthetic chain",
        "blockx run --functions",
        "exact up to 256 bits",
    ):
        assert part in done.stdout
    assert not (folder / "worker-ready.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(worker_pid(folder), 0)


def worker_pid(folder: Path) -> int:
    events = map(json.loads, (folder / "worker.log").read_text().splitlines())
    return int(next(event["pid"] for event in events if event["event"] == "worker_serving"))
