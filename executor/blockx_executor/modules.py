"""Imports of function code: files of one digest as modules, found by each other and by nobody else.

Each digest is a `SourceTree` under a private root package. A relative import (``from .util import x``) arrives at the
finder under its private name by itself. An absolute one (``import chain.util``) is made private in ``__import__``, which
knows who imports: only code of the tree itself sees the tree, and sees nothing of another version.

``__import__`` is also where every import statement is masked, whoever makes it: a module that was interrupted half-way
poisons whatever imported it, the user's libraries included. Its price is a call in Python for each import statement
that runs, and it does not see ``importlib.import_module``, which is wrapped for its own sake.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import linecache
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from blockx_executor.mainthread import MainThread
from blockx_executor.names import MODULE_PREFIX

__all__ = ["FunctionFinder", "SourceTree", "dotted", "import_function", "install_imports"]

_INIT: Final = "/__init__"


class _Found(NamedTuple):
    """Where a module of a tree is: ``path`` None for a folder without ``__init__.py``."""

    path: str | None
    is_package: bool


class SourceTree:
    """The files of one digest, by path with ``/``, below the private package ``root``.

    ``modules`` leads from dotted name to path; ``tops`` are the names that its code may import as its own.
    """

    def __init__(self, root: str, files: Mapping[str, str]) -> None:
        self.root = root
        self.files = {path: text for path, text in files.items() if path.endswith(".py")}
        self.modules = {
            dotted(path): path for path in sorted(self.files, key=lambda path: path.endswith(f"{_INIT}.py"))
        }
        # A lone module has no siblings: what it imports under its own name, as json.py may import json, is another's.
        lone = len(self.files) == 1 and "/" not in next(iter(self.files))
        self.tops = frozenset() if lone else frozenset(name.partition(".")[0] for name in self.modules)

    def filename(self, path: str) -> str:
        """How tracebacks name the file: versions of one file differ in it."""
        return f"{path} [{self.root.removeprefix(MODULE_PREFIX)}]"

    def spec(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        """How to import ``fullname``, the root itself or a module below it; None when the tree has no such module."""
        found = self._find(fullname[len(self.root) + 1 :])
        if found is None:
            return None
        loader = _FileLoader(self, found.path)
        origin = None if found.path is None else self.filename(found.path)
        return importlib.machinery.ModuleSpec(
            fullname,
            loader,  # type: ignore[arg-type]  # typeshed asks for the ABC, which would have to be imported
            origin=origin,
            is_package=found.is_package,
        )

    def _find(self, name: str) -> _Found | None:
        path = self.modules.get(name)
        if path is not None:
            return _Found(path, path.endswith(f"{_INIT}.py"))
        if not name or any(module.startswith(f"{name}.") for module in self.modules):
            return _Found(None, is_package=True)
        return None

    def forget(self) -> None:
        """Take everything of it out of the interpreter's tables; running code keeps what it holds."""
        for path in self.files:
            linecache.cache.pop(self.filename(path), None)
        for name in [name for name in sys.modules if name == self.root or name.startswith(f"{self.root}.")]:
            del sys.modules[name]


class _FileLoader:
    """Runs one file of a tree as a module."""

    def __init__(self, tree: SourceTree, path: str | None) -> None:
        self._tree = tree
        self._path = path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:  # noqa: ARG002 - the protocol's signature
        """A plain module will do."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Compile and run the file; SyntaxError whenever it cannot be compiled."""
        if self._path is None:
            return
        text, filename = self._tree.files[self._path], self._tree.filename(self._path)
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        module.__file__ = filename
        try:
            code = compile(text, filename, "exec", dont_inherit=True)
        except SyntaxError as error:
            error.filename = error.filename or filename  # that of null bytes has none
            raise
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            raise SyntaxError(str(error) or type(error).__name__, (filename, None, None, None)) from None
        exec(code, module.__dict__)  # noqa: S102 - running user code is what this process is for

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002 - the protocol's signature
        """The text, for `inspect` and `linecache`."""
        return None if self._path is None else self._tree.files[self._path]


class FunctionFinder:
    """The finder of all private modules; ``trees`` by root."""

    def __init__(self) -> None:
        self.trees: dict[str, SourceTree] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's signature
        target: types.ModuleType | None = None,  # noqa: ARG002 - the protocol's signature
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not fullname.startswith(MODULE_PREFIX):
            return None
        tree = self.trees.get(fullname.partition(".")[0])
        return None if tree is None else tree.spec(fullname)


def install_imports(finder: FunctionFinder, main: MainThread) -> None:
    """Make ``finder`` and the masked imports those of this interpreter; done once."""
    sys.meta_path.insert(0, finder)
    builtins.__import__ = _masked(main, import_function(finder.trees, builtins.__import__))
    importlib.import_module = _masked(main, importlib.import_module)


def import_function(
    trees: Mapping[str, SourceTree], original: Callable[..., types.ModuleType]
) -> Callable[..., types.ModuleType]:
    """An ``__import__`` that finds in ``trees`` what their own code imports, and asks ``original`` for all else."""
    modules = sys.modules

    def find(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - the same
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        importer = globals.get("__name__") if level == 0 and globals is not None else None
        if type(importer) is not str or not importer.startswith(MODULE_PREFIX):
            return original(name, globals, locals, fromlist, level)
        root, top = importer.partition(".")[0], name.partition(".")[0]
        tree = trees.get(root)
        if tree is None or top not in tree.tops:
            return original(name, globals, locals, fromlist, level)
        module = original(f"{root}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else modules[f"{root}.{top}"]

    return find


def _masked(main: MainThread, function: Callable[..., types.ModuleType]) -> Callable[..., types.ModuleType]:
    get_ident = threading.get_ident

    def masked(*args: Any, **kwargs: Any) -> types.ModuleType:
        if main.masked or get_ident() != main.ident:
            return function(*args, **kwargs)
        main.masked = True
        try:
            return function(*args, **kwargs)
        finally:
            main.unmask()

    return masked


def dotted(path: str) -> str:
    """The name of the module in file ``path``: ``chain.erc20`` in ``chain/erc20.py``, ``chain`` in ``chain/__init__.py``."""
    return path.removesuffix(".py").removesuffix(_INIT).replace("/", ".")
