"""Functions from a folder of Python modules and packages, followed while the worker runs.

The folder is looked at every ``poll_interval_ms``; after a look that saw an unfinished change the next one comes after
`SETTLE_MS`. Whatever changes the code, or the list of audited code, makes a new epoch; tasks that run keep theirs. A
problem or warning is logged once, when it appears, and its unit of code keeps the last good version.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs
import structlog
import trio

from blockx_worker.functions.assemble import assemble
from blockx_worker.functions.audit import AllowList, AllowListFile
from blockx_worker.functions.scanner import FolderScanner, Look
from blockx_worker.functions.view import FunctionDescription, FunctionProblem, LoadedView
from blockx_worker.ports import Threads

__all__ = ["DirectoryFunctionProvider", "load_directory"]

SETTLE_MS = 50

log = structlog.get_logger("blockx.functions")


def load_directory(path: str | os.PathLike[str], audited: frozenset[str] | None = None) -> LoadedView:
    """Look at a folder once (blocking); FileNotFoundError or NotADirectoryError with a message for people."""
    look = FolderScanner(Path(path)).look()
    return assemble(1, look.units, problems=look.problems, audited=audited)


@attrs.frozen
class _Seen:
    """What one look at the folder and at the list saw."""

    look: Look
    allowed: AllowList | None

    @property
    def code(self) -> object:
        """What an epoch is made of."""
        return self.look.units, self.allowed and self.allowed.digests

    @property
    def problems(self) -> list[FunctionProblem]:
        """All that cannot be used."""
        return [*(self.allowed.problems if self.allowed else ()), *self.look.problems]

    @property
    def unsettled(self) -> bool:
        """Whether another look soon is worth while."""
        return self.look.unsettled or (self.allowed is not None and self.allowed.unsettled)


class DirectoryFunctionProvider:
    """A `FunctionProvider` over a folder; ``audited`` limits it to the code on a list."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: Threads,
        *,
        poll_interval_ms: int = 1000,
        audited: AllowListFile | None = None,
    ) -> None:
        self._scanner = FolderScanner(Path(path))
        self._threads = threads
        self._poll_s = poll_interval_ms / 1000
        self._audited = audited
        self._epoch = 0
        self._seen: _Seen | None = None
        self._view: LoadedView | None = None
        self._looking = trio.Lock()

    def current(self) -> LoadedView:
        """The newest epoch; only after `run` has started."""
        if self._view is None:
            raise RuntimeError("the function folder has not been looked at yet: start run() first")
        return self._view

    def problems(self) -> Sequence[FunctionProblem]:
        """What cannot be used right now."""
        return self.current().problems()

    def describe(self) -> Sequence[FunctionDescription]:
        """All functions of the newest epoch."""
        return self.current().describe()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow changes until cancelled; started once the first epoch stands. OSError if folder or list is not there."""
        unsettled = await self.refresh()
        task_status.started()
        while True:
            await trio.sleep(SETTLE_MS / 1000 if unsettled else self._poll_s)
            unsettled = await self.refresh()

    async def refresh(self) -> bool:
        """Look now; True if a change is still settling, so that another look soon is worth while."""
        async with self._looking:
            seen, view = await self._threads.run(self._look)
            self._report(self._view, view)
            self._seen, self._view, self._epoch = seen, view, view.epoch
        return seen.unsettled

    def _look(self) -> tuple[_Seen, LoadedView]:
        """Look, and make a view of what is new: all of it in a thread, for a folder may be large."""
        old, view = self._seen, self._view
        now = _Seen(self._scanner.look(), self._audited.look() if self._audited else None)
        if old is not None and view is not None and (now.code, now.problems) == (old.code, old.problems):
            return now, view
        epoch = self._epoch if old is not None and now.code == old.code else self._epoch + 1
        audited = None if now.allowed is None else now.allowed.digests
        return now, assemble(epoch, now.look.units, problems=now.problems, audited=audited)

    def _report(self, old: LoadedView | None, new: LoadedView) -> None:
        if new is old:
            return
        known = frozenset((*old.problems(), *old.warnings()) if old else ())
        for problem in (*new.problems(), *new.warnings()):
            if problem not in known:
                event = "function_warning" if problem.warning else "function_problem"
                log.warning(event, file=problem.path, line=problem.line, reason=problem.reason)
        if old is None or new.epoch != old.epoch:
            log.info("function_epoch", epoch=new.epoch, functions=len(new.function_ids))
