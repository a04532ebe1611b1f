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
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from io import BufferedIOBase
from itertools import filterfalse
from pathlib import Path

import attrs

from blockx_worker.io.block_index import (
    BlockIndex,
    build_index,
    check_interrupted,
    file_signature,
    open_lines,
    read_span,
)
from blockx_worker.io.index_cache import IndexCache
from blockx_worker.model.fields import shorten
from blockx_worker.ports import BlockNotFound, BlockStoreError, TableNotFound

__all__ = ["FolderBlockStore"]

BLOCKS_TABLE = "blocks"
SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_FILE_CHANGES = 3


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
            self._check_known(found, first, last, interrupted)
            read = self._read_per_block if found.per_block else self._read_single
            yield from read(found, first, last, interrupted)
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

    def _check_known(self, table: _Table, first: int, last: int, interrupted: Callable[[], bool]) -> None:
        """Each block of the range is known to the store, so that no rows means that there are none."""
        if any(t.name == BLOCKS_TABLE for t in self._tables()):
            known = self._known_blocks(self._find(BLOCKS_TABLE), interrupted)
            self._require(known, first, last, f'table "{BLOCKS_TABLE}"')
        elif table.per_block:
            known = self._known_blocks(table, interrupted)
            self._require(known, first, last, f"{table.path} (a block without rows needs an empty file)")
        else:
            bounds = self._indexes.get(table.path, table.name, interrupted).bounds
            if bounds is None or first < bounds[0] or last > bounds[1]:
                holds = "no rows" if bounds is None else f"blocks {bounds[0]} to {bounds[1]}"
                raise BlockNotFound(f"blocks {first} to {last} are not all there: {table.path} holds {holds}")

    def _known_blocks(self, table: _Table, interrupted: Callable[[], bool]) -> AbstractSet[int]:
        if not table.per_block:
            return self._indexes.get(table.path, table.name, interrupted).spans.keys()
        stems = {path.name.split(".", 1)[0] for path in table.path.iterdir() if path.name.endswith(SUFFIXES)}
        return {int(stem) for stem in stems if stem.isdecimal() and stem.isascii() and len(stem) < 20}

    def _require(self, known: AbstractSet[int], first: int, last: int, place: str) -> None:
        missing = list(filterfalse(known.__contains__, range(first, last + 1)))
        if missing:
            holds = f"it holds {min(known)} to {max(known)}" if known else "it holds none"
            more = f" (and {len(missing) - 1} more of the range)" if len(missing) > 1 else ""
            raise BlockNotFound(f"block {missing[0]}{more} is not in {place}: {holds}")

    # --- reading ----------------------------------------------------------------------------------------------

    def _read_per_block(
        self, table: _Table, first: int, last: int, interrupted: Callable[[], bool]
    ) -> Iterator[tuple[int, list[bytes]]]:
        for block in range(first, last + 1):
            check_interrupted(interrupted)
            path = self._block_file(table, block)
            if path is None:
                continue
            index = build_index(path, table.name, interrupted)
            strangers = [other for other in index.spans if other != block]
            if strangers:
                raise BlockStoreError(
                    f"{path}: holds a row of block {strangers[0]}; expected only block {block}"
                )
            if index.spans:
                with open_lines(path) as file:
                    yield block, read_span(file, index.spans[block])

    def _block_file(self, table: _Table, block: int) -> Path | None:
        paths = [path for suffix in SUFFIXES if (path := table.path / f"{block}{suffix}").is_file()]
        if len(paths) > 1:
            raise BlockStoreError(f"block {block} is there twice: {paths[0]} and {paths[1].name}; remove one")
        return paths[0] if paths else None

    def _read_single(
        self, table: _Table, first: int, last: int, interrupted: Callable[[], bool]
    ) -> Iterator[tuple[int, list[bytes]]]:
        for _ in range(MAX_FILE_CHANGES):
            index = self._indexes.get(table.path, table.name, interrupted)
            with open_lines(table.path) as file:
                if file_signature(os.fstat(file.fileno())) == index.signature:
                    yield from _read_blocks(file, index, first, last, interrupted)
                    return
        raise BlockStoreError(
            f"{table.path} keeps changing while it is read: replace it by renaming a finished file"
        )


def _read_blocks(
    file: BufferedIOBase, index: BlockIndex, first: int, last: int, interrupted: Callable[[], bool]
) -> Iterator[tuple[int, list[bytes]]]:
    blocks = list(filter(index.spans.__contains__, range(first, last + 1)))
    spans = [(span, block) for block in blocks for span in index.spans[block]]
    if isinstance(file, gzip.GzipFile) and spans != sorted(spans):
        yield from _read_scattered(file, sorted(spans), blocks, interrupted)
        return
    for block in blocks:
        check_interrupted(interrupted)
        yield block, read_span(file, index.spans[block])


def _read_scattered(
    file: BufferedIOBase,
    spans: list[tuple[tuple[int, int], int]],
    blocks: list[int],
    interrupted: Callable[[], bool],
) -> Iterator[tuple[int, list[bytes]]]:
    """Read forwards only, since going back in a gzipped file means starting anew."""
    rows: dict[int, list[bytes]] = {block: [] for block in blocks}
    for span, block in spans:
        check_interrupted(interrupted)
        rows[block].extend(read_span(file, [span]))
    yield from rows.items()
