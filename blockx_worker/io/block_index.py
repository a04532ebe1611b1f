"""Which bytes of a JSON lines file belong to which block.

A table in one file is read once; the index then holds, for each block, the spans of consecutive lines. Reading goes in
chunks of whole lines that are decoded by one C call each: a Python loop over every line would keep taking the
interpreter lock from the thread that serves the calls.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from io import BufferedIOBase
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TypeAlias

import attrs
import msgspec

from blockx_worker.ports import BlockStoreError

__all__ = [
    "BlockIndex",
    "FileSignature",
    "build_index",
    "check_interrupted",
    "file_signature",
    "open_lines",
    "read_span",
]

CHUNK_BYTES = 1024 * 1024

FileSignature: TypeAlias = tuple[int, int, int, int]

_Block = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Row(msgspec.Struct, gc=False):
    block: _Block = msgspec.field(name="block_number")


class _BlockRow(msgspec.Struct, gc=False):
    block: _Block = msgspec.field(name="number")


_Decoder: TypeAlias = msgspec.json.Decoder[_Row] | msgspec.json.Decoder[_BlockRow]

_row_decoder = msgspec.json.Decoder(_Row)
_block_decoder = msgspec.json.Decoder(_BlockRow)
_block_of = attrgetter("block")


@attrs.frozen
class BlockIndex:
    """Spans (start, end) of each block in the text of a file (for ``.gz`` the unpacked text), blocks ascending."""

    signature: FileSignature
    spans: dict[int, list[tuple[int, int]]]

    @property
    def bounds(self) -> tuple[int, int] | None:
        """First and last block; None without rows."""
        return (next(iter(self.spans)), next(reversed(self.spans))) if self.spans else None


def check_interrupted(interrupted: Callable[[], bool]) -> None:
    """BlockStoreError once nobody waits for the rows any more."""
    if interrupted():
        raise BlockStoreError("reading was interrupted")


def file_signature(stat: os.stat_result) -> FileSignature:
    """What changes when a file does."""
    return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)


def open_lines(path: Path) -> BufferedIOBase:
    """Open a ``.jsonl`` or ``.jsonl.gz`` file for reading its text as bytes."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def build_index(path: Path, table: str, interrupted: Callable[[], bool]) -> BlockIndex:
    """Read the whole file; BlockStoreError names the file, line and reason of a bad row."""
    decoder = _block_decoder if table == "blocks" else _row_decoder
    spans: dict[int, list[tuple[int, int]]] = {}
    offset = line_number = 0
    with open_lines(path) as file:
        signature = file_signature(os.fstat(file.fileno()))
        while lines := file.readlines(CHUNK_BYTES):
            check_interrupted(interrupted)
            blocks = _blocks_of(decoder, lines, path, line_number)
            ends = list(accumulate(map(len, lines), initial=offset))
            _add_spans(spans, blocks, ends)
            offset = ends[-1]
            line_number += len(lines)
    return BlockIndex(signature, dict(sorted(spans.items())))


def read_span(file: BufferedIOBase, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """The rows in these spans, without line ends and blank lines."""
    rows: list[bytes] = []
    for start, end in spans:
        file.seek(start)
        rows.extend(file.read(end - start).split(b"\n"))
    return list(filter(None, map(bytes.strip, rows)))


def _blocks_of(
    decoder: _Decoder,
    lines: list[bytes],
    path: Path,
    before: int,
) -> list[int | None]:
    """The block of each line, None for a blank one; all lines valid JSON objects in UTF-8."""
    try:
        b"".join(lines).decode()
        return list(map(_block_of, map(decoder.decode, lines)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [_block_of_line(decoder, line, path, before + i) for i, line in enumerate(lines, start=1)]


def _block_of_line(
    decoder: _Decoder,
    line: bytes,
    path: Path,
    number: int,
) -> int | None:
    if not line.strip():
        return None
    try:
        line.decode()
        return decoder.decode(line).block
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BlockStoreError(f"{path}, line {number}: {error}") from None


def _add_spans(spans: dict[int, list[tuple[int, int]]], blocks: list[int | None], ends: list[int]) -> None:
    position = 0
    for block, run in groupby(blocks):
        start, position = position, position + sum(1 for _ in run)
        if block is None:
            continue
        own = spans.setdefault(block, [])
        if own and own[-1][1] == ends[start]:
            own[-1] = (own[-1][0], ends[position])
        else:
            own.append((ends[start], ends[position]))
