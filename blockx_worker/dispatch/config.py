"""Limits and time-outs of the dispatcher; times in ms, sizes in bytes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs
from attrs import validators

__all__ = ["DispatcherConfig", "ExecutorShare"]

ExecutorShare: TypeAlias = Literal["all", "instance", "task"]


def _int(default: int, low: int, high: int = 2**53) -> int:
    """An integer field from ``low`` to ``high``; attrs names the field, the bound and the value when it is not."""
    return attrs.field(
        default=default,
        validator=[validators.instance_of(int), validators.ge(low), validators.le(high)],
    )


@attrs.frozen(kw_only=True)
class DispatcherConfig:
    """How many calls go where, and how long the dispatcher is patient.

    ``selection_sample_size`` 0 scores every eligible executor, ``executor_memory_high_watermark`` 0 ignores memory,
    ``call_cache_bytes`` 0 turns the result cache off (equal calls in flight are still run once).
    ``scheduler_stall_timeout_ms``: an executor whose main thread stays this long in one call gets no new ones.
    ``cancel_kill_ms``: how long a cancelled call may go on; ``wedge_grace_ms``: how far a call may overrun its budget.
    ``executor_memory_recycle_bytes``: an executor above it is ended as soon as it is empty, 0 = never.
    ``executor_share``: whose calls one process may run in its life: everybody's, one instance's, one task's.
    ``max_subcall_depth``: a subcall has fewer ancestors than this.
    """

    executor_max_inflight: int = _int(128, 1, 2**20)
    executor_max_runnable: int = _int(128, 1, 2**20)
    selection_sample_size: int = _int(0, 0)
    executor_memory_high_watermark: int = _int(0, 0)
    executor_memory_recycle_bytes: int = _int(0, 0)
    executor_share: ExecutorShare = attrs.field(
        default="all", validator=validators.in_(("all", "instance", "task"))
    )
    max_subcall_depth: int = _int(8, 1)
    task_max_inflight_calls: int = _int(1024, 1)
    call_cache_bytes: int = _int(32 * 1024 * 1024, 0)
    max_outstanding_batches: int = _int(2, 1)
    instance_fairness: bool = False
    instance_fairness_quantum: int = _int(0, 0, 1024)
    heartbeat_timeout_ms: int = _int(10_000, 1)
    scheduler_stall_timeout_ms: int = _int(10_000, 1)
    cancel_kill_ms: int = _int(2_000, 1)
    wedge_grace_ms: int = _int(5_000, 0)
    function_load_timeout_ms: int = _int(60_000, 1)
    max_uncharged_losses: int = _int(3, 0)
    failed_calls_kept: int = _int(1000, 0)
