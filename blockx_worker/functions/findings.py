"""What looks wrong in a module that compiles: things that Python takes, but that no call would be happy with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

import attrs

__all__ = ["Finding", "Import", "find", "find_imports", "public_functions"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Finding:
    """Something about the function ``name`` in a line of a module."""

    name: str
    line: int
    reason: str


@attrs.frozen
class Import:
    """An import: the dotted name as written, and for a relative one how many dots stand before it (else 0)."""

    name: str
    level: int
    line: int


def public_functions(tree: ast.Module) -> Iterator[_Function]:
    """Each ``def`` and ``async def`` of the module itself whose name does not begin with ``_``."""
    for node in tree.body:
        if isinstance(node, _Function) and not node.name.startswith("_"):
            yield node


def find(tree: ast.Module) -> Iterator[Finding]:
    """What looks wrong, in order of line."""
    found = [*_async(tree), *_generators(tree), *_hidden(tree)]
    yield from sorted(found, key=lambda finding: finding.line)


def find_imports(tree: ast.Module) -> Iterator[Import]:
    """All imports, also those inside functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, 0, node.lineno) for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield Import(module or "", level, node.lineno)
            case _:
                pass


def _async(tree: ast.Module) -> Iterator[Finding]:
    for node in public_functions(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            reason = "is an async def, which calls cannot run, so it is not offered: make it a plain def"
            yield Finding(node.name, node.lineno, reason)


def _generators(tree: ast.Module) -> Iterator[Finding]:
    for node in public_functions(tree):
        if isinstance(node, ast.FunctionDef) and _yields(node):
            reason = "is a generator function, and a generator is no JSON value: return a list"
            yield Finding(node.name, node.lineno, reason)


def _yields(function: ast.AST) -> bool:
    """Whether a ``yield`` belongs to this function itself, not to one inside it; expressions may nest deeply."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return False


def _hidden(tree: ast.Module) -> Iterator[Finding]:
    """A name that a later statement of the module binds to something else."""
    functions = {node.name: node for node in public_functions(tree)}
    for i, node in enumerate(tree.body):
        if isinstance(node, _Function) and node.name in functions and not _is_overload(node):
            later = next((other for other in tree.body[i + 1 :] if _rebinds(other, node.name)), None)
            if later is not None:
                reason = f"is hidden by line {later.lineno}, which gives its name to something else"
                yield Finding(node.name, node.lineno, reason)


def _is_overload(node: _Function) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == "overload" for decorator in node.decorator_list)


def _rebinds(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
            return bound == name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any((alias.asname or alias.name) == name for alias in names)
        case ast.Assign(targets=targets, value=value):
            return any(_is_name(target, name) for target in targets) and not _mentions(value, name)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return _is_name(target, name) and not _mentions(value, name)
        case _:
            return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions(value: ast.expr, name: str) -> bool:
    """``f = cached(f)`` is a decoration."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
