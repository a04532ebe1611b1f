"""Whose calls go next.

A task stands in line while it has calls to go on with. While executors have room, the line is asked again and again
whom to serve, and how many calls at most.

* `RoundRobin`: equal numbers of calls for tasks. A turn's share is what the executors can take (or the turn may
  touch) divided by the number of tasks in line, so one large task does not hold up sixty small ones; but a few calls
  in a row, where the turn is long enough, since asking costs as much as serving a call.
* `fairness.InstanceFair`: equal executor time for instances.
* `tenants.TenantLines`: a line of its own for each tenant, where executors are not shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import TaskCalls
from blockx_worker.dispatch.seats import Seats

__all__ = ["Lane", "RoundRobin", "TaskLines", "TurnOrder"]

_ROW = 4
"""Calls in a row that one task gets although more tasks wait than executors have room."""


class TaskLines(Protocol):
    """The tasks that have calls to go on with."""

    def __len__(self) -> int:
        """Number of tasks in line."""

    def join(self, task: TaskCalls) -> None:
        """A task has begun; it is not in line yet."""

    def wake(self, task: TaskCalls) -> None:
        """Put a task in line; nothing happens when it stands there."""

    def step_out(self, task: TaskCalls) -> None:
        """Take a task out of the line; nothing happens when it does not stand there."""

    def forget(self, task: TaskCalls) -> None:
        """A task has been dropped."""

    def in_line(self) -> list[TaskCalls]:
        """The tasks in line, in no particular but a fixed order."""

    def lanes(self, executors: Sequence[Executor], config: DispatcherConfig, now_ms: int) -> list[Lane]:
        """For one turn: which tasks are served in which order on which executors."""


class TurnOrder(TaskLines, Protocol):
    """One line; see the module's text."""

    def begin(self, max_calls: int, room: int) -> None:
        """Begin to serve: ``max_calls`` may be touched, ``room`` calls fit on executors."""

    def next(self) -> tuple[TaskCalls, int] | None:
        """Whom to serve, and how many calls at most; None when nobody stands in line. `served` must follow."""

    def served(self, task: TaskCalls, used: int, *, stays: bool) -> None:
        """The task that `next` gave went on with ``used`` calls; it stays in line or steps out."""


class Lane(NamedTuple):
    """A line and the executors that its calls may go to in this turn."""

    order: TurnOrder
    seats: Seats
    executors: Sequence[Executor]
    tenant: str = ""


class RoundRobin:
    """One line of tasks; who was served goes to its end, also from turn to turn."""

    def __init__(self) -> None:
        self._line: deque[TaskCalls] = deque()
        self._share = 1

    def __len__(self) -> int:
        return len(self._line)

    def join(self, task: TaskCalls) -> None:
        """Nothing is kept about a task that is not in line."""

    def wake(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        if not task.queued:
            task.queued = True
            self._line.append(task)

    def step_out(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        if task.queued:
            task.queued = False
            self._line.remove(task)

    def forget(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        self.step_out(task)

    def begin(self, max_calls: int, room: int) -> None:
        """See `TurnOrder`."""
        tasks = max(len(self._line), 1)
        fair = -(-max_calls // tasks)
        self._share = min(max(-(-room // tasks), _ROW), fair)

    def next(self) -> tuple[TaskCalls, int] | None:
        """See `TurnOrder`."""
        return (self._line[0], self._share) if self._line else None

    def served(self, task: TaskCalls, used: int, *, stays: bool) -> None:
        """See `TurnOrder`."""
        del used  # the share is the same for all
        self._line.popleft()
        if stays:
            self._line.append(task)
        else:
            task.queued = False

    def in_line(self) -> list[TaskCalls]:
        """See `TaskLines`."""
        return list(self._line)

    def lanes(self, executors: Sequence[Executor], config: DispatcherConfig, now_ms: int) -> list[Lane]:
        """See `TaskLines`."""
        return [Lane(self, Seats(executors, config, now_ms, config.executor_max_runnable), executors)]
