"""What the pool machine orders."""

from __future__ import annotations

from typing import TypeAlias

import attrs

__all__ = ["PoolCommand", "PoolDropped", "ReportSlot", "SpawnExecutor", "StopExecutor"]


@attrs.frozen(kw_only=True)
class SpawnExecutor:
    """Start the process of a slot under the id ``exec-{slot}``; answer with spawned or failed."""

    slot: int
    generation: int


@attrs.frozen(kw_only=True)
class StopExecutor:
    """End the process of a slot (SIGTERM, then SIGKILL)."""

    slot: int
    generation: int


@attrs.frozen(kw_only=True)
class ReportSlot:
    """For the log: a slot changed its state, why, and until when (core ms; None = until something happens)."""

    slot: int
    state: str
    reason: str
    until_ms: int | None


@attrs.frozen(kw_only=True)
class PoolDropped:
    """An event of an old generation or a stopped slot; nothing changed."""

    event: str
    reason: str
    slot: int


PoolCommand: TypeAlias = SpawnExecutor | StopExecutor | ReportSlot | PoolDropped
