"""Results of ended tasks, kept for a time, up to a count, up to a number of bytes; the oldest go first.

The newest result is always kept, even when it alone is above the byte budget: its client has had no chance to fetch it
yet. It goes as soon as a newer one comes.
"""

from __future__ import annotations

import attrs

from blockx_worker.core.limits import WorkerLimits
from blockx_worker.model.tasks import TaskResult

__all__ = ["RECORD_BYTES", "ResultShelf", "RetainedResult", "record_bytes"]

RECORD_BYTES = 1024
"""Estimate of the memory of a result without its texts, in bytes."""

_FAILED_CALL_BYTES = 256


@attrs.frozen(kw_only=True)
class RetainedResult:
    """An ended task. ``size`` is its memory in bytes, outputs included; ``ended_ms`` core time."""

    result: TaskResult
    slot_id: str
    fingerprint: str
    version: int
    ended_ms: int
    size: int


class ResultShelf:
    """The retained results, oldest first."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._kept: dict[str, RetainedResult] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, task_id: str) -> RetainedResult | None:
        """The ended task of that id, as long as it is kept (also past its time, until the sweep)."""
        return self._kept.get(task_id)

    def values(self) -> tuple[RetainedResult, ...]:
        """All of them, oldest first."""
        return tuple(self._kept.values())

    def store(self, retained: RetainedResult) -> list[str]:
        """Keep a result; the task ids that had to go for it, oldest first."""
        self._kept[retained.result.task_id] = retained
        self.total_bytes += retained.size
        purged = []
        while len(self._kept) > 1 and self._over_budget():
            purged.append(self._forget_oldest())
        return purged

    def purge_elapsed(self, now_ms: int) -> list[str]:
        """Forget what is older than the retention; the task ids, oldest first."""
        purged = []
        while (due := self.next_due_ms()) is not None and due <= now_ms:
            purged.append(self._forget_oldest())
        return purged

    def next_due_ms(self) -> int | None:
        """When the oldest result is to be forgotten; None when nothing is kept."""
        oldest = next(iter(self._kept.values()), None)
        return None if oldest is None else oldest.ended_ms + self._limits.result_retention_ms

    def _over_budget(self) -> bool:
        limits = self._limits
        return (
            len(self._kept) > limits.result_retention_count
            or self.total_bytes > limits.result_retention_bytes
        )

    def _forget_oldest(self) -> str:
        task_id = next(iter(self._kept))
        self.total_bytes -= self._kept.pop(task_id).size
        return task_id


def record_bytes(result: TaskResult) -> int:
    """Estimate of the memory of a result record, without outputs: a flat part plus one byte per character of text."""
    size = RECORD_BYTES + len(result.task_id) + len(result.plugin_results)
    for call in result.failed_calls:
        size += _FAILED_CALL_BYTES + len(call.message) + len(call.args_preview)
    if (failure := result.failure) is not None:
        size += len(failure.message) + len(failure.args_preview) + len(failure.stack)
        size += sum(len(name) + len(value) for name, value in failure.locals.items())
    return size
