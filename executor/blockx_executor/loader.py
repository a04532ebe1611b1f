"""Function code: from sources by digest to callables.

Each digest becomes modules under a private name in ``sys.modules`` (`modules`), so that two versions live side by side
and dataclasses and pickling find their module by name. What failed to load is remembered like what loaded: the same
sentence for every later call.

Modules are imported when an entry in them is asked for first. That runs user code; whoever calls `Loader.load` sees to it that nothing interrupts it, as a module that was
interrupted half-way poisons whatever imported it.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any, Final, TypeAlias

from blockx_executor.failure import Failure, fill_report
from blockx_executor.modules import FunctionFinder, SourceTree, dotted
from blockx_executor.names import private_root
from blockx_executor.wire.messages import FunctionCodeResult

__all__ = ["Entry", "LoadedCode", "Loader"]

Entry: TypeAlias = Callable[..., Any] | Failure
"""What an entry selector leads to: something to call, or why not."""

_MAX_NAMES_SHOWN: Final = 12


class LoadedCode:
    """One digest: the modules of it that were asked for, or why there are none, and the same of its entries."""

    def __init__(self, tree: SourceTree, main: str) -> None:
        self.tree = tree
        self.entries: dict[str, Entry] = {}
        self._main = main
        self._modules: dict[str, types.ModuleType | Failure] = {}

    def load(self, selector: str, function_id: str) -> Entry:
        """Find the entry ``selector``: ``name`` in the main module, or ``module:name``. Never raises."""
        module_name, separator, name = selector.rpartition(":")
        if not separator:
            module_name = dotted(self._main)
        module = self._modules.get(module_name)
        if module is None:
            module = self._modules[module_name] = self._import(module_name, function_id)
        entry = self.entries[selector] = module if isinstance(module, Failure) else _resolve(module, name)
        return entry

    def _import(self, module_name: str, function_id: str) -> types.ModuleType | Failure:
        if module_name not in self.tree.modules:
            known = ", ".join(self.tree.modules) or "none"
            text = f"The code of {function_id} has no module {module_name!r}; its modules are: {known}."
            return Failure("IMPORT_ERROR", text)
        try:
            return importlib.import_module(f"{self.tree.root}.{module_name}")
        except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit included
            return _import_failure(error, function_id, self.tree)

    def function_id(self, function: object) -> str:
        """The id of ``function``, which must be one of this code; TypeError says why it has none."""
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        own = f"{self.tree.root}."
        if not isinstance(module, str) or not isinstance(name, str) or not module.startswith(own):
            raise TypeError(
                f"A {type(function).__name__} that is no function of this code cannot be called as a call of its own; "
                "give a function of your own code, or the id of one, such as 'package.module.name'."
            )
        if "<" in name:
            raise TypeError(
                f"{name} has no id, as it is not at the top level of its module; call it directly, or move it there."
            )
        return f"{module.removeprefix(own)}.{name}"


class Loader:
    """The loaded digests, the least recently used one first."""

    def __init__(self, finder: FunctionFinder, capacity: int = 64) -> None:
        self._finder = finder
        self._capacity = capacity
        self._loaded: OrderedDict[str, LoadedCode] = OrderedDict()
        self._sources: dict[str, FunctionCodeResult] = {}

    def get(self, digest: str) -> LoadedCode | None:
        """The code of ``digest``, if it is loaded."""
        code = self._loaded.get(digest)
        if code is not None:
            self._loaded.move_to_end(digest)
        return code

    def knows(self, digest: str) -> bool:
        """Whether ``digest`` need not be asked for: it is loaded, or its source is here."""
        return digest in self._loaded or digest in self._sources

    def offer(self, digest: str, source: FunctionCodeResult) -> None:
        """Keep ``source`` until the first call of ``digest`` loads it; at most ``capacity`` sources are kept."""
        self._sources[digest] = source
        if len(self._sources) > self._capacity:
            del self._sources[next(iter(self._sources))]

    def load(self, digest: str, selector: str, function_id: str, in_use: Container[str]) -> Entry:
        """Import the entry ``selector`` of a known ``digest``; never raises. ``in_use`` digests are not evicted."""
        code = self._loaded.get(digest)
        if code is None:
            source = self._sources.pop(digest)
            tree = SourceTree(self._free_root(private_root(digest)), source.files)
            code = self._loaded[digest] = LoadedCode(tree, source.main)
            self._finder.trees[tree.root] = tree
            self._evict(in_use)
        return code.load(selector, function_id)

    def _free_root(self, root: str) -> str:
        """``root``, or with a number when another digest that begins alike has it."""
        free, number = root, 2
        while free in self._finder.trees:
            free, number = f"{root}_{number}", number + 1
        return free

    def _evict(self, in_use: Container[str]) -> None:
        surplus = len(self._loaded) - self._capacity
        for digest in [digest for digest in self._loaded if digest not in in_use][: max(0, surplus)]:
            tree = self._loaded.pop(digest).tree
            del self._finder.trees[tree.root]
            tree.forget()


def _resolve(module: types.ModuleType, selector: str) -> Entry:
    found: Any = module
    for part in selector.split("."):
        try:
            found = getattr(found, part)
        except Exception:  # noqa: BLE001 - a module's or a class's own __getattr__ may raise anything
            return _missing(module, selector)
    if not callable(found):
        kind = type(found).__name__
        return Failure(
            "FUNCTION_NOT_FOUND", f"{selector!r} in {module.__file__} is a {kind}, not a function."
        )
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        return Failure(
            "USER_ERROR",
            f"{selector!r} in {module.__file__} is an async def; functions must be plain def. "
            "Use sdk.sleep() to wait while other calls run.",
        )
    return found  # type: ignore[no-any-return]  # callable() does not narrow Any


def _missing(module: types.ModuleType, selector: str) -> Failure:
    names = [
        name
        for name, value in vars(module).items()
        if callable(value)
        and getattr(value, "__module__", None) == module.__name__
        and not name.startswith("_")
    ]
    known = f"it defines {', '.join(names[:_MAX_NAMES_SHOWN])}" if names else "it defines no function"
    return Failure("FUNCTION_NOT_FOUND", f"There is no {selector!r} in {module.__file__}; {known}.")


def _import_failure(error: BaseException, function_id: str, tree: SourceTree) -> Failure:
    if isinstance(error, SyntaxError) and error.filename in {tree.filename(path) for path in tree.files}:
        place = error.filename if error.lineno is None else f"{error.filename}, line {error.lineno}"
        line = f"\n    {error.text.strip()}" if error.text else ""
        text = f"The code of {function_id} cannot be compiled: {error.msg} in {place}.{line}"
        failure = Failure("SYNTAX_ERROR", text)
    else:
        failure = Failure("IMPORT_ERROR", f"Importing the code of {function_id} failed with {_brief(error)}")
    fill_report(failure, error)
    failure.retryable = False
    return failure


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its __str__ is user code
        return type(error).__name__
