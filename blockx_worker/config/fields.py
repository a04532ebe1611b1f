"""The settings as a flat table: one record for each field, read once from the annotations of `Settings`.

The loader, `blockx config` and the generated reference work on this table and know nothing of the sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import attrs
import msgspec
from msgspec import inspect

from blockx_worker.config.settings import Settings

__all__ = ["FIELDS", "MAPS", "SECTIONS", "Kind", "SettingField", "value_at"]

Kind: TypeAlias = Literal[
    "count",
    "ms",
    "bytes",
    "bool",
    "choice",
    "text",
    "path",
    "address",
    "addresses",
    "secret",
    "ratio",
    "list",
    "urls",
    "targets",
    "extensions",
]


@attrs.frozen(kw_only=True)
class SettingField:
    """One setting. ``low`` and ``high`` are inclusive, in the unit of the field; None = not limited."""

    path: str
    kind: Kind
    default: Any
    description: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    legacy_variable: str | None = None
    flag: str | None = None

    @property
    def variable(self) -> str:
        """Its name in the environment; the prefix of the names for `targets`; `extensions` has none."""
        return "BLOCKX_" + self.path.replace(".", "_").upper()


def value_at(settings: Settings, path: str) -> Any:
    """The value of the field at a dotted path."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _walk(struct: type[msgspec.Struct], prefix: str) -> Iterator[SettingField]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if isinstance(field.type, inspect.StructType):
            yield from _walk(field.type.cls, f"{prefix}{field.name}.")
        else:
            yield _field(prefix + field.name, field)


def _field(path: str, field: inspect.Field) -> SettingField:
    assert isinstance(field.type, inspect.Metadata), path
    extra = field.type.extra or {}
    schema = field.type.extra_json_schema or {}
    inner, optional = _without_none(field.type.type)
    return SettingField(
        path=path,
        kind=extra.get("kind") or _kind(inner),
        default=_default(field),
        description=schema["description"],
        low=inner.ge if isinstance(inner, inspect.IntType) else None,
        high=inner.le if isinstance(inner, inspect.IntType) else None,
        choices=tuple(str(v) for v in inner.values) if isinstance(inner, inspect.LiteralType) else (),
        optional=optional,
        legacy_variable=extra.get("env"),
        flag=extra.get("flag"),
    )


def _without_none(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    if not isinstance(kind, inspect.UnionType):
        return kind, False
    [inner] = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
    return inner, True


def _kind(kind: inspect.Type) -> Kind:
    if isinstance(kind, inspect.IntType):
        return "count"
    if isinstance(kind, inspect.BoolType):
        return "bool"
    if isinstance(kind, inspect.LiteralType):
        return "choice"
    return "list" if isinstance(kind, inspect.ListType) else "text"


def _default(field: inspect.Field) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _parents(path: str) -> Iterator[str]:
    """The sections around a field, the outermost first."""
    names = path.split(".")
    for depth in range(1, len(names)):
        yield ".".join(names[:depth])


FIELDS: dict[str, SettingField] = {f.path: f for f in _walk(Settings, "")}
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(p for path in FIELDS for p in _parents(path)))

# Fields that are tables of names chosen by whoever writes them.
MAPS: tuple[str, ...] = tuple(f.path for f in FIELDS.values() if f.kind in {"targets", "extensions"})
