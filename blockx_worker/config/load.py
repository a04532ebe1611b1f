"""Reads the settings: defaults, then what the profile tunes, the file, the environment, and flags; the later wins.

Every layer becomes a list of entries (path, raw value, origin); they are read in order, and all problems are collected,
so that one run shows everything that has to be mended. A value that a later layer replaces must still be valid.

In the environment an empty value means "not set". A variable with the prefix ``BLOCKX_`` that names no field is an
error, since it is most likely misspelt; the older names without the prefix are weaker than those with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from blockx_worker.config.checks import check_settings
from blockx_worker.config.errors import ConfigError, problem_line
from blockx_worker.config.fields import FIELDS, MAPS, SettingField, value_at
from blockx_worker.config.names import unknown_path, unknown_variable
from blockx_worker.config.redact import MASK, redact_endpoint
from blockx_worker.config.settings import Settings
from blockx_worker.config.targets import absolute_sqlite
from blockx_worker.config.toml import Entry, read_toml
from blockx_worker.config.values import read_value
from blockx_worker.profiles import PROFILES

__all__ = ["LoadedSettings", "load_settings"]

PREFIX = "BLOCKX_"
TARGETS_PREFIX = "BLOCKX_TARGETS_"
CLIENT_VARIABLES = ("BLOCKX_TOKEN_FILE",)
"""Of commands that talk to a worker; they may stand in the environment of a worker as well."""

_CHOSEN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@attrs.frozen(kw_only=True)
class LoadedSettings:
    """Settings and where each value comes from.

    ``origins`` has every path: ``default``, ``profile block``, ``file F``, ``env NAME`` or ``flag --x``.
    """

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    profile: str | None,
    config_file: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> LoadedSettings:
    """Read and check everything; ConfigError with all problems.

    ``profile``: from a flag, None = from the file, the environment, or ``block``. ``flags`` maps field paths to raw
    values; None means that the flag was not given. Relative paths of the file start at the file's folder, all others
    at the current directory.
    """
    given = {"profile": profile, **flags}
    problems: list[str] = []
    file_entries: list[Entry] = read_toml(Path(config_file), problems) if config_file is not None else []
    entries = [*file_entries, *_environment(environ, problems), *_flags(given)]
    entries = [*_tuned(entries, problems), *entries]
    values, origins = _read_all(entries, problems)
    if problems:
        raise ConfigError(problems)
    settings = _build(values)
    problems.extend(check_settings(settings, origins))
    if problems:
        raise ConfigError(problems)
    return LoadedSettings(settings=settings, origins=_all_origins(settings, values, origins))


def _environment(environ: Mapping[str, str], problems: list[str]) -> Iterator[Entry]:
    for field in FIELDS.values():
        if field.legacy_variable and environ.get(field.legacy_variable):
            yield Entry(field.path, environ[field.legacy_variable], f"env {field.legacy_variable}")
    by_variable = {f.variable: f for f in FIELDS.values() if f.path not in MAPS}
    ours = (n for n in environ if n.startswith(PREFIX) and n not in CLIENT_VARIABLES)
    for name in sorted(n for n in ours if environ[n]):
        if name.startswith(TARGETS_PREFIX):
            yield Entry("targets." + name.removeprefix(TARGETS_PREFIX).lower(), environ[name], f"env {name}")
        elif name in by_variable:
            yield Entry(by_variable[name].path, environ[name], f"env {name}")
        else:
            problems.append(unknown_variable(name))


def _flags(flags: Mapping[str, object]) -> Iterator[Entry]:
    for path, raw in flags.items():
        if raw is not None:
            flag = FIELDS[path].flag or "--" + path.replace(".", "-").replace("_", "-")
            yield Entry(path, raw, f"flag {flag}")


def _tuned(entries: list[Entry], problems: list[str]) -> list[Entry]:
    """What the profile tunes; the profile itself is named by the strongest layer that names one."""
    chosen = [entry for entry in entries if entry.path == "profile"]
    name = chosen[-1].raw if chosen else FIELDS["profile"].default
    if not isinstance(name, str):
        return []  # reported where the value is read
    profile = PROFILES.get(name)
    if profile is None:
        problems.append(
            problem_line("profile", name, chosen[-1].origin, "expected one of: " + ", ".join(PROFILES))
        )
        return []
    named = {
        "deployment": profile.deployment,
        "worker_registry_prefix": profile.worker_registry_prefix,
    }
    tuned = {path: name for path, name in named.items() if name != FIELDS[path].default}
    return [
        Entry(path, raw, f"profile {profile.name}")
        for path, raw in (tuned | {**profile.tune_defaults}).items()
    ]


def _read_all(entries: list[Entry], problems: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for entry in entries:
        field = _field_of(entry.path)
        if field is None:
            problems.append(unknown_path(entry.path, entry.origin))
            continue
        try:
            value = read_value(field, entry.raw)
        except ValueError as error:
            problems.append(problem_line(entry.path, _masked(field, entry.raw), entry.origin, str(error)))
            continue
        values[entry.path] = _placed(field, value, entry.base)
        origins[entry.path] = entry.origin
    return values, origins


def _field_of(path: str) -> SettingField | None:
    section, _, name = path.partition(".")
    if section in MAPS:
        return FIELDS[section] if _CHOSEN_NAME.fullmatch(name) else None
    return FIELDS.get(path)


def _masked(field: SettingField, raw: object) -> object:
    """A value that is wrong, as it may be shown."""
    if field.kind == "secret":
        return MASK
    if field.kind != "urls":
        return raw
    urls = raw if isinstance(raw, list) else str(raw).split(",")
    return ",".join(redact_endpoint(str(url).strip()) for url in urls)


def _placed(field: SettingField, value: Any, base: Path | None) -> Any:
    """Paths made absolute while it is known where they start."""
    folder = base or Path()
    if field.kind == "targets":
        return absolute_sqlite(value, folder)
    if field.kind == "path":
        return os.path.abspath(folder / Path(value).expanduser())  # noqa: PTH100 - resolve() would follow links
    return value


def _build(values: Mapping[str, Any]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return msgspec.convert(tree, Settings)


def _all_origins(settings: Settings, values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, str]:
    result = {path: origins.get(path, "default") for path in FIELDS if path not in MAPS}
    for path, value in values.items():
        if path in FIELDS and value_at(settings, path) != value:
            result[path] = f"{origins[path]}, adjusted"
    result |= {path: origin for path, origin in origins.items() if path.partition(".")[0] in MAPS}
    return result
