"""The tokens file, followed while the worker runs.

It is read again every ``poll_interval_ms``: it is small, and its bytes tell a change for certain, which time stamps do
not. A file that cannot be used any more is logged once, and the last good one stays in force. Requests that are under
way when a token is taken away are not ended.
"""

from __future__ import annotations

import attrs
import trio

from blockx_worker.ports import Threads
from blockx_worker.security.tokens import TokensError, TokenTable, parse_tokens, read_tokens
from blockx_worker.telemetry.log import get_logger

__all__ = ["TokenFile"]

log = get_logger(__name__)


@attrs.frozen
class _Seen:
    data: bytes | None = None
    table: TokenTable = attrs.field(factory=TokenTable)
    problem: str | None = None


class TokenFile:
    """The tokens in force."""

    def __init__(self, path: str, threads: Threads, *, poll_interval_ms: int = 1000) -> None:
        self._path = path
        self._threads = threads
        self._poll_s = poll_interval_ms / 1000
        self._seen = _Seen()

    def current(self) -> TokenTable:
        """The last good version."""
        return self._seen.table

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the file until cancelled. OSError if it cannot be used at the start."""
        await self.refresh()
        if self._seen.problem is not None:
            raise OSError(f"the tokens file {self._path}: {self._seen.problem}")
        task_status.started()
        while True:
            await trio.sleep(self._poll_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the file now."""
        old, new = self._seen, await self._threads.run(self._look)
        self._seen = new
        if new.problem is not None and old.data is not None and new.problem != old.problem:
            log.error(
                "tokens_file_unusable", path=self._path, problem=new.problem, in_force=len(new.table.tokens)
            )
        elif new.problem is None and (new.data != old.data or old.problem):
            log.info("tokens_read", path=self._path, names=[token.name for token in new.table.tokens])

    def _look(self) -> _Seen:
        seen = self._seen
        try:
            data = read_tokens(self._path)
            if data == seen.data and seen.problem is None:
                return seen
            return _Seen(data, parse_tokens(data))
        except TokensError as error:
            return _Seen(seen.data, seen.table, str(error))
