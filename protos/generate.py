"""Generate the Python code and the descriptor set of the worker's protocols, or check that they are fresh.

``python protos/generate.py`` writes ``blockx_worker/rpc/pb``; with ``--check`` nothing is written: the files are
generated into a temporary directory and compared, and the exit code is 1 if any differs. The descriptor set
(``worker.desc``) is what server reflection answers from.

Trap: the plugin is found on the PATH by protoc, so the scripts directory of this interpreter is put in front.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS.parent / "blockx_worker" / "rpc" / "pb"
DESCRIPTOR_SET = "worker.desc"


def main(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(description="Generate blockx_worker/rpc/pb from the .proto files.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the committed files are stale"
    )
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        generated = Path(directory)
        _generate(generated)
        if arguments.check:
            return _report(_differences(generated, TARGET))
        _replace(generated, TARGET)
    return 0


def _generate(target: Path) -> None:
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
    well_known = resources.files("grpc_tools") / "_proto"
    files = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{well_known}",
            f"--python_betterproto_out={target}",
            f"--descriptor_set_out={target / DESCRIPTOR_SET}",
            "--include_imports",
            *files,
        ]
    )
    if code:
        raise SystemExit(f"protoc failed with exit code {code}; its messages stand above")


def _contents(directory: Path) -> dict[str, bytes]:
    """Relative path to content of all files, without bytecode."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _differences(generated: Path, committed: Path) -> list[str]:
    fresh, present = _contents(generated), _contents(committed)
    return sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))


def _report(stale: list[str]) -> int:
    for name in stale:
        print(f"stale: blockx_worker/rpc/pb/{name} does not match protos/", file=sys.stderr)
    if stale:
        print("run: python protos/generate.py", file=sys.stderr)
    return 1 if stale else 0


def _replace(generated: Path, target: Path) -> None:
    for name in _contents(target).keys() - _contents(generated).keys():
        (target / name).unlink()
    for name, content in _contents(generated).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
