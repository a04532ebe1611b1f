"""Function code in processes that user code spawns with `multiprocessing`.

A spawned child starts an interpreter anew and unpickles what it is to run, functions by the name of their module. These
modules exist here only. But first of all it is given a copy of ``sys.path``, so the sources travel with that: the list
pickles as a call of `adopt`, which makes them importable in the child and returns a plain list.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blockx_executor.modules import FunctionFinder, SourceTree, import_function

__all__ = ["CodePath", "adopt"]


class CodePath(list[str]):
    """``sys.path`` with the code of ``finder``."""

    def __init__(self, entries: Iterable[str], finder: FunctionFinder) -> None:
        super().__init__(entries)
        self._finder = finder

    def copy(self) -> CodePath:
        """What `multiprocessing` takes for a child."""
        return CodePath(self, self._finder)

    __copy__ = copy

    def __reduce__(self) -> tuple[Callable[..., list[str]], tuple[Any, ...]]:
        sources = {root: tree.files for root, tree in self._finder.trees.copy().items()}
        return adopt, (list(self), sources)


def adopt(path: list[str], sources: Mapping[str, Mapping[str, str]]) -> list[str]:
    """In a spawned child: make ``sources`` (files by path, by root) importable; returns ``path``."""
    if not any(isinstance(finder, FunctionFinder) for finder in sys.meta_path):
        finder = FunctionFinder()
        finder.trees |= {root: SourceTree(root, files) for root, files in sources.items()}
        sys.meta_path.insert(0, finder)
        builtins.__import__ = import_function(finder.trees, builtins.__import__)
    return path
