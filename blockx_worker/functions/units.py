"""From modules to units of code: what has one digest, and travels to an executor as a whole.

A folder with an ``__init__.py`` is a package: one unit of all the modules in it, however deep. A module outside packages
is a unit of its own, and a folder without ``__init__.py`` only a part of names. The names are those that Python would use
with the function folder on its path: ``transfer`` in ``chain/erc20.py`` is ``chain.erc20.transfer``, in
``chain/__init__.py`` it is ``chain.transfer``. `FunctionCode` tells how entries of a unit are selected.

Names that begin with ``_`` are not offered; in a package, such modules are part of the code. A module that an import would
never find is left out: ``chain.py`` beside the package ``chain``, and inside a package what lies in a folder without
``__init__.py`` beside a module of its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import attrs
import msgspec

from blockx_worker.functions.inspect import Module, ModuleError, code_digest, is_initializer, module_name
from blockx_worker.functions.view import FunctionDescription
from blockx_worker.ports import FunctionCode

__all__ = ["INITIALIZER", "CodeUnit", "group", "hidden", "make_unit"]

INITIALIZER = "__init__.py"

# A unit travels to the executors inside one frame of at most 16 MiB.
MAX_UNIT_JSON_BYTES = 15 * 1024 * 1024


@attrs.frozen(kw_only=True)
class CodeUnit:
    """One unit: its root (path of the module, or of the package's folder), code, functions and modules."""

    root: str
    code: FunctionCode
    functions: tuple[FunctionDescription, ...]
    modules: tuple[Module, ...]

    @property
    def is_package(self) -> bool:
        """Whether it has several files."""
        return not self.root.endswith(".py")


def group(paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths of each unit by its root, in order; the ``__init__.py`` of the function folder itself is no unit."""
    ordered = sorted(path for path in paths if path != INITIALIZER)
    packages = {str(PurePosixPath(path).parent) for path in ordered if is_initializer(path)}
    units: dict[str, list[str]] = {}
    for path in ordered:
        units.setdefault(_root(path, packages), []).append(path)
    return units


def hidden(paths: Collection[str]) -> dict[str, str]:
    """The paths that no import would find, each with the one that hides it."""
    known, found = frozenset(paths), {}
    for root, own in group(paths).items():
        for path in own:
            hiding = _hiding(path, root, known)
            if hiding is not None:
                found[path] = hiding
    return found


def make_unit(root: str, modules: Sequence[Module]) -> CodeUnit:
    """The unit of these modules, all of which an import would find; ModuleError if it is too large."""
    files = {module.path: module.source for module in modules}
    size = len(msgspec.json.encode(files))
    if size > MAX_UNIT_JSON_BYTES:
        raise ModuleError(
            f"its {size} bytes of code are more than the {MAX_UNIT_JSON_BYTES} that a package may have"
        )
    main = next(iter(files)) if root in files else f"{root}/{INITIALIZER}"
    code = FunctionCode(code_digest(files), files, main)
    return CodeUnit(
        root=root, code=code, functions=tuple(_functions(root, code, modules)), modules=tuple(modules)
    )


def _functions(root: str, code: FunctionCode, modules: Iterable[Module]) -> Iterator[FunctionDescription]:
    for module in modules:
        name = module_name(module.path)
        if any(part.startswith("_") for part in name.split(".")):
            continue
        for definition in module.definitions:
            yield FunctionDescription(
                function_id=f"{name}.{definition.name}",
                digest=code.digest,
                entry_selector=definition.name if root == module.path else f"{name}:{definition.name}",
                signature=definition.signature,
                doc=definition.doc,
                no_cache=definition.no_cache,
                path=module.path,
                line=definition.line,
            )


def _root(path: str, packages: Collection[str]) -> str:
    """The outermost package above the path, or the path itself."""
    parents = [str(parent) for parent in PurePosixPath(path).parents]
    return next((parent for parent in reversed(parents) if parent in packages), path)


def _hiding(path: str, root: str, paths: Collection[str]) -> str | None:
    initializer = f"{path.removesuffix('.py')}/{INITIALIZER}"
    if initializer in paths:
        return initializer
    inside = [str(parent) for parent in PurePosixPath(path).parents if str(parent).startswith(f"{root}/")]
    modules = (f"{folder}.py" for folder in inside if f"{folder}/{INITIALIZER}" not in paths)
    return next((module for module in modules if module in paths), None)
