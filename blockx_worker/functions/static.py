"""Functions given as source texts, for tests and for programs that carry a worker inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from blockx_worker.functions.assemble import assemble
from blockx_worker.functions.inspect import ModuleError, read_module
from blockx_worker.functions.units import CodeUnit, group, hidden, make_unit
from blockx_worker.functions.view import FunctionDescription, FunctionProblem, LoadedView

__all__ = ["StaticFunctionProvider"]


class StaticFunctionProvider:
    """Provides modules from memory: ``{"transfers": "def transfer(log): …"}``.

    A key is a dotted module name or a path that ends in ``.py``; ``chain/__init__.py`` makes ``chain`` a package. ValueError
    for a module that cannot be used.
    """

    def __init__(self, sources: Mapping[str, str], *, audited: frozenset[str] | None = None) -> None:
        self._audited = audited
        self._view = self._load(1, sources)

    def current(self) -> LoadedView:
        """The newest epoch."""
        return self._view

    def problems(self) -> Sequence[FunctionProblem]:
        """What could not be used."""
        return self._view.problems()

    def describe(self) -> Sequence[FunctionDescription]:
        """All functions of the newest epoch."""
        return self._view.describe()

    def replace(self, sources: Mapping[str, str]) -> LoadedView:
        """Make these the functions of a new epoch."""
        self._view = self._load(self._view.epoch + 1, sources)
        return self._view

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing changes by itself."""
        task_status.started()
        await trio.sleep_forever()

    def _load(self, epoch: int, sources: Mapping[str, str]) -> LoadedView:
        paths = {_path(key): source for key, source in sources.items()}
        for path, hiding in hidden(paths).items():
            raise ValueError(f"{path}: is hidden by {hiding}, which has the same name")
        units = [_unit(root, own, paths) for root, own in group(paths).items()]
        return assemble(epoch, units, audited=self._audited)


def _path(key: str) -> str:
    return key if key.endswith(".py") else key.replace(".", "/") + ".py"


def _unit(root: str, paths: Sequence[str], sources: Mapping[str, str]) -> CodeUnit:
    path = root
    modules = []
    try:
        for path in paths:
            modules.append(read_module(path, sources[path].encode()))
        return make_unit(root, modules)
    except ModuleError as error:
        problem = FunctionProblem(path=path, line=error.line, reason=error.reason)
        raise ValueError(str(problem)) from None
