"""Interpreters that may or may not be those of the executors."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from blockx_executor.wire.version import VERSION
from blockx_worker.executors import interpreter
from blockx_worker.executors.interpreter import check_executor_python


def stub(folder: Path, script: str) -> str:
    """An executable that does as the script says; ``PYTHON`` in it is a real interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nPYTHON={shlex.quote(sys.executable)}\n{script}\n")
    path.chmod(0o755)
    return str(path)


def refused(path: str, **more: dict[str, str]) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the sentence is what callers compare
        check_executor_python(path, **more)
    message = str(caught.value)
    assert message.startswith(f"executor_python: {path} ")
    assert "\n" not in message
    return message


def test_the_workers_own_interpreter_is_not_even_started(monkeypatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    check_executor_python(sys.executable)


def test_another_interpreter_with_the_same_version_is_fine(tmp_path) -> None:
    check_executor_python(stub(tmp_path, 'echo hello; exec "$PYTHON" "$@"'))


def test_an_environment_without_the_package_says_how_to_install_it(tmp_path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    path = str(tmp_path / "venv" / "bin" / "python")
    assert f"has no blockx-executor; install it: {path} -m pip install blockx-executor=={VERSION}" in refused(
        path, env={}
    )


def test_a_path_where_nothing_is(tmp_path) -> None:
    assert "does not exist; name the Python interpreter" in refused(str(tmp_path / "none"))
    assert "does not exist" in refused("python-of-nobody")
    (tmp_path / "text").touch()
    assert "cannot be executed; name the Python interpreter" in refused(str(tmp_path / "text"))


def test_a_program_that_is_no_interpreter(tmp_path) -> None:
    assert "it ended with exit code 3, and said: what is this?" in refused(
        stub(tmp_path, "echo what is this? >&2; exit 3")
    )
    assert "it ended with exit code 0" in refused(stub(tmp_path, "true"))
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    assert "cannot be started: Exec format error" in refused(str(tmp_path / "binary"))


def test_another_version_names_both(tmp_path) -> None:
    message = refused(stub(tmp_path, f"echo '{interpreter._MARK}0.0.1'"))
    assert f"has blockx-executor 0.0.1, but this worker needs {VERSION}; install it: " in message


def test_a_dependency_that_is_missing_is_named(tmp_path) -> None:
    """Its own package is there, and greenlet is not."""
    (tmp_path / "blockx_executor.py").write_text("import no_such_greenlet")
    (tmp_path / "greenlet.py").touch()
    (tmp_path / "msgspec.py").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    message = refused(str(tmp_path / "venv" / "bin" / "python"), env={"PYTHONPATH": str(tmp_path)})
    assert (
        "cannot use blockx-executor: ModuleNotFoundError: No module named 'no_such_greenlet'; install it"
        in message
    )


def test_an_interpreter_that_never_answers_is_given_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(interpreter, "CHECK_TIMEOUT_S", 0.2)
    assert "did not answer within 0.2 s" in refused(stub(tmp_path, "exec sleep 60"))
