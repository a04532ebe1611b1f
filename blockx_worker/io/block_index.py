"""Which bytes of a JSON lines file belong to which block.

A table in one file is read once; the index then holds the runs of consecutive lines of one block: where each begins and
ends, and a checksum of it. It takes 28 bytes a run, for a table may have millions of blocks. Reading goes in chunks of
whole lines that are decoded by one C call each: a Python loop over every line would keep taking the interpreter lock from
the thread that serves the calls.

A file may be read for a long time after it was indexed, while somebody appends to it, or, by mistake, writes over it.
So each run is read with its checksum: what is handed on are the rows that were indexed, or an error.
"""

from __future__ import annotations

import gzip
import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from io import BufferedIOBase
from itertools import accumulate, groupby, islice
from operator import attrgetter, gt
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
    "read_run",
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


@attrs.frozen(eq=False)
class BlockIndex:
    """Runs of lines in the text of a file (for ``.gz`` the unpacked text), in order of block, then of line.

    Run ``i`` is the bytes ``starts[i]`` to ``ends[i]`` of block ``blocks[i]``.
    """

    signature: FileSignature
    blocks: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    checksums: Sequence[int]

    @property
    def bounds(self) -> tuple[int, int] | None:
        """First and last block; None without rows."""
        return (self.blocks[0], self.blocks[-1]) if self.blocks else None

    def between(self, first: int, last: int) -> range:
        """The runs of the blocks ``first`` to ``last``."""
        return range(bisect_left(self.blocks, first), bisect_right(self.blocks, last))


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
    runs = _Runs()
    line_number = 0
    with open_lines(path) as file:
        signature = file_signature(os.fstat(file.fileno()))
        while lines := file.readlines(CHUNK_BYTES):
            check_interrupted(interrupted)
            runs.add(lines, _blocks_of(decoder, lines, path, line_number))
            line_number += len(lines)
    return runs.index(signature)


def read_run(file: BufferedIOBase, index: BlockIndex, run: int) -> list[bytes]:
    """The rows of a run, without line ends and blank lines; BlockStoreError if they are not those that were indexed."""
    start, end = index.starts[run], index.ends[run]
    file.seek(start)
    text = file.read(end - start)
    if zlib.crc32(text) != index.checksums[run]:
        raise BlockStoreError(
            f"{getattr(file, 'name', 'the file')} was changed while it was read: the rows of block {index.blocks[run]} are "
            "not those that it had. Append to such a file, or replace it by renaming a finished one"
        )
    return list(filter(None, map(bytes.strip, text.split(b"\n"))))


class _Runs:
    """Collects the runs of a file."""

    def __init__(self) -> None:
        self._blocks, self._starts, self._ends = array("q"), array("q"), array("q")
        self._checksums = array("I")
        self._offset = 0

    def add(self, lines: list[bytes], blocks: list[int | None]) -> None:
        """The next lines, and the block of each (None for a blank one)."""
        ends = list(accumulate(map(len, lines), initial=self._offset))
        text = memoryview(b"".join(lines))
        position = 0
        for block, same in groupby(blocks):
            first, position = position, position + sum(1 for _ in same)
            if block is not None:
                part = text[ends[first] - self._offset : ends[position] - self._offset]
                self._add_run(block, ends[first], ends[position], part)
        self._offset = ends[-1]

    def _add_run(self, block: int, start: int, end: int, text: memoryview) -> None:
        if self._blocks and self._blocks[-1] == block and self._ends[-1] == start:
            self._ends[-1] = end
            self._checksums[-1] = zlib.crc32(text, self._checksums[-1])
            return
        self._blocks.append(block)
        self._starts.append(start)
        self._ends.append(end)
        self._checksums.append(zlib.crc32(text))

    def index(self, signature: FileSignature) -> BlockIndex:
        """The index of all that was added."""
        columns = [self._blocks, self._starts, self._ends, self._checksums]
        if any(map(gt, self._blocks, islice(self._blocks, 1, None))):
            order = sorted(range(len(self._blocks)), key=self._blocks.__getitem__)
            columns = [array(column.typecode, map(column.__getitem__, order)) for column in columns]
        return BlockIndex(signature, *columns)


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
