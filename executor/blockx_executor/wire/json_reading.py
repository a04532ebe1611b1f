"""How JSON becomes values for user code: exactly, or not at all. The way there is in `json_rules`.

The fast decoder keeps every digit of an int, but counts a minus sign as one; a negative int of full length gets a
second chance with the slow one, which in turn accepts NaN, infinities and lone surrogates, so what it read is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import msgspec

from blockx_executor.wire.json_rules import MAX_INT_DIGITS, MAX_JSON_DEPTH, plain_value

__all__ = ["ArgsInvalid", "decode_args", "decode_rows", "decode_value"]

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

_TOO_DEEP: Final = f"it is nested more than {MAX_JSON_DEPTH} levels deep"

_decode_array = msgspec.json.Decoder(list).decode
_any = msgspec.json.Decoder()


class ArgsInvalid(ValueError):
    """The arguments of a call are not a JSON array that Python can hold exactly."""


def decode_value(raw: bytes | msgspec.Raw) -> Any:
    """The value of a JSON text; ValueError says why there is none."""
    try:
        return _any.decode(raw)
    except msgspec.MsgspecError as error:
        if _is_long_int(error):
            return _decode_long_ints(bytes(raw))
        raise ValueError(f"it is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def decode_rows(raw: bytes) -> list[Any]:
    """The rows in ``raw``, a JSON array of them or one JSON object a line; ValueError says why there are none."""
    if raw.lstrip()[:1] == b"[":
        rows: list[Any] = decode_value(raw)
        return rows
    try:
        return _any.decode_lines(raw)
    except (msgspec.MsgspecError, RecursionError):
        return [_decode_line(number, line) for number, line in enumerate(raw.split(b"\n"), 1) if line.strip()]


def _decode_line(number: int, line: bytes) -> Any:
    try:
        return decode_value(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def decode_args(raw: bytes | msgspec.Raw) -> list[Any]:
    """The arguments of a call from their JSON array; `ArgsInvalid` says what is wrong with them."""
    try:
        args = _decode_array(raw)
    except msgspec.MsgspecError as error:
        args = _decode_args_again(bytes(raw), error)
    except RecursionError:
        raise _args_too_deep() from None
    if (
        len(memoryview(raw)) > MAX_JSON_DEPTH
        and _may_be_deep(bytes(raw))
        and _depth_exceeds(args, MAX_JSON_DEPTH)
    ):
        raise _args_too_deep()
    return args


def _decode_args_again(raw: bytes, error: msgspec.MsgspecError) -> list[Any]:
    if _is_long_int(error):
        try:
            args = _decode_long_ints(raw)
        except ValueError as reason:
            raise ArgsInvalid(f"The arguments cannot be read exactly: {reason}.") from None
        if isinstance(args, list):
            return args
    if isinstance(error, msgspec.ValidationError) and "Expected `array`" in str(error):
        raise ArgsInvalid(
            f"The arguments must be a JSON array such as [1, 2]; they are {_excerpt(raw)}."
        ) from None
    hint = (
        " An escape from \\ud800 to \\udfff must be one of a pair." if _SURROGATE_ESCAPE.search(raw) else ""
    )
    raise ArgsInvalid(f"The arguments are not valid JSON: {error}.{hint}") from None


def _is_long_int(error: msgspec.MsgspecError) -> bool:
    return "Integer value out of range" in str(error)


def _decode_long_ints(raw: bytes) -> Any:
    try:
        value = json.loads(raw, parse_constant=_reject_constant)
    except ValueError as error:
        too_long = f"an int has more than {MAX_INT_DIGITS} digits"
        raise ValueError(too_long if "int" in str(error) else str(error)) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return plain_value(value, "the value")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _may_be_deep(text: bytes) -> bool:
    """Whether there are brackets enough to nest too deep; spares most texts the walk."""
    return text.count(b"[") + text.count(b"{") > MAX_JSON_DEPTH


def _depth_exceeds(value: Any, levels: int) -> bool:
    children: Iterable[Any]
    if type(value) is list:
        children = value
    elif type(value) is dict:
        children = value.values()
    else:
        return False
    return levels == 0 or any(
        _depth_exceeds(child, levels - 1) for child in children if type(child) in (list, dict)
    )


def _args_too_deep() -> ArgsInvalid:
    return ArgsInvalid(f"The arguments are nested more than {MAX_JSON_DEPTH} levels deep.")


def _excerpt(raw: bytes) -> str:
    text = raw[:60].decode("utf-8", "replace")
    return text if len(raw) <= 60 else text + "…"
