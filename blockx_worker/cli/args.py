"""The argument lists of a call task: from lines of JSON to the text of ``argsList``, without decoding any value.

A line is checked to be a JSON array and copied as it is, so that integers of any size survive and millions of lines cost
little: about 1 µs and their own bytes each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.words import binary_size
from blockx_worker.config.values import format_size

__all__ = ["MAX_REQUEST_BYTES", "args_list", "check_request_size", "read_args_file"]

MAX_REQUEST_BYTES = 64 << 20  # what a worker accepts where `rpc.max_request_bytes` is not raised
SHOWN_CHARS = 60

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def read_args_file(file: Path, max_bytes: int = MAX_REQUEST_BYTES) -> bytes:
    """The ``argsList`` of a file with one JSON array a line; ``-`` reads standard input."""
    try:
        if str(file) == "-":
            return args_list(sys.stdin.buffer, "standard input")
        check_request_size(file.stat().st_size, str(file), max_bytes)
        with file.open("rb") as lines:
            return args_list(lines, str(file))
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from None


def args_list(lines: Iterable[bytes], source: str) -> bytes:
    """JSON text of the list of all lines; `CommandFailed` names the first line that is no JSON array.

    Empty lines are accepted at the end only: outputs answer to lines by their position.
    """
    arrays: list[bytes] = []
    first_empty = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            first_empty = first_empty or number
            continue
        if first_empty:
            raise CommandFailed(f"{source}, line {first_empty}: empty; expected a JSON array of arguments")
        _check_array(text, f"{source}, line {number}")
        arrays.append(text)
    return b"[" + b",".join(arrays) + b"]"


def check_request_size(size: int, source: str, max_bytes: int = MAX_REQUEST_BYTES) -> None:
    """Refuse what a worker would refuse anyway, before reading or sending it."""
    if size > max_bytes:
        parts = -(-size // (max_bytes * 9 // 10))
        raise CommandFailed(
            f"{source}: {binary_size(size)} of arguments; a request may have {format_size(max_bytes)}. "
            f"Split the lines over {parts} tasks."
        )


def _check_array(text: bytes, where: str) -> None:
    try:
        _ARRAY.decode(text)
        text.decode()
    except msgspec.ValidationError:
        raise CommandFailed(f"{where}: {_shown(text)} is not a JSON array; write [{_shown(text)}]") from None
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{where}: {_shown(text)} is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{where}: not UTF-8 text") from None


def _shown(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "…"
