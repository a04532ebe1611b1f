"""The example extension, built and installed into a folder of its own as an installer would."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "blockx_example"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed: a wheel made by its own build backend, unpacked."""
    work = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, work / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", BUILD, str(work)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "site")
    return work / "site"


@pytest.fixture
def installed(site, monkeypatch) -> Iterator[Path]:
    """The example on the path of this process."""
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "blockx_example"]:
        del sys.modules[name]
