"""Indexes of the tables in single files, kept while their files stay as they are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blockx_worker.io.block_index import BlockIndex, build_index, check_interrupted, file_signature

__all__ = ["IndexCache"]

MAX_CACHED_INDEXES = 64
LOCK_POLL_S = 0.05


class IndexCache:
    """The most recently used indexes; may be used by several threads. Each file is read by one of them at a time."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[Path, BlockIndex] = OrderedDict()
        self._building: dict[Path, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, path: Path, table: str, interrupted: Callable[[], bool]) -> BlockIndex:
        """The index of the file as it is now; errors as `build_index`."""
        with self._alone(path, interrupted):
            with self._guard:
                index = self._indexes.get(path)
            if index is None or index.signature != file_signature(path.stat()):
                index = build_index(path, table, interrupted)
            self._keep(path, index)
            return index

    def _keep(self, path: Path, index: BlockIndex) -> None:
        with self._guard:
            self._indexes[path] = index
            self._indexes.move_to_end(path)
            if len(self._indexes) > MAX_CACHED_INDEXES:
                self._indexes.popitem(last=False)

    @contextmanager
    def _alone(self, path: Path, interrupted: Callable[[], bool]) -> Iterator[None]:
        """Wait for another thread that indexes the same file, but not longer than anybody wants the result."""
        with self._guard:
            lock = self._building.setdefault(path, threading.Lock())
        while not lock.acquire(timeout=LOCK_POLL_S):
            check_interrupted(interrupted)
        try:
            yield
        finally:
            lock.release()
