"""The committed generated code and descriptor set are those of the .proto files."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_files_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "protos" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_field_and_value_is_commented() -> None:
    """Each line that declares something follows a comment; empty messages have nothing to say."""
    lines = (ROOT / "protos" / "blockx" / "worker" / "v1" / "worker.proto").read_text().splitlines()
    declares = re.compile(r"\s+[\w<>, ]+ \w+ = \d+;|\s+[A-Z_]+ = \d+;|\s+rpc |enum ")
    bare = [
        line
        for before, line in pairwise(lines)
        if declares.match(line) and not before.strip().startswith("//")
    ]
    assert bare == []
