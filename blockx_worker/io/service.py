"""The life of back ends that hold nothing open."""

from __future__ import annotations

import trio

__all__ = ["Ready"]


class Ready:
    """A base for back ends that can answer at once and need nothing to be run."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing to hold open."""
        task_status.started()
        await trio.sleep_forever()
