"""The protocol explains itself; `just lint` proves that the generated files are fresh."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
