"""What looks wrong in units of code that can be used: warnings, none of which keeps the code from running.

What they have in common is that Python takes them without a word, and that a call fails, or runs something else than its
author thinks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from blockx_worker.functions.inspect import Module, is_initializer, module_name
from blockx_worker.functions.units import CodeUnit
from blockx_worker.functions.view import FunctionProblem

__all__ = ["unit_warnings"]


def unit_warnings(units: Sequence[CodeUnit]) -> Iterator[FunctionProblem]:
    """The warnings about each unit, and about what one imports of another."""
    owners = {module_name(path): unit.root for unit in units for path in unit.code.files}
    for unit in units:
        yield from _own_name(unit)
        names = {module_name(module.path) for module in unit.modules}
        for module in unit.modules:
            yield from _functions(module, names)
            yield from _imports(unit, module, owners)


def _own_name(unit: CodeUnit) -> Iterator[FunctionProblem]:
    top, _, below = unit.root.partition("/")
    if (below or unit.is_package) and top in sys.stdlib_module_names:
        reason = (
            f"its folder has the name of the standard library's {top}, which this code then cannot import"
        )
        yield FunctionProblem(path=unit.code.main, reason=reason, warning=True)


def _functions(module: Module, names: set[str]) -> Iterator[FunctionProblem]:
    package = module_name(module.path)
    if any(part.startswith("_") for part in package.split(".")):
        return  # nothing of it is offered
    for finding in module.findings:
        yield _warning(module, finding.line, f"{finding.name} {finding.reason}", finding.name)
    for definition in module.definitions if is_initializer(module.path) else ():
        if f"{package}.{definition.name}" in names:
            reason = f"{definition.name} is hidden by the module of that name once that is imported; rename one of them"
            yield _warning(module, definition.line, reason, definition.name)


def _warning(module: Module, line: int, reason: str, function: str = "") -> FunctionProblem:
    function_id = f"{module_name(module.path)}.{function}" if function else ""
    return FunctionProblem(path=module.path, line=line, reason=reason, warning=True, function_id=function_id)


def _imports(unit: CodeUnit, module: Module, owners: Mapping[str, str]) -> Iterator[FunctionProblem]:
    for imported in module.imports:
        if imported.level:
            if not unit.is_package:
                reason = "a relative import works only in a package: a folder with an __init__.py"
                yield _warning(module, imported.line, reason)
            continue
        other = _owner(imported.name, owners)
        if other is not None and other != unit.root:
            reason = (
                f"imports {imported.name}, but {other} is another unit of code, which this one does not see; "
                "a folder with an __init__.py makes its modules one unit"
            )
            yield _warning(module, imported.line, reason)


def _owner(name: str, owners: Mapping[str, str]) -> str | None:
    """The unit that holds the module of that name, or the nearest one above it."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return None
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((owners[name] for name in names if name in owners), None)
