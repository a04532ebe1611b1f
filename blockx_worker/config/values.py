"""From what people write to values: durations, sizes, switches, lists, addresses; and back for display.

A reader gets a value as TOML typed it, or a text from the environment or a flag, and raises ValueError with what is
accepted. Numbers without a unit count in the field's own unit (ms, bytes), so ``CALL_DEADLINE_MS=5000`` means what it
says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from blockx_worker.config.addresses import parse_address
from blockx_worker.config.fields import Kind, SettingField

__all__ = ["accepted", "format_duration", "format_size", "parse_duration", "parse_size", "read_value"]

DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE_NAMES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))? ?([A-Za-z]+)", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_SWITCHES = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def parse_duration(text: str) -> int:
    """Milliseconds of ``500ms``, ``5s``, ``1.5s``, ``10m``, ``1h`` or ``2d``; ValueError for anything else."""
    return _quantity(text, DURATION_UNITS)


def parse_size(text: str) -> int:
    """Bytes of ``100B``, ``64MiB``, ``1GiB`` or ``10MB``; ValueError for anything else."""
    return _quantity(text, SIZE_UNITS)


def format_duration(ms: int) -> str:
    """The shortest text that means exactly so many milliseconds."""
    if ms == 0:
        return "0s"
    unit, factor = max(((u, f) for u, f in DURATION_UNITS.items() if ms % f == 0), key=lambda pair: pair[1])
    return f"{ms // factor}{unit}"


def format_size(size: int) -> str:
    """The shortest text that means exactly so many bytes."""
    for unit, factor in _SIZE_NAMES:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


_ACCEPTED = {
    "bool": "true or false",
    "list": "a list of texts; in the environment separated by commas",
    "urls": "a list of URLs such as http://127.0.0.1:8545; in the environment separated by commas",
    "extensions": "a table: [extensions.NAME]",
    "targets": "a database URL: sqlite:///FILE or postgresql://USER@HOST/DATABASE",
    "address": "HOST:PORT",
    "addresses": "a list of HOST:PORT; in the environment separated by commas",
    "secret": "text",
    "ratio": "a number from 0 to 1 such as 0.05",
    "path": "a path",
    "text": "text",
}


def accepted(field: SettingField) -> str:
    """What a field accepts, for error messages and the reference."""
    low, high = field.low or 0, field.high or 0
    match field.kind:
        case "count":
            return f"an integer from {low} to {high}"
        case "ms":
            limits = f"{format_duration(low)} to {format_duration(high)}"
            return f"a duration from {limits} such as 500ms, 5s, 10m, 1h, or a number of milliseconds"
        case "bytes":
            limits = f"{format_size(low)} to {format_size(high)}"
            return f"a size from {limits} such as 512KiB, 64MiB, 1GiB, or a number of bytes"
        case "choice":
            return "one of: " + ", ".join(field.choices)
        case _:
            return _ACCEPTED[field.kind]


def read_value(field: SettingField, raw: object) -> Any:
    """The field's value; ValueError with one clause that says what is accepted."""
    return _READERS[field.kind](field, raw)


def _quantity(text: str, units: dict[str, int]) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    factor = units.get(match[3].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r}: expected a number and a unit ({', '.join(units)})")
    fraction = match[2] or ""
    scale: int = 10 ** len(fraction)
    value, rest = divmod(int(match[1] + fraction) * factor, scale)
    if rest:
        raise ValueError(f"{text!r}: not a whole number of {'ms' if 'ms' in units else 'bytes'}")
    return value


def _read_number(field: SettingField, raw: object) -> int:
    value = _number(field, raw)
    if value is None or field.low is None or field.high is None or not field.low <= value <= field.high:
        raise ValueError(f"expected {accepted(field)}")
    return value


def _number(field: SettingField, raw: object) -> int | None:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _INTEGER.fullmatch(raw.strip()):
        return int(raw)
    if isinstance(raw, str) and field.kind != "count":
        return _with_unit(field, raw)
    return None


def _with_unit(field: SettingField, text: str) -> int | None:
    try:
        return parse_duration(text) if field.kind == "ms" else parse_size(text)
    except ValueError:
        return None


def _read_switch(field: SettingField, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    value = _SWITCHES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if value is None:
        raise ValueError(f"expected {accepted(field)}")
    return value


def _read_list(field: SettingField, raw: object) -> list[str]:
    items = [part.strip() for part in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ValueError(f"expected {accepted(field)}")
    return items


def _read_urls(field: SettingField, raw: object) -> list[str]:
    urls = _read_list(field, raw)
    if not all(map(_is_http, urls)) or len(set(urls)) < len(urls):
        raise ValueError(f"expected {accepted(field)}; each with http:// or https:// and a host, none twice")
    return urls


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _read_table(field: SettingField, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"expected {accepted(field)}")  # noqa: TRY004 - a configuration error like the others
    return raw


def _read_choice(field: SettingField, raw: object) -> str:
    if not isinstance(raw, str) or raw not in field.choices:
        raise ValueError(f"expected {accepted(field)}")
    return raw


def _read_address(field: SettingField, raw: object) -> str:
    text = _read_text(field, raw)
    parse_address(text)
    return text


def _read_addresses(field: SettingField, raw: object) -> list[str]:
    addresses = _read_list(field, raw)
    for address in addresses:
        if "://" in address:
            raise ValueError(f"expected {accepted(field)}; without {address.partition('://')[0]}://")
        if parse_address(address)[1] == 0:
            raise ValueError(f"expected {accepted(field)}; port 0 is only for listening")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"expected {accepted(field)}; none twice")
    return addresses


def _read_ratio(field: SettingField, raw: object) -> float:
    value = _float(raw)
    if value is None or not 0 <= value <= 1:
        raise ValueError(f"expected {accepted(field)}")
    return value


def _float(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        return float(raw)
    except ValueError:
        return None


def _read_text(field: SettingField, raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise ValueError(f"expected {accepted(field)}")
    return raw


_READERS: dict[Kind, Callable[[SettingField, object], Any]] = {
    "count": _read_number,
    "ms": _read_number,
    "bytes": _read_number,
    "bool": _read_switch,
    "choice": _read_choice,
    "text": _read_text,
    "path": _read_text,
    "address": _read_address,
    "addresses": _read_addresses,
    "secret": _read_text,
    "ratio": _read_ratio,
    "list": _read_list,
    "urls": _read_urls,
    "targets": _read_text,
    "extensions": _read_table,
}
