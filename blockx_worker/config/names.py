"""Names that do not exist, and which one was probably meant."""

from __future__ import annotations

import difflib
import re

from blockx_worker.config.fields import FIELDS, MAPS, SECTIONS

__all__ = ["unknown_path", "unknown_section", "unknown_variable"]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def unknown_path(path: str, origin: str) -> str:
    """The problem line for a key that names no field. Values are left out: what is unknown may be a secret."""
    if path.partition(".")[0] in MAPS:
        return f"{path} ({origin}): this name may have at most 64 letters, digits, '_' and '-'"
    guess = _nearest(_HUMP.sub("_", path).replace("-", "_").lower())
    return f"{path} ({origin}): unknown field{_did_you_mean(guess)}"


def unknown_section(name: str) -> str | None:
    """What to say of a table that is no section; None if a field has that name."""
    if name in FIELDS:
        return None
    close = difflib.get_close_matches(name.lower().replace("-", "_"), [*SECTIONS, *MAPS], n=1)
    return f"unknown section{_did_you_mean(f'[{close[0]}]' if close else None)}"


def unknown_variable(name: str) -> str:
    """The problem line for a variable with our prefix that names no field."""
    guess = _nearest(name.removeprefix("BLOCKX_").lower(), separator="_")
    return f"{name} (environment): unknown setting{_did_you_mean(guess and FIELDS[guess].variable)}"


def _nearest(name: str, separator: str = ".") -> str | None:
    """The path that looks most like ``name``, given whole or by its last part."""
    whole = {path.replace(".", separator): path for path in FIELDS}
    last = {path.rpartition(".")[2]: path for path in FIELDS}
    for candidates, key in ((whole, name), (last, name.rpartition(".")[2])):
        if close := difflib.get_close_matches(key, candidates, n=1, cutoff=0.75):
            return candidates[close[0]]
    return None


def _did_you_mean(guess: str | None) -> str:
    return f"; did you mean {guess}?" if guess else "; `blockx config` lists them all"
