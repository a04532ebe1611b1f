"""Shadow: copies of a sample of the accepted tasks go to another worker, to try new code or a new release on real work.

A copy is marked, and the receiver runs it without its result handler and never copies it again. The handler is not even
sent: it may name a database. A copy keeps the task's id, so a task that is copied twice runs once.

Nothing waits for a copy. Copies queue up to a number and a size; more are dropped and counted. A target that cannot be
reached is left alone for ``backoff_ms``, in which copies are dropped at once: a dead target costs a comparison a task.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

import attrs
import trio

from blockx_worker.client import RequestFailed, Task, WorkerClient, WorkerError, WorkerUnreachable
from blockx_worker.client.task import EncodedConfig
from blockx_worker.model.tasks import TaskRequest
from blockx_worker.telemetry.log import get_logger

__all__ = ["ShadowConfig", "ShadowForwarder"]

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class ShadowConfig:
    """See `blockx_worker.config.ShadowSettings`."""

    target: str
    sample_rate: float
    queue_tasks: int = 256
    queue_bytes: int = 64 * 1024 * 1024
    max_inflight: int = 4
    timeout_ms: int = 10_000
    backoff_ms: int = 5000


class ShadowForwarder:
    """Takes accepted tasks by `offer`, sends copies while `run` runs. ``sent`` and ``dropped`` count copies."""

    def __init__(
        self,
        config: ShadowConfig,
        dropped: Counter[str] | None = None,
        sample: Callable[[], float] = random.random,
    ) -> None:
        """``sample`` gives numbers from 0 to below 1; ``dropped`` is where lost copies are counted, by reason."""
        self._config = config
        self._sample = sample
        self._queue: deque[TaskRequest] = deque()
        self._queued_bytes = 0
        self._filled = trio.Event()
        self._down_until = -float("inf")
        self._is_down = False
        self.dropped: Counter[str] = Counter() if dropped is None else dropped
        self.sent = 0

    def offer(self, request: TaskRequest) -> None:
        """A task was accepted: perhaps a copy of it is sent. Takes no time and never fails."""
        if request.is_shadow or self._sample() >= self._config.sample_rate:
            return
        if trio.current_time() < self._down_until:
            self._drop("target unreachable")
        elif len(self._queue) >= self._config.queue_tasks:
            self._drop("queue_tasks reached")
        elif self._queued_bytes + _size(request) > self._config.queue_bytes:
            self._drop("queue_bytes reached")
        else:
            self._queue.append(request)
            self._queued_bytes += _size(request)
            self._filled.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send copies until cancelled; connects when there is the first."""
        task_status.started()
        while True:
            await self._filled.wait()
            await self._connect_and_send()

    async def _connect_and_send(self) -> None:
        """Returns when the target was lost."""
        timeout_s = self._config.timeout_ms / 1000
        options = {"connect_timeout_s": timeout_s, "request_timeout_s": timeout_s}
        try:
            async with WorkerClient.connect(self._config.target, **options) as client:
                self._is_down = False
                async with trio.open_nursery() as nursery:
                    for _ in range(self._config.max_inflight):
                        nursery.start_soon(self._send, client, nursery.cancel_scope)
        except WorkerUnreachable as error:
            self._lost(error.detail)

    async def _send(self, client: WorkerClient, connection: trio.CancelScope) -> None:
        while True:
            request = await self._take()
            try:
                await client.submit(_copy(request))
            except WorkerUnreachable as error:
                self._drop("target unreachable")
                self._lost(error.detail)
                connection.cancel()
                return
            except WorkerError as error:
                self._drop(f"refused, {error.code}")
            except RequestFailed as error:
                self._drop(f"failed, {error.status}")
            except trio.Cancelled:
                self._drop("cut off")
                raise
            else:
                self.sent += 1

    async def _take(self) -> TaskRequest:
        while not self._queue:
            self._filled = trio.Event() if self._filled.is_set() else self._filled
            await self._filled.wait()
        request = self._queue.popleft()
        self._queued_bytes -= _size(request)
        return request

    def _lost(self, why: str) -> None:
        self._down_until = trio.current_time() + self._config.backoff_ms / 1000
        self._drop("target unreachable", len(self._queue))
        self._queue.clear()
        self._queued_bytes = 0
        self._filled = trio.Event()
        if not self._is_down:  # an outage is one line
            log.warning("shadow_target_unreachable", target=self._config.target, error=why)
        self._is_down = True

    def _drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[f"shadow copy: {reason}"] += count


def _copy(request: TaskRequest) -> Task:
    config = request.function_call_config
    return Task(
        EncodedConfig(config.type, config.config),
        None,
        task_id=request.task_id,
        instance_id=request.instance_id,
        timeout_ms=request.timeout_ms,
        call_failure_policy=request.call_failure_policy,
        max_attempts=request.call_retry_policy.max_attempts,
        base_backoff_ms=request.call_retry_policy.base_backoff_ms,
        call_budget_ms=request.call_budget_ms,
        labels=request.labels,
        is_shadow=True,
    )


def _size(request: TaskRequest) -> int:
    return len(request.function_call_config.config)
