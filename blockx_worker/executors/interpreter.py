"""Checks, before anything is started, that an interpreter can be that of the executors.

Executors may run in an environment of their own, with the libraries that the functions import. It needs blockx-executor
in the worker's own version, for the two talk to each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from blockx_executor.wire.version import VERSION
from blockx_worker.model.fields import shorten

__all__ = ["check_executor_python"]

CHECK_TIMEOUT_S = 20.0

# The version comes behind a mark, since whatever else runs at the start of an interpreter may print, too.
_MARK = "blockx-executor version: "
_PROGRAM = f"import blockx_executor, greenlet, msgspec; print({_MARK!r} + blockx_executor.__version__)"


def check_executor_python(path: str, env: Mapping[str, str] | None = None) -> None:
    """Run the interpreter once, for at most 20 s (blocking); OSError says what is wrong with it and what to do.

    ``env`` is the environment of the executors, None for that of this process. The worker's own interpreter needs no check:
    this module could not have been imported without blockx-executor.
    """
    if path == sys.executable:
        return
    if shutil.which(path) is None:
        what = "cannot be executed" if os.path.exists(path) else "does not exist"  # noqa: PTH110 - a name, too
        raise OSError(
            f"executor_python: {path} {what}; name the Python interpreter of an environment with blockx-executor"
        )
    version = _version(path, env)
    if version != VERSION:
        raise OSError(
            f"executor_python: {path} has blockx-executor {shorten(version)}, but this worker needs {VERSION}; {_install(path)}"
        )


def _version(path: str, env: Mapping[str, str] | None) -> str:
    try:
        done = subprocess.run(
            [path, "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_TIMEOUT_S,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(
            f"executor_python: {path} did not answer within {CHECK_TIMEOUT_S:g} s; does it start?"
        ) from None
    except OSError as error:
        raise OSError(f"executor_python: {path} cannot be started: {error.strerror}") from None
    lines = done.stdout.decode(errors="replace").splitlines()
    version = next((line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)), None)
    if done.returncode != 0 or version is None:
        raise OSError(f"executor_python: {path} {_why(path, done)}")
    return version


def _why(path: str, done: subprocess.CompletedProcess[bytes]) -> str:
    """From what the interpreter said when it could not tell the version."""
    last = next(reversed(done.stderr.decode(errors="replace").split("\n")[:-1]), "")
    if "No module named 'blockx_executor'" in last:
        return f"has no blockx-executor; {_install(path)}"
    if "Error" in last:
        return f"cannot use blockx-executor: {shorten(last)}; {_install(path)}"
    said = f", and said: {shorten(last)}" if last else ""
    return f"is no Python interpreter that can run blockx-executor: it ended with exit code {done.returncode}{said}"


def _install(path: str) -> str:
    return f"install it: {path} -m pip install blockx-executor=={VERSION}"
