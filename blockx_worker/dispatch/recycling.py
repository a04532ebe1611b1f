"""Renewing executors: one that has grown too large, or has run another tenant's calls, is ended when it is empty.

It gets no new root calls from the moment that this is decided, and the order is given once. So no call is lost with
it, and its loss charges nobody.
"""

from __future__ import annotations

from blockx_worker.dispatch.commands import DispatchCommand, RecycleExecutor
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor

__all__ = ["judge_memory", "recycle", "retire_if_empty"]


def judge_memory(config: DispatcherConfig, executor: Executor, out: list[DispatchCommand]) -> None:
    """Look at the memory of the last heartbeat. One that was too large once retires, whatever it frees later."""
    limit = config.executor_memory_recycle_bytes
    if limit and executor.memory_bytes > limit and not executor.retiring:
        executor.retiring = f"its memory of {executor.memory_bytes} bytes is above the limit of {limit}"
    if executor.retiring:
        retire_if_empty(executor, out)


def retire_if_empty(executor: Executor, out: list[DispatchCommand]) -> None:
    """Order the end of an executor that retires, if nothing is aboard."""
    if not executor.inflight and executor.healthy:
        recycle(executor, executor.retiring, out)


def recycle(executor: Executor, message: str, out: list[DispatchCommand]) -> None:
    """Order the end of an empty executor."""
    executor.kill_message = message
    out.append(RecycleExecutor(executor_id=executor.executor_id, message=message))
