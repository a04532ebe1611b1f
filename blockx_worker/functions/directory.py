"""Functions from a folder of Python modules, followed while the worker runs.

The folder is looked at every ``poll_interval_ms``; after a look that saw an unfinished change the next one comes after
`SETTLE_MS`. Whatever changes the code makes a new epoch; tasks that run keep theirs. A problem is logged once, when
it appears, and its file keeps the last good version.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from blockx_worker.functions.assemble import assemble
from blockx_worker.functions.scanner import FolderScanner, Look
from blockx_worker.functions.view import FunctionDescription, FunctionProblem, LoadedView
from blockx_worker.ports import Threads

__all__ = ["DirectoryFunctionProvider", "load_directory"]

SETTLE_MS = 50

log = structlog.get_logger("blockx.functions")


def load_directory(path: str | os.PathLike[str]) -> LoadedView:
    """Look at a folder once (blocking); FileNotFoundError or NotADirectoryError with a message for people."""
    look = FolderScanner(Path(path)).look()
    return assemble(1, look.modules, problems=look.problems)


class DirectoryFunctionProvider:
    """A `FunctionProvider` over a folder; ``audited`` limits it to code of these digests."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: Threads,
        *,
        poll_interval_ms: int = 1000,
        audited: frozenset[str] | None = None,
    ) -> None:
        self._scanner = FolderScanner(Path(path))
        self._threads = threads
        self._poll_s = poll_interval_ms / 1000
        self._audited = audited
        self._epoch = 0
        self._seen: Look | None = None
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
        """Follow changes until cancelled; started once the first epoch stands. OSError if there is no folder."""
        unsettled = await self.refresh()
        task_status.started()
        while True:
            await trio.sleep(SETTLE_MS / 1000 if unsettled else self._poll_s)
            unsettled = await self.refresh()

    async def refresh(self) -> bool:
        """Look now; True if a change is still settling, so that another look soon is worth while."""
        async with self._looking:
            look = await self._threads.run(self._scanner.look)
        self._apply(look)
        return look.unsettled

    def _apply(self, look: Look) -> None:
        seen, self._seen = self._seen, look
        if seen is not None and (look.modules, look.problems) == (seen.modules, seen.problems):
            return
        same_code = seen is not None and look.modules == seen.modules
        old, self._epoch = self._view, self._epoch if same_code else self._epoch + 1
        self._view = assemble(self._epoch, look.modules, problems=look.problems, audited=self._audited)
        self._report(old, self._view)

    def _report(self, old: LoadedView | None, new: LoadedView) -> None:
        for problem in new.problems():
            if old is None or problem not in old.problems():
                log.warning("function_problem", file=problem.path, line=problem.line, reason=problem.reason)
        if old is None or new.epoch != old.epoch:
            log.info("function_epoch", epoch=new.epoch, functions=len(new.function_ids))
