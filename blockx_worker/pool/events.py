"""Everything that can happen to the processes of the pool. A slot runs one process at a time, each a generation."""

from __future__ import annotations

from typing import TypeAlias

import attrs

__all__ = [
    "PoolEvent",
    "PoolStarted",
    "PoolStopped",
    "PoolTicked",
    "ProcessExited",
    "ProcessSpawned",
    "SpawnFailed",
]


@attrs.frozen(kw_only=True)
class PoolStarted:
    """The pool is to run: spawn every slot."""


@attrs.frozen(kw_only=True)
class PoolStopped:
    """The pool is to stop: nothing is spawned again."""


@attrs.frozen(kw_only=True)
class PoolTicked:
    """Time passed: spawn what is due (see `PoolMachine.next_deadline`)."""


@attrs.frozen(kw_only=True)
class ProcessSpawned:
    """The process of a slot was started."""

    slot: int
    generation: int
    pid: int


@attrs.frozen(kw_only=True)
class SpawnFailed:
    """The process of a slot could not be started; counts like an exit."""

    slot: int
    generation: int
    message: str


@attrs.frozen(kw_only=True)
class ProcessExited:
    """The process of a slot is gone. ``deliberate`` exits (a kill of ours, recycling) do not count towards BACKOFF."""

    slot: int
    generation: int
    deliberate: bool
    message: str


PoolEvent: TypeAlias = PoolStarted | PoolStopped | PoolTicked | ProcessSpawned | SpawnFailed | ProcessExited
