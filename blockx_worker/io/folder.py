"""Block tables in a folder of JSON lines, gzipped or not.

``<table>.jsonl[.gz]`` holds a whole table, ``<table>/<block>.jsonl[.gz]`` one block of it. A row is one JSON object a
line; its block is its ``block_number`` (``number`` in the table ``blocks``). Rows are handed on as the text in which
they stand, so that 256-bit integers survive.

**No row is lost silently.** A block without rows is normal, but a block that the store does not know is an error:

* with a table ``blocks`` in the folder, the known blocks are those in it;
* without one, a table in a single file knows the blocks from its first to its last, and a table of one file a block
  knows those that have a file (an empty file is a block without rows).

A table in one file is indexed at its first use (see `block_index`) and again when the file changes. Reading a
gzipped table starts at its beginning each time; leave tables from which single blocks are read unpacked.

**A read may last long** (a task over many blocks reads as it goes), and the folder may change meanwhile. What is known, and
which files there are, is settled at the start. A table in one file is held open: rows appended later, and a file that is
put in its place, are for the next read; a file that is written over is an error. A file of one block is read when its
turn comes, as it is then; one that is gone by then is an error.
"""

from __future__ import annotations

import gzip
import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from itertools import groupby, islice
from operator import gt
from pathlib import Path

import attrs

from blockx_worker.io.block_index import (
    BlockIndex,
    build_index,
    check_interrupted,
    file_signature,
    open_lines,
    read_run,
)
from blockx_worker.io.index_cache import IndexCache
from blockx_worker.model.fields import shorten
from blockx_worker.ports import BlockNotFound, BlockStoreError, TableNotFound

__all__ = ["FolderBlockStore"]

BLOCKS_TABLE = "blocks"
SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_DIGITS = 19  # of a block number: it is less than 2^63
MAX_FILE_CHANGES = 3
MAX_SCATTERED_BYTES = 512 * 1024 * 1024


@attrs.frozen
class _Table:
    name: str
    path: Path
    per_block: bool


class FolderBlockStore:
    """A `BlockStore` over a folder; may be used by several threads at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._indexes = IndexCache()

    def tables(self) -> list[str]:
        """Names of the tables that are there, sorted."""
        return sorted({table.name for table in self._tables()})

    def read_rows(
        self, table: str, first: int, last: int, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (block, JSON text) of each row, in order of block and line; errors as `read_blocks`."""
        for block, rows in self.read_blocks(table, first, last, interrupted):
            for row in rows:
                yield block, row

    def read_blocks(
        self, table: str, first: int, last: int, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (block, JSON text of each row in order of line) for each block of the range that has rows.

        BlockStoreError names an unknown table, an unknown block, or the file and line of a bad row.
        """
        try:
            found = self._find(table)
            files = _files_of_blocks(found) if found.per_block else None
            self._check_known(found, files, first, last, interrupted)
            if files is None:
                yield from self._read_single(found, first, last, interrupted)
            else:
                yield from _read_files(found, files, first, last, interrupted)
        except (OSError, EOFError, zlib.error) as error:
            place = getattr(error, "filename", None) or self.root
            reason = getattr(error, "strerror", None) or error
            raise BlockStoreError(f"{place} cannot be read: {reason}") from error

    # --- finding ----------------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[_Table]:
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield _Table(entry.name, Path(entry.path), per_block=True)
                for suffix in SUFFIXES:
                    if entry.name.endswith(suffix) and entry.is_file():
                        yield _Table(entry.name.removesuffix(suffix), Path(entry.path), per_block=False)

    def _find(self, name: str) -> _Table:
        tables = list(self._tables())
        found = [table for table in tables if table.name == name]
        if not found:
            names = ", ".join(sorted({t.name for t in tables})) or "no tables"
            raise TableNotFound(f'no table "{shorten(name)}" in {self.root}, which holds {names}')
        if len(found) > 1:
            places = " and ".join(sorted(t.path.name for t in found))
            raise BlockStoreError(
                f'table "{name}" is there more than once in {self.root}: {places}; remove all but one'
            )
        return found[0]

    def _check_known(
        self,
        table: _Table,
        files: Sequence[int] | None,
        first: int,
        last: int,
        interrupted: Callable[[], bool],
    ) -> None:
        """Each block of the range is known to the store, so that no rows means that there are none."""
        if any(t.name == BLOCKS_TABLE for t in self._tables()):
            known = self._known_blocks(self._find(BLOCKS_TABLE), interrupted)
            _require(known, first, last, f'table "{BLOCKS_TABLE}"')
        elif files is not None:
            _require(files, first, last, f"{table.path} (a block without rows needs an empty file)")
        else:
            bounds = self._indexes.get(table.path, table.name, interrupted).bounds
            if bounds is None or first < bounds[0] or last > bounds[1]:
                holds = "no rows" if bounds is None else f"blocks {bounds[0]} to {bounds[1]}"
                raise BlockNotFound(f"blocks {first} to {last} are not all there: {table.path} holds {holds}")

    def _known_blocks(self, table: _Table, interrupted: Callable[[], bool]) -> Sequence[int]:
        """Ascending; a block may be there more than once."""
        if table.per_block:
            return _files_of_blocks(table)
        return self._indexes.get(table.path, table.name, interrupted).blocks

    # --- reading ----------------------------------------------------------------------------------------------

    def _read_single(
        self, table: _Table, first: int, last: int, interrupted: Callable[[], bool]
    ) -> Iterator[tuple[int, list[bytes]]]:
        get_index = partial(self._indexes.get, table.path, table.name, interrupted)
        with _unchanged(table.path, get_index) as (file, index):
            runs = index.between(first, last)
            if isinstance(file, gzip.GzipFile) and any(
                map(gt, index.starts[runs.start : runs.stop], index.starts[runs.start + 1 : runs.stop])
            ):
                yield from _read_scattered(file, index, runs, interrupted)
                return
            for block, same in groupby(runs, index.blocks.__getitem__):
                check_interrupted(interrupted)
                yield block, _rows(file, index, same)


def _files_of_blocks(table: _Table) -> array[int]:
    """The blocks that have a file, ascending; a block that has two files twice."""
    found = array("q")
    with os.scandir(table.path) as entries:
        for entry in entries:
            stem = entry.name.partition(".")[0]
            if (
                stem.isdecimal()
                and stem.isascii()
                and len(stem) < MAX_DIGITS
                and entry.name in _names(int(stem))
            ):
                found.append(int(stem))
    return array("q", sorted(found))


def _names(block: int) -> list[str]:
    return [f"{block}{suffix}" for suffix in SUFFIXES]


def _read_files(
    table: _Table, files: Sequence[int], first: int, last: int, interrupted: Callable[[], bool]
) -> Iterator[tuple[int, list[bytes]]]:
    for block in files[bisect_left(files, first) : bisect_right(files, last)]:
        check_interrupted(interrupted)
        path = _block_file(table, block)
        with _unchanged(path, partial(build_index, path, table.name, interrupted)) as (file, index):
            strangers = [other for other in index.blocks if other != block]
            if strangers:
                raise BlockStoreError(
                    f"{path}: holds a row of block {strangers[0]}; expected only block {block}"
                )
            rows = _rows(file, index, range(len(index.blocks))) if index.blocks else []
        if rows:
            yield block, rows


def _block_file(table: _Table, block: int) -> Path:
    paths = [path for name in _names(block) if (path := table.path / name).is_file()]
    if len(paths) > 1:
        raise BlockStoreError(f"block {block} is there twice: {paths[0]} and {paths[1].name}; remove one")
    if not paths:
        raise BlockNotFound(f"the file of block {block} in {table.path} was removed while the table was read")
    return paths[0]


def _require(known: Sequence[int], first: int, last: int, place: str) -> None:
    here = islice(known, bisect_left(known, first), bisect_right(known, last))
    missing, found = first, 0
    for block, _ in groupby(here):
        found += 1
        missing += block == missing
    absent = last - first + 1 - found
    if absent:
        holds = f"it holds {known[0]} to {known[-1]}" if known else "it holds none"
        more = f" (and {absent - 1} more of the range)" if absent > 1 else ""
        raise BlockNotFound(f"block {missing}{more} is not in {place}: {holds}")


@contextmanager
def _unchanged(
    path: Path, get_index: Callable[[], BlockIndex]
) -> Iterator[tuple[BufferedIOBase, BlockIndex]]:
    """The open file and the index of just what was opened."""
    for _ in range(MAX_FILE_CHANGES):
        index = get_index()
        with open_lines(path) as file:
            if file_signature(os.fstat(file.fileno())) == index.signature:
                yield file, index
                return
    raise BlockStoreError(f"{path} keeps changing while it is read: replace it by renaming a finished file")


def _rows(file: BufferedIOBase, index: BlockIndex, runs: Iterable[int]) -> list[bytes]:
    """The rows of at least one run."""
    first, *more = runs
    rows = read_run(file, index, first)
    for run in more:
        rows += read_run(file, index, run)
    return rows


def _read_scattered(
    file: BufferedIOBase, index: BlockIndex, runs: range, interrupted: Callable[[], bool]
) -> Iterator[tuple[int, list[bytes]]]:
    """Read forwards only, since going back in a gzipped file means starting anew."""
    rows: dict[int, list[bytes]] = {index.blocks[run]: [] for run in runs}
    size = 0
    for run in sorted(runs, key=index.starts.__getitem__):
        check_interrupted(interrupted)
        size += index.ends[run] - index.starts[run]
        if size > MAX_SCATTERED_BYTES:
            raise BlockStoreError(
                f"{getattr(file, 'name', 'the file')}: its blocks are not in order, and those of the range have more than "
                f"{MAX_SCATTERED_BYTES} bytes; unpack it, or sort it by block"
            )
        rows[index.blocks[run]].extend(read_run(file, index, run))
    yield from rows.items()
