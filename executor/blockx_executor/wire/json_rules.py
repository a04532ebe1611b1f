"""How values of user code become JSON: exactly, or not at all. The way back is in `json_reading`.

JSON as such would lose things silently: NaN becomes null, a set gets some order, the keys 1 and "1" fall together.
Here each of them fails, with a sentence that names the place (``$.rows[3].value``) and says what to return instead.

* ints keep every digit, up to `MAX_INT_DIGITS`; they are never a float in between
* bytes become ``0x…``; Decimal a string; datetime, date and time their RFC 3339 text (a naive datetime has no offset)
* tuples are arrays; dict keys may be str, int or bytes and must stay distinct; numpy scalars are numbers
* everything else fails: sets, objects, enums, dataclasses, generators, lone surrogates, cycles, deep nesting

The walk comes first because the encoder would not notice; the encoder then sees plain values only.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from blockx_executor.wire.framing import MAX_FRAME_BYTES

__all__ = [
    "MAX_INT_DIGITS",
    "MAX_JSON_DEPTH",
    "MAX_OUTPUT_BYTES",
    "OutputNotJson",
    "OutputTooLarge",
    "encode_output",
    "encode_request",
    "plain_value",
]

MAX_INT_DIGITS: Final = 4300
MAX_JSON_DEPTH: Final = 256
MAX_OUTPUT_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""What still fits one frame together with the rest of its message."""

_INT_LIMIT: Final = 10**MAX_INT_DIGITS
_I64: Final = 2**63 - 1
_SHOWN_PATH_CHARS: Final = 200

_Segment: TypeAlias = int | str


class OutputNotJson(ValueError):
    """JSON cannot hold the returned value."""


class OutputTooLarge(ValueError):
    """The returned value does not fit a frame."""


class _Bad(Exception):
    """Why a value cannot be written; ``trail`` grows from the inside out: the step taken and the container."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[tuple[_Segment, object]] = []


_encode = msgspec.json.Encoder().encode


def encode_output(value: Any, max_bytes: int = MAX_OUTPUT_BYTES) -> bytes:
    """The JSON text of a returned ``value``; `OutputNotJson` or `OutputTooLarge` say why there is none."""
    try:
        encoded = _encode(_plain(value, 0))
    except _Bad as bad:
        raise OutputNotJson(_explain(bad, "The returned value")) from None
    except RecursionError:
        raise OutputNotJson(f"The returned value is nested more than {MAX_JSON_DEPTH} levels deep.") from None
    if len(encoded) > max_bytes:
        raise OutputTooLarge(
            f"The returned value has {len(encoded):,} bytes as JSON; a call may return at most {max_bytes:,} bytes. "
            "Return less, or split the work over more calls."
        )
    return encoded


def encode_request(value: Any, subject: str, max_bytes: int = MAX_OUTPUT_BYTES) -> bytes:
    """The JSON text of what user code sends away; ValueError, beginning with ``subject``, says why there is none."""
    encoded = _encode(plain_value(value, subject))
    if len(encoded) > max_bytes:
        raise ValueError(
            f"{subject}: {len(encoded):,} bytes as JSON; at most {max_bytes:,} bytes can be sent."
        )
    return encoded


def plain_value(value: Any, subject: str) -> Any:
    """``value`` in the types that JSON holds exactly; ValueError, beginning with ``subject``, says why there is none."""
    try:
        return _plain(value, 0)
    except _Bad as bad:
        raise ValueError(_explain(bad, subject)) from None
    except RecursionError:
        raise ValueError(f"{subject}: nested more than {MAX_JSON_DEPTH} levels deep.") from None


def _plain(value: Any, depth: int) -> Any:  # noqa: PLR0911 - the hot path asks for one type after the other
    """``value`` in the types that the encoder writes exactly; raises `_Bad`."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int:
        return value if -_I64 <= value <= _I64 else _big_int(value)
    if value is None or kind is bool:
        return value
    if kind is float:
        return value if math.isfinite(value) else _not_finite(value)
    if kind is dict:
        return _object(value, depth + 1)
    if kind is list or kind is tuple:
        return _array(value, depth + 1)
    return _uncommon(value, depth)


def _array(value: Iterable[Any], depth: int) -> list[Any]:
    if depth > MAX_JSON_DEPTH:
        raise _Bad(f"nested more than {MAX_JSON_DEPTH} levels deep")
    items: list[Any] = []
    add = items.append
    try:
        for item in value:
            # The commonest case without a call: it halves the cost of a row.
            add(item if type(item) is str and item.isascii() else _plain(item, depth))
    except _Bad as bad:
        bad.trail.append((len(items), value))
        raise
    return items


def _object(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if depth > MAX_JSON_DEPTH:
        raise _Bad(f"nested more than {MAX_JSON_DEPTH} levels deep")
    members: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str and key.isascii() else _key(key)
        if type(item) is str and item.isascii():
            members[name] = item
            continue
        try:
            members[name] = _plain(item, depth)
        except _Bad as bad:
            bad.trail.append((name, value))
            raise
    if len(members) != len(value):
        _colliding(value)
    return members


def _key(key: Any) -> str:
    try:
        name = (
            _plain(key, 0) if not isinstance(key, (bool, float, decimal.Decimal, dt.date, dt.time)) else None
        )
    except _Bad as bad:
        raise _Bad(f"a key cannot be written: {bad.reason}") from None
    if isinstance(name, str):
        return name
    if type(name) is int:
        return str(name)
    raise _Bad(f"the key {_shown(key)} is of type {type(key).__name__}; keys must be str, int or bytes")


def _colliding(value: dict[Any, Any]) -> NoReturn:
    seen: dict[str, Any] = {}
    for key in value:
        name = _key(key)
        if name in seen:
            raise _Bad(
                f"the keys {_shown(seen[name])} and {_shown(key)} would both be written as {_shown(name)}"
            )
        seen[name] = key
    raise _Bad("it changed while it was being written")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise _Bad(f"the string has a lone surrogate (U+{code:04X}) at position {error.start}") from None
    return value


def _big_int(value: int) -> int:
    if abs(value) >= _INT_LIMIT:
        raise _Bad(f"the int has more than {MAX_INT_DIGITS} digits; return it as bytes or as a hex string")
    return value


def _not_finite(value: float) -> NoReturn:
    raise _Bad(f"{value} is not a JSON number; return None or a string instead")


def _uncommon(value: Any, depth: int) -> Any:
    """Values of all types but the plain ones, subclasses included; an Enum first, as it may also be an int or str."""
    if isinstance(value, enum.Enum):
        raise _Bad(f"{_shown(value)} is an Enum member; return its .value")
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    if isinstance(value, dict):
        return _object(value, depth + 1)
    if isinstance(value, (list, tuple)):
        return _array(value, depth + 1)
    return _scalar_of_numpy(value)


def _hex(value: bytes | bytearray | memoryview) -> str:
    return "0x" + value.hex()


def _decimal(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise _Bad(f"Decimal {value} is not a number that JSON can hold")
    return str(value)


def _datetime(value: dt.datetime) -> str:
    offset = value.utcoffset()
    if offset is not None and offset % dt.timedelta(minutes=1):
        value = value.astimezone(dt.UTC)  # RFC 3339 has no seconds in an offset
    return _utc_as_z(value.isoformat())


def _time(value: dt.time) -> str:
    return _utc_as_z(value.isoformat())


def _utc_as_z(text: str) -> str:
    return text[:-6] + "Z" if text.endswith("+00:00") else text


# datetime before date: it is a subclass.
_CONVERSIONS: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...]] = (
    (str, lambda value: _text(str.__str__(value))),
    (int, lambda value: _plain(int(value), 0)),
    (float, lambda value: _plain(float(value), 0)),
    ((bytes, bytearray, memoryview), _hex),
    (decimal.Decimal, _decimal),
    (dt.datetime, _datetime),
    (dt.date, dt.date.isoformat),
    (dt.time, _time),
)


def _scalar_of_numpy(value: Any) -> Any:
    """A numpy scalar as the Python number that ``.item()`` gives; numpy itself is never imported."""
    kind = type(value)
    if getattr(value, "ndim", None) == 0 and hasattr(kind, "dtype") and callable(getattr(kind, "item", None)):
        item = value.item()
        if type(item) in (int, float, bool) and getattr(value.dtype, "kind", "") not in ("m", "M"):
            return _plain(item, 0)
    raise _Bad(f"a value of type {kind.__name__} cannot be written as JSON; {_advice(value)}")


def _advice(value: Any) -> str:  # noqa: PLR0911 - a list of cases
    kind = type(value)
    if isinstance(value, (set, frozenset)):
        return "a set has no order, return sorted(...) or list(...) of it"
    if isinstance(value, dt.timedelta):
        return "return its total_seconds()"
    if hasattr(kind, "__await__"):
        return "functions must be plain def, not async def"
    if (
        hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__attrs_attrs__")
        or hasattr(kind, "__struct_fields__")
    ):
        return "return a dict of its fields, for a dataclass dataclasses.asdict(...)"
    if callable(getattr(kind, "tolist", None)):
        return "return its tolist()"
    if hasattr(kind, "__next__") or hasattr(kind, "__iter__"):
        return "return a list of its items"
    return "return a dict, list, str, number, bool or None"


def _explain(bad: _Bad, subject: str) -> str:
    steps = bad.trail[::-1]
    seen: set[int] = set()
    for position, (_, container) in enumerate(steps):
        if id(container) in seen:
            path = _path(segment for segment, _ in steps[:position])
            return f"{subject} cannot be written as JSON: {path} contains itself."
        seen.add(id(container))
    path = _path(segment for segment, _ in steps)
    return f"{subject} cannot be written as JSON: at {path}: {bad.reason}."


def _path(segments: Iterable[_Segment]) -> str:
    text = "$" + "".join(map(_step, segments))
    return text if len(text) <= _SHOWN_PATH_CHARS else text[: _SHOWN_PATH_CHARS - 1] + "…"


def _step(segment: _Segment) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    return f".{segment}" if segment.isidentifier() else f"[{json.dumps(segment)}]"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"
