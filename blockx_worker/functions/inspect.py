"""What a module defines, read from its syntax tree. The worker compiles user code to check it and never runs it.

A function is every public module-level ``def``; an ``async def`` is none, since nothing would await it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import attrs

from blockx_worker.functions.findings import Finding, Import, find, find_imports, public_functions

__all__ = [
    "Definition",
    "Module",
    "ModuleError",
    "code_digest",
    "is_initializer",
    "module_name",
    "read_module",
]

# A module travels to the executors inside one frame of at most 16 MiB.
MAX_MODULE_BYTES = 4 * 1024 * 1024


class ModuleError(Exception):
    """A module cannot be used: the reason, and the line where it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@attrs.frozen(kw_only=True)
class Definition:
    """One function as its module defines it."""

    name: str
    line: int
    signature: str
    doc: str
    no_cache: bool


@attrs.frozen(kw_only=True)
class Module:
    """One module: its path below the function folder, its source, its functions, and what looks wrong in it."""

    path: str
    source: str
    definitions: tuple[Definition, ...]
    findings: tuple[Finding, ...]
    imports: tuple[Import, ...]


def is_initializer(path: str) -> bool:
    """Whether the path is that of an ``__init__.py``."""
    return PurePosixPath(path).name == "__init__.py"


def module_name(path: str) -> str:
    """Dotted name of ``chain/erc20.py``, or of the package ``chain/__init__.py``; ModuleError if a part is not an identifier."""
    parts = PurePosixPath(path).with_suffix("").parts
    for part in parts:
        if not part.isidentifier():
            raise ModuleError(f"{part!r} is no Python identifier, so its functions have no id: rename it")
    return ".".join(parts[:-1] if is_initializer(path) else parts)


def code_digest(files: Mapping[str, str]) -> str:
    """SHA-256 (64 hex digits) of paths and source texts, the same on every machine and for every order."""
    digest = hashlib.sha256(b"blockx-code-1\n")
    for path in sorted(files):
        name, text = path.encode(), files[path].encode()
        digest.update(b"%d %d\n%b%b" % (len(name), len(text), name, text))
    return digest.hexdigest()


def read_module(path: str, content: bytes) -> Module:
    """Decode, compile and inspect one module; ModuleError says why it cannot be used."""
    if len(content) > MAX_MODULE_BYTES:
        raise ModuleError(f"{len(content)} bytes is more than the {MAX_MODULE_BYTES} that a module may have")
    module_name(path)
    source = _decode(content)
    tree = _compile(path, source)
    try:
        return Module(
            path=path,
            source=source,
            definitions=tuple(_definitions(tree)),
            findings=tuple(find(tree)),
            imports=tuple(find_imports(tree)),
        )
    except RecursionError:
        raise ModuleError("an expression in it nests too deeply to be looked at") from None


def _decode(content: bytes) -> str:
    try:
        source = importlib.util.decode_source(content)
        source.encode()
    except UnicodeEncodeError:
        raise ModuleError("its text holds a lone surrogate, which UTF-8 cannot carry") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ModuleError(f"not {error.encoding} text: byte 0x{content[error.start]:02x}", line) from None
    except (SyntaxError, LookupError) as error:
        raise ModuleError(f"its text cannot be decoded: {error}", 1) from None
    return source


def _compile(path: str, source: str) -> ast.Module:
    try:
        tree = ast.parse(source, path)
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ModuleError(f"{type(error).__name__}: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ModuleError(f"cannot be compiled: {type(error).__name__} {error}".rstrip()) from None
    return tree


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    """The last definition of each name counts, as it does at run time."""
    aliases = _no_cache_names(tree)
    last = {node.name: node for node in public_functions(tree)}
    for node in last.values():
        if isinstance(node, ast.FunctionDef):
            yield Definition(
                name=node.name,
                line=node.lineno,
                signature=_signature(node),
                doc=(ast.get_docstring(node) or "").strip().split("\n", 1)[0],
                no_cache=any(_decorator_name(d) in aliases for d in node.decorator_list),
            )


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def _no_cache_names(tree: ast.Module) -> set[str]:
    """Names under which the module knows the decorator ``no_cache``."""
    names = {"no_cache"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update(a.asname for a in node.names if a.name == "no_cache" and a.asname)
    return names


def _decorator_name(node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=called):
            return _decorator_name(called)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None
