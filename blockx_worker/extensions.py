"""Parts that users write: back ends, call builders and writers, found by the entry points of installed distributions.

An entry point of the group ``blockx.io_backends``, ``blockx.builders`` or ``blockx.writers`` names a factory::

    make(section: Mapping[str, Any], services: ExtensionServices) -> part

* It is used only if the configuration says so: by a section ``[extensions.NAME]``, which may be empty, or by NAME in
  ``extensions_enabled``. NAME is that of the entry point; one distribution may offer several parts under one name. An
  installed distribution that nobody has named is never imported. What is named is offered whatever the profile is.
* ``section`` has the keys of ``[extensions.NAME]`` as they stand in the file. A factory raises ValueError with a sentence
  for what the person who wrote them can mend.
* The factory runs before the worker starts: it makes the part and opens nothing.
* Everything that is wrong with an extension is one line of a `ConfigError`, and the worker does not start.

This module also has all names that an extension needs of the worker: import them from here, and from nowhere else.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

import attrs
from msgspec import Raw

from blockx_worker.config.errors import ConfigError
from blockx_worker.config.redact import redact_url
from blockx_worker.config.settings import Settings
from blockx_worker.dispatch.source import CallBatch, ListSource, ResolvedFunction
from blockx_worker.io.make import BUILT_IN_BACKENDS
from blockx_worker.io.service import Ready
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import FieldError, Fields, read_object, shorten
from blockx_worker.ports import (
    BatchWriter,
    BlockStore,
    BuilderContext,
    BuildResult,
    CallBuilder,
    CallStream,
    IoAnswer,
    IoBackend,
    IoError,
    OutputLines,
    StepFailed,
    Threads,
    WriterContext,
    WriterPlugin,
    WriteStopped,
)
from blockx_worker.profiles import PROFILES

__all__ = [
    "BatchWriter",
    "BuildResult",
    "BuilderContext",
    "CallBatch",
    "CallBuilder",
    "CallStream",
    "ExtensionServices",
    "Extensions",
    "FieldError",
    "Fields",
    "IoAnswer",
    "IoBackend",
    "IoError",
    "ListSource",
    "OutputLines",
    "Raw",
    "Ready",
    "ResolvedFunction",
    "StepFailed",
    "TaskFailureCode",
    "Threads",
    "WriteStopped",
    "WriterContext",
    "WriterPlugin",
    "load_extensions",
    "read_object",
]

_SHOWN_ERROR = 300


@attrs.frozen(kw_only=True)
class ExtensionServices:
    """What the worker lends to extensions: threads for blocking work, and its block store if it has one."""

    threads: Threads
    block_store: BlockStore | None = None


@attrs.frozen(kw_only=True)
class Extensions:
    """The parts that are to be used, each in the order of the names of their extensions."""

    backends: Sequence[IoBackend] = ()
    builders: Sequence[CallBuilder] = ()
    writers: Sequence[WriterPlugin] = ()


@attrs.frozen(kw_only=True)
class _Kind:
    """One group of entry points: what its parts are called, have, and may not be called."""

    group: str
    word: str
    name_field: str
    members: tuple[str, ...]
    taken: frozenset[str]


_BACKENDS = _Kind(
    group="blockx.io_backends",
    word="back end",
    name_field="name",
    members=("request", "run", "cacheable"),
    taken=frozenset(BUILT_IN_BACKENDS),
)
_BUILDERS = _Kind(
    group="blockx.builders",
    word="call builder",
    name_field="type",
    members=("build",),
    taken=frozenset(name for profile in PROFILES.values() for name in profile.builders),
)
_WRITERS = _Kind(
    group="blockx.writers",
    word="writer",
    name_field="type",
    members=("keeps_outputs", "check", "write"),
    taken=frozenset(name for profile in PROFILES.values() for name in profile.plugins),
)
_KINDS = (_BACKENDS, _BUILDERS, _WRITERS)

Installed = Callable[[str], Iterable[EntryPoint]]
"""The entry points of a group."""


class _Broken(Exception):
    """One line that says what is wrong."""


def load_extensions(
    settings: Settings,
    services: ExtensionServices,
    installed: Installed = lambda group: importlib.metadata.entry_points(group=group),
) -> Extensions:
    """Make the parts of all extensions that the settings name; ConfigError with a line for each that is broken."""
    names = sorted({*settings.extensions, *settings.extensions_enabled})
    if not names:
        return Extensions()
    loader = _Loader(settings.extensions, services, installed)
    loader.load(names)
    if loader.problems:
        raise ConfigError(loader.problems)
    return Extensions(
        backends=loader.parts[_BACKENDS.group],
        builders=loader.parts[_BUILDERS.group],
        writers=loader.parts[_WRITERS.group],
    )


class _Loader:
    def __init__(
        self, sections: Mapping[str, Mapping[str, Any]], services: ExtensionServices, installed: Installed
    ) -> None:
        self.problems: list[str] = []
        self.parts: dict[str, list[Any]] = {kind.group: [] for kind in _KINDS}
        self._sections = sections
        self._services = services
        self._installed = {kind.group: list(installed(kind.group)) for kind in _KINDS}
        self._owners: dict[tuple[str, str], str] = {}

    def load(self, names: Sequence[str]) -> None:
        for name in names:
            offers = list(self._offers(name))
            if not offers:
                known = sorted({entry.name for entries in self._installed.values() for entry in entries})
                self.problems.append(
                    f"extensions.{name}: no installed distribution offers an extension of this name; "
                    f"there are {', '.join(known) or 'none'}"
                )
            for kind, entry in offers:
                try:
                    self.parts[kind.group].append(self._part(kind, entry))
                except _Broken as broken:
                    self.problems.append(str(broken))

    def _offers(self, name: str) -> Iterator[tuple[_Kind, EntryPoint]]:
        for kind in _KINDS:
            entries = [entry for entry in self._installed[kind.group] if entry.name == name]
            if len(entries) > 1:
                owners = " and ".join(sorted(map(_distribution, entries)))
                self.problems.append(
                    f"extensions.{name}: more than one distribution offers it in {kind.group}: {owners}; uninstall all "
                    "but one"
                )
            yield from ((kind, entry) for entry in entries[:1])

    def _part(self, kind: _Kind, entry: EntryPoint) -> Any:
        where = f"extension {entry.name} of {_distribution(entry)} ({kind.group}: {entry.value})"
        section = MappingProxyType(dict(self._sections.get(entry.name, {})))
        part = _make(where, entry, section, self._services)
        name = _check(where, kind, part)
        owner = self._owners.setdefault((kind.group, name), where)
        if owner != where:
            raise _Broken(f"{where}: its {kind.name_field} {name} is also that of {owner}")
        return part


def _make(where: str, entry: EntryPoint, section: Mapping[str, Any], services: ExtensionServices) -> Any:
    """The boundary to code that may be anybody's."""
    try:
        factory = entry.load()
    except Exception as error:
        raise _Broken(f"{where}: cannot be imported: {_shown(error)}") from error
    try:
        return factory(section, services)
    except ValueError as error:
        raise _Broken(f"{where}: [extensions.{entry.name}]: {_line(str(error))}") from error
    except Exception as error:
        raise _Broken(f"{where}: cannot be made: {_shown(error)}") from error


def _check(where: str, kind: _Kind, part: object) -> str:
    """The part's name, once it has everything that it needs."""
    for member in (kind.name_field, *kind.members):
        if not hasattr(part, member):
            raise _Broken(
                f"{where}: made a {type(part).__name__}, which is no {kind.word}: it has no {member}"
            )
    name = getattr(part, kind.name_field)
    if not isinstance(name, str) or not name:
        raise _Broken(f"{where}: its {kind.name_field} is {name!r}; expected a text")
    if name in kind.taken:
        raise _Broken(f"{where}: its {kind.name_field} {name} is that of a {kind.word} of the worker's own")
    return name


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {_line(str(error))}"


def _line(text: str) -> str:
    return shorten(redact_url(" ".join(text.split())), _SHOWN_ERROR)
