"""Reading the JSON objects that people send as configurations, with errors that a person can act on.

Each error names the field by its path, what is accepted, and the value that came, shortened:
``functionCallConfig.block.from: expected an integer ≥ 0, got "abc"``. Fields are decoded one by one from their raw text, so
that a large one is never decoded just to look at a small one. An optional field that is null counts as absent.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["MAX_INT64", "MAX_SHOWN_CHARS", "FieldError", "Fields", "read_object", "shorten"]

MAX_INT64 = 2**63 - 1
MAX_SHOWN_CHARS = 80

_FieldMap = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ItemList = msgspec.json.Decoder(list[msgspec.Raw])


class FieldError(ValueError):
    """A field that is missing, unknown or not as it should be; the text is one sentence that begins with its path."""


def shorten(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """The text itself, or its beginning and how long it is."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def read_object(path: str, text: bytes | msgspec.Raw, known: Sequence[str]) -> Fields:
    """Read a JSON object whose keys are all among ``known``; empty text counts as ``{}``."""
    try:
        values = _FieldMap.decode(text or b"{}")
    except msgspec.ValidationError:
        raise FieldError(f"{path}: expected a JSON object, got {_show(bytes(text))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FieldError(f"{path}: not valid JSON: {error}") from None
    except RecursionError:
        raise FieldError(f"{path}: not valid JSON: nested too deeply") from None
    for key in values:
        if key not in known:
            raise FieldError(f"{path}.{shorten(key)}: unknown field{_hint(key, known)}")
    return Fields(path, values)


class Fields:
    """The fields of one object; each reader returns the value or raises FieldError."""

    def __init__(self, path: str, values: Mapping[str, msgspec.Raw]) -> None:
        self.path = path
        self._values = {key: raw for key, raw in values.items() if bytes(memoryview(raw)[:4]) != b"null"}

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return key in self._values

    def error(self, key: str, problem: str) -> FieldError:
        """An error of this field: ``problem`` follows its path."""
        return FieldError(f"{self.path}.{key}: {problem}")

    def wrong(self, key: str, expected: str) -> FieldError:
        """An error that says what is expected and what came."""
        return self.error(key, f"expected {expected}, got {_show(bytes(self._values[key]))}")

    def raw(self, key: str, expected: str) -> msgspec.Raw:
        """The JSON text of a required field."""
        if key not in self._values:
            raise self.error(key, f"is missing: expected {expected}")
        return self._values[key]

    def text(self, key: str, expected: str = "a non-empty string") -> str:
        """A required string that is not empty."""
        value = self._value(key, expected)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, expected)
        return value

    def integer(self, key: str, minimum: int) -> int:
        """A required integer from ``minimum`` up to what 64 bits hold."""
        expected = f"an integer ≥ {minimum}"
        value = self._value(key, expected)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_INT64:
            raise self.wrong(key, expected)
        return value

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        """One of a few words."""
        if key not in self._values:
            return default
        expected = " or ".join(f'"{option}"' for option in options)
        value = self._value(key, expected)
        if value not in options:
            raise self.wrong(key, expected)
        return str(value)

    def names(self, key: str, expected: str) -> list[str]:
        """A required list of at least one string, none empty and none twice."""
        items = self._value(key, expected)
        if not isinstance(items, list) or not items:
            raise self.wrong(key, expected)
        seen: dict[str, int] = {}
        for index, item in enumerate(items):
            where = f"{key}[{index}]"
            if not isinstance(item, str) or not item:
                raise self.error(
                    where, f"expected a non-empty string, got {_show(msgspec.json.encode(item))}"
                )
            if item in seen:
                raise self.error(where, f'"{shorten(item)}" is named twice (also {key}[{seen[item]}])')
            seen[item] = index
        return items

    def raw_list(self, key: str, expected: str) -> list[msgspec.Raw]:
        """The elements of a required list as JSON text that points into the text of the whole configuration."""
        raw = self.raw(key, expected)
        try:
            return _ItemList.decode(raw)
        except msgspec.ValidationError:
            raise self.wrong(key, expected) from None

    def _value(self, key: str, expected: str) -> Any:
        raw = self.raw(key, expected)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise self.error(key, f"not readable: {error}") from None


def _show(text: bytes) -> str:
    shown = text[:MAX_SHOWN_CHARS].decode(errors="replace")
    return shown if len(text) <= MAX_SHOWN_CHARS else f"{shown}… ({len(text)} bytes)"


def _hint(key: str, known: Sequence[str]) -> str:
    if not known:
        return ": no fields are accepted here"
    close = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {close[0]}?" if close else f": accepted are {', '.join(known)}"
