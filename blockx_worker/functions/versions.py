"""The last good version of each unit of code, while the files under it change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from blockx_worker.functions.inspect import Module, ModuleError
from blockx_worker.functions.units import CodeUnit, group, hidden, make_unit
from blockx_worker.functions.view import FunctionProblem

__all__ = ["FileState", "UnitVersions"]


class FileState(Protocol):
    """What is known of one file: its module, or the problem that it has."""

    module: Module | None
    problem: FunctionProblem | None


@attrs.frozen
class _Version:
    """The last good version of a unit, what was last made into one, and why that failed."""

    unit: CodeUnit | None = None
    modules: Sequence[Module] = ()
    problem: FunctionProblem | None = None


class UnitVersions:
    """See the module's text."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        self._problems: list[FunctionProblem] = []

    @property
    def units(self) -> list[CodeUnit]:
        """All units, by root."""
        return [version.unit for _, version in sorted(self._versions.items()) if version.unit is not None]

    @property
    def problems(self) -> Sequence[FunctionProblem]:
        """What keeps files and units from being used as they are now."""
        return self._problems

    def update(self, files: Mapping[str, FileState], waiting: Collection[str]) -> None:
        """Take the files as they stand; units with files in ``waiting``, whose change has not settled, stay."""
        hiding, old = hidden(files), self._versions
        self._versions, self._problems = {}, []
        for root, paths in group(files).items():
            used = [path for path in paths if path not in hiding]
            version = self._next(root, used, files, waiting, old.get(root, _Version()))
            if version.unit is None:
                self._versions.update(_below(root, old))  # modules that have just become a package
            self._versions[root] = version
            self._problems += _problems(version, [files[path] for path in used])
        for path, other in hiding.items():
            reason = f"is hidden by {other}, which an import finds first: rename one of them"
            self._problems.append(FunctionProblem(path=path, reason=reason))

    def _next(
        self,
        root: str,
        paths: Sequence[str],
        files: Mapping[str, FileState],
        waiting: Collection[str],
        old: _Version,
    ) -> _Version:
        if any(path == root or path.startswith(f"{root}/") for path in waiting):
            return old
        modules = [module for path in paths if (module := files[path].module) is not None]
        if len(modules) < len(paths):
            return _Version(old.unit)
        if not modules or modules == old.modules:
            return old
        try:
            return _Version(make_unit(root, modules), modules)
        except ModuleError as error:
            reason = error.reason + _kept(old)
            return _Version(old.unit, modules, FunctionProblem(path=root, reason=reason))


def _below(root: str, versions: Mapping[str, _Version]) -> dict[str, _Version]:
    return {path: version for path, version in versions.items() if path.startswith(f"{root}/")}


def _problems(version: _Version, files: Sequence[FileState]) -> Iterator[FunctionProblem]:
    for file in files:
        if file.problem is not None:
            yield attrs.evolve(file.problem, reason=file.problem.reason + _kept(version))
    if version.problem is not None:
        yield version.problem


def _kept(version: _Version) -> str:
    if version.unit is None:
        return ""
    what = (
        f"the last good version of the package {version.unit.root}"
        if version.unit.is_package
        else "its last good version"
    )
    return f" ({what} stays in use)"
