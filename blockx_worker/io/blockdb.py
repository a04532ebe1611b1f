"""The back end over a block store: rows of a table at a block, or in a range of blocks.

``rows`` takes ``{"table", "block"}`` or ``{"table", "from", "to"}`` (inclusive) and answers a JSON array of the rows, in
order of block and line, each as the text in which the store holds it. Above a size the array travels as raw bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from blockx_worker.io.errors import failed, unknown_op
from blockx_worker.io.service import Ready
from blockx_worker.model.errors import IoErrorKind
from blockx_worker.model.fields import FieldError, Fields, read_object
from blockx_worker.ports import (
    BlockNotFound,
    BlockStore,
    BlockStoreError,
    IoAnswer,
    TableNotFound,
    Threads,
)

__all__ = ["BlockDbBackend", "BlockDbLimits"]

OPERATIONS = ("rows",)
FIELDS = ("table", "block", "from", "to")


@attrs.frozen(kw_only=True)
class BlockDbLimits:
    """Blocks in one request, bytes of one answer, and the size above which an answer travels as raw bytes."""

    max_blocks: int
    max_answer_bytes: int
    sidecar_bytes: int


@attrs.frozen
class _Range:
    table: str
    first: int
    last: int


class _TooLarge(Exception):
    """The rows read so far are more than an answer may have."""


class BlockDbBackend(Ready):
    """Rows of one store, read in threads."""

    def __init__(self, name: str, store: BlockStore, threads: Threads, limits: BlockDbLimits) -> None:
        self.name = name
        self._store = store
        self._threads = threads
        self._limits = limits

    async def request(self, op: str, request: bytes) -> IoAnswer:
        """The rows, or an error with the store's own sentence."""
        if op not in OPERATIONS:
            return unknown_op(self.name, op, OPERATIONS)
        try:
            wanted = self._read(request)
        except FieldError as error:
            return failed(IoErrorKind.IO_BAD_REQUEST, str(error))
        stop = threading.Event()
        try:
            rows = await self._threads.run(self._collect, wanted, stop.is_set, interrupt=stop.set)
        except BlockStoreError as error:
            return failed(_kind(error), str(error))
        except _TooLarge:
            return self._too_large(wanted)
        return IoAnswer(sidecar=rows) if len(rows) > self._limits.sidecar_bytes else IoAnswer(result=rows)

    def cacheable(self, op: str) -> bool:
        """Blocks do not change under a running task."""
        return op in OPERATIONS

    def _read(self, request: bytes) -> _Range:
        fields = read_object(self.name, request, FIELDS)
        table = fields.text("table", "the name of a table")
        first, last = _read_range(fields)
        if first > last:
            raise fields.error("to", f"expected at least {first} (from), got {last}")
        if last - first >= self._limits.max_blocks:
            count, most = last - first + 1, self._limits.max_blocks
            raise fields.error("to", f"{count} blocks are more than the {most} of one request (max_blocks)")
        return _Range(table, first, last)

    def _collect(self, wanted: _Range, interrupted: Callable[[], bool]) -> bytes:
        rows: list[bytes] = []
        size = 0
        for _, of_block in self._store.read_blocks(wanted.table, wanted.first, wanted.last, interrupted):
            size += sum(map(len, of_block)) + len(of_block)
            if size > self._limits.max_answer_bytes:
                raise _TooLarge
            rows.extend(of_block)
        return b"[%b]" % b",".join(rows)

    def _too_large(self, wanted: _Range) -> IoAnswer:
        message = (
            f"{self.name} rows: the rows of table {wanted.table} from block {wanted.first} to {wanted.last} have more "
            f"than {self._limits.max_answer_bytes} bytes (io.max_answer_bytes); ask for fewer blocks at a time"
        )
        return failed(IoErrorKind.IO_ANSWER_TOO_LARGE, message)


def _kind(error: BlockStoreError) -> IoErrorKind:
    match error:
        case TableNotFound():
            return IoErrorKind.TABLE_NOT_FOUND
        case BlockNotFound():
            return IoErrorKind.BLOCK_NOT_FOUND
        case _:
            return IoErrorKind.STORE_ERROR


def _read_range(fields: Fields) -> tuple[int, int]:
    if not fields.has("block"):
        return fields.integer("from", 0), fields.integer("to", 0)
    for key in ("from", "to"):
        if fields.has(key):
            raise fields.error(key, "cannot stand beside block; give either block, or from and to")
    block = fields.integer("block", 0)
    return block, block
