"""Function code: from sources by digest to callables.

Each digest becomes one module under a private name in ``sys.modules``, so that two versions live side by side and
dataclasses and pickling find their module by name. Its source goes to ``linecache``, so that stacks show it.
What failed to load is remembered like what loaded: the same sentence for every later call.

Import runs user code; whoever calls `Loader.load` sees to it that nothing interrupts it, as a module that was
interrupted half-way poisons whatever imported it.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any, Final, TypeAlias

from blockx_executor.failure import MODULE_PREFIX, Failure, fill_report
from blockx_executor.wire.messages import FunctionCodeResult

__all__ = ["Entry", "LoadedCode", "Loader"]

Entry: TypeAlias = Callable[..., Any] | Failure
"""What an entry selector leads to: something to call, or why not."""

_MAX_NAMES_SHOWN: Final = 12


class LoadedCode:
    """One digest: its module, or why there is none, and the entries that were asked for."""

    def __init__(self, filename: str, module: types.ModuleType | None, failure: Failure | None) -> None:
        self.filename = filename
        self.entries: dict[str, Entry] = {}
        self._module = module
        self._failure = failure

    def entry(self, selector: str) -> Entry:
        """The entry that ``selector`` names, found once."""
        entry = self.entries[selector] = self._failure or self._resolve(selector)
        return entry

    def forget(self) -> None:
        """Take the module out of the interpreter's tables; running calls keep what they hold."""
        linecache.cache.pop(self.filename, None)
        if self._module is not None:
            sys.modules.pop(self._module.__name__, None)

    def _resolve(self, selector: str) -> Entry:
        found: Any = self._module
        for part in selector.split("."):
            try:
                found = getattr(found, part)
            except Exception:  # noqa: BLE001 - a module's or a class's own __getattr__ may raise anything
                return self._missing(selector)
        if not callable(found):
            return Failure(
                "FUNCTION_NOT_FOUND",
                f"{selector!r} in {self.filename} is a {type(found).__name__}, not a function.",
            )
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            return Failure(
                "USER_ERROR",
                f"{selector!r} in {self.filename} is an async def; functions must be plain def. "
                "Use sdk.sleep() to wait while other calls run.",
            )
        return found  # type: ignore[no-any-return]  # callable() does not narrow Any

    def _missing(self, selector: str) -> Failure:
        names = [
            name
            for name, value in vars(self._module).items()
            if callable(value)
            and getattr(value, "__module__", None) == self._module_name
            and not name.startswith("_")
        ]
        known = f"it defines {', '.join(names[:_MAX_NAMES_SHOWN])}" if names else "it defines no function"
        return Failure("FUNCTION_NOT_FOUND", f"There is no {selector!r} in {self.filename}; {known}.")

    @property
    def _module_name(self) -> str:
        return self._module.__name__ if self._module is not None else ""


class Loader:
    """The loaded digests, the least recently used one first."""

    def __init__(self, capacity: int = 64) -> None:
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

    def load(self, digest: str, function_id: str, in_use: Container[str]) -> LoadedCode:
        """Compile and import the offered source of ``digest``; never raises. ``in_use`` digests are not evicted."""
        source = self._sources.pop(digest)
        code = _load(source, digest, function_id)
        self._loaded[digest] = code
        self._evict(in_use)
        return code

    def _evict(self, in_use: Container[str]) -> None:
        surplus = len(self._loaded) - self._capacity
        for digest in [digest for digest in self._loaded if digest not in in_use][: max(0, surplus)]:
            self._loaded.pop(digest).forget()


def _load(source: FunctionCodeResult, digest: str, function_id: str) -> LoadedCode:
    name = _free_name(MODULE_PREFIX + re.sub(r"\W", "_", digest.rpartition(":")[2])[:12])
    filename = f"{source.main} [{name.removeprefix(MODULE_PREFIX)}]"
    text = source.files.get(source.main)
    if text is None or len(source.files) != 1:
        names = ", ".join(source.files) or "none"
        return LoadedCode(
            filename,
            None,
            Failure(
                "IMPORT_ERROR",
                f"The code of {function_id} must be a single module named {source.main!r}; its files are: {names}.",
            ),
        )
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    failure = _import(module, text, filename, function_id)
    return LoadedCode(filename, None if failure else module, failure)


def _free_name(name: str) -> str:
    """``name``, or with a number when another digest that begins alike has it."""
    free, number = name, 2
    while free in sys.modules:
        free, number = f"{name}_{number}", number + 1
    return free


def _import(module: types.ModuleType, text: str, filename: str, function_id: str) -> Failure | None:
    try:
        code = compile(text, filename, "exec", dont_inherit=True)
    except BaseException as error:  # noqa: BLE001 - besides SyntaxError: ValueError, RecursionError, MemoryError
        return _syntax_failure(error, function_id, filename)
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - running user code is what this process is for
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit included
        sys.modules.pop(module.__name__, None)
        failure = Failure("IMPORT_ERROR", f"Importing the code of {function_id} failed with {_brief(error)}")
        fill_report(failure, error)
        failure.retryable = False
        return failure
    return None


def _syntax_failure(error: BaseException, function_id: str, filename: str) -> Failure:
    message = f"The code of {function_id} cannot be compiled: {error} in {filename}"
    if isinstance(error, SyntaxError):
        line = f"\n    {error.text.strip()}" if error.text else ""
        message = f"The code of {function_id} cannot be compiled: {error.msg} in {filename}, line {error.lineno}.{line}"
    failure = Failure("SYNTAX_ERROR", message)
    fill_report(failure, error)
    return failure


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its __str__ is user code
        return type(error).__name__
