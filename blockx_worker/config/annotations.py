"""What all sections of the settings are made of: their base, and the annotations that say range, kind and meaning."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Meta

__all__ = ["DAY_MS", "GIB", "KIB", "MIB", "Section", "count", "ms", "path", "ratio", "size", "word"]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_MS = 86_400_000


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and a key it does not know is an error."""


def count(low: int, high: int, description: str, **extra: Any) -> Meta:
    """A number without a unit, ``low`` and ``high`` included."""
    return _number(low, high, description, **extra)


def ms(low: int, high: int, description: str, **extra: Any) -> Meta:
    """A duration in milliseconds, also read from texts such as ``5s``."""
    return _number(low, high, description, kind="ms", **extra)


def size(low: int, high: int, description: str, **extra: Any) -> Meta:
    """A number of bytes, also read from texts such as ``64MiB``."""
    return _number(low, high, description, kind="bytes", **extra)


def ratio(description: str) -> Meta:
    """A share from 0 to 1."""
    return Meta(ge=0.0, le=1.0, description=description, extra={"kind": "ratio"})


def word(description: str, **extra: Any) -> Meta:
    """Anything else; a ``kind`` in ``extra`` says how text is read."""
    return Meta(description=description, extra=extra)


def path(description: str, **extra: Any) -> Meta:
    """A path, made absolute when it is read."""
    return word(description, kind="path", **extra)


def _number(low: int, high: int, description: str, **extra: Any) -> Meta:
    return Meta(ge=low, le=high, description=description, extra=extra)
