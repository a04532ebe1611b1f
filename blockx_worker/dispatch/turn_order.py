"""Whose calls go next.

A task stands in line while it has calls to go on with. While executors have room, the line is asked again and again
whom to serve, and how many calls at most.

* `RoundRobin`: equal numbers of calls for tasks. A turn's share is what the executors can take (or the turn may
  touch) divided by the number of tasks in line, so one large task does not hold up sixty small ones; but a few calls
  in a row, where the turn is long enough, since asking costs as much as serving a call.
* `InstanceFair`: equal executor time for instances (max-min: the one that had least goes next), round robin over
  the tasks of an instance. Running calls count with the instance's mean run time, else the many calls that fit into
  one turn would all go to one instance.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from blockx_worker.dispatch.records import TaskCalls

__all__ = ["InstanceFair", "RoundRobin", "TurnOrder"]

_FIRST_MEAN_US = 1_000
"""What a call of an instance counts until one has finished."""

_ROW = 4
"""Calls in a row that one task gets although more tasks wait than executors have room."""


class TurnOrder(Protocol):
    """See the module's text."""

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

    def begin(self, max_calls: int, room: int) -> None:
        """Begin to serve: ``max_calls`` may be touched, ``room`` calls fit on executors."""

    def next(self) -> tuple[TaskCalls, int] | None:
        """Whom to serve, and how many calls at most; None when nobody stands in line. `served` must follow."""

    def served(self, task: TaskCalls, used: int, *, stays: bool) -> None:
        """The task that `next` gave went on with ``used`` calls; it stays in line or steps out."""

    def in_line(self) -> list[TaskCalls]:
        """The tasks in line, in no particular but a fixed order."""


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
        """See `TurnOrder`."""
        if not task.queued:
            task.queued = True
            self._line.append(task)

    def step_out(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
        if task.queued:
            task.queued = False
            self._line.remove(task)

    def forget(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
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
        """See `TurnOrder`."""
        return list(self._line)


class _Account:
    """One instance: its virtual time in µs of executor time, and its tasks."""

    __slots__ = ("estimate_us", "line", "mean_us", "rank", "tasks", "used_us")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.used_us = 0
        self.mean_us = _FIRST_MEAN_US
        self.estimate_us = 0
        self.tasks: dict[str, TaskCalls] = {}
        self.line: deque[TaskCalls] = deque()

    def bill(self) -> None:
        """Charge what its tasks ran since the last time, and estimate what runs now."""
        running = 0
        for task in self.tasks.values():
            self._bill(task)
            running += task.inflight
        self.estimate_us = self.used_us + running * self.mean_us

    def close(self, task: TaskCalls) -> None:
        """Charge a task that goes."""
        self._bill(task)
        del self.tasks[task.task_id]

    def _bill(self, task: TaskCalls) -> None:
        ran_us = task.run_us - task.billed_us
        runs = task.attempts - task.inflight
        ended = runs - task.billed_runs
        if ended > 0:
            self.mean_us = max((3 * self.mean_us + ran_us // ended) // 4, 1)
        self.used_us += ran_us
        task.billed_us = task.run_us
        task.billed_runs = runs


class InstanceFair:
    """Max-min over instances by executor time; ``quantum`` calls in a row go to one instance (0 and 1: one).

    An instance that comes back after a pause starts level with the one that had least of those in line: time that it
    did not ask for cannot be saved up.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = max(quantum, 1)
        self._accounts: dict[str, _Account] = {}
        self._heap: list[tuple[int, int, _Account]] = []
        self._ranks = 0
        self._in_line = 0
        self._floor_us = 0  # the least used time of an account in line so far

    def __len__(self) -> int:
        return self._in_line

    def join(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
        account = self._accounts.get(task.instance_id)
        if account is None:
            self._ranks += 1
            account = self._accounts[task.instance_id] = _Account(self._ranks)
        account.tasks[task.task_id] = task

    def wake(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
        if task.queued:
            return
        task.queued = True
        self._in_line += 1
        account = self._accounts[task.instance_id]
        if not account.line and not any(other.calls for other in account.tasks.values()):
            account.used_us = max(account.used_us, self._floor_us)
        account.line.append(task)

    def step_out(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
        if task.queued:
            task.queued = False
            self._in_line -= 1
            self._accounts[task.instance_id].line.remove(task)

    def forget(self, task: TaskCalls) -> None:
        """See `TurnOrder`."""
        self.step_out(task)
        self._accounts[task.instance_id].close(task)
        self._forget_paid()

    def begin(self, max_calls: int, room: int) -> None:
        """See `TurnOrder`."""
        del max_calls, room  # the quantum is the share
        self._heap = []
        for account in self._accounts.values():
            if account.line:
                account.bill()
                self._heap.append((account.estimate_us, account.rank, account))
        heapify(self._heap)
        if self._heap:
            self._floor_us = max(self._floor_us, min(account.used_us for _, _, account in self._heap))

    def next(self) -> tuple[TaskCalls, int] | None:
        """See `TurnOrder`."""
        return (self._heap[0][2].line[0], self._quantum) if self._heap else None

    def served(self, task: TaskCalls, used: int, *, stays: bool) -> None:
        """See `TurnOrder`."""
        account = self._heap[0][2]
        account.line.popleft()
        if stays:
            account.line.append(task)
        else:
            task.queued = False
            self._in_line -= 1
        account.estimate_us += used * account.mean_us
        if account.line:
            heapreplace(self._heap, (account.estimate_us, account.rank, account))
        else:
            heappop(self._heap)

    def in_line(self) -> list[TaskCalls]:
        """See `TurnOrder`."""
        return [task for account in self._accounts.values() for task in account.line]

    def _forget_paid(self) -> None:
        """Drop accounts that have no tasks and no debt, and all without tasks when nobody is in line."""
        for instance_id, account in list(self._accounts.items()):
            if not account.tasks and (not self._in_line or account.used_us <= self._floor_us):
                del self._accounts[instance_id]
