"""Executor time in equal parts for instances.

Max-min: the instance that had least goes next, round robin over its tasks. Running calls count with the instance's
mean run time, else the many calls that fit into one turn would all go to one instance.

What an executor holds cannot be taken back, so a queue of another instance's calls on it delays whoever comes. That
backlog is kept short: an executor holds no more runnable calls than it runs in about 20 ms, long enough that it never
runs dry between two turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import TaskCalls
from blockx_worker.dispatch.seats import Seats
from blockx_worker.dispatch.turn_order import Lane

__all__ = ["InstanceFair"]

_FIRST_MEAN_US = 1_000
"""What a call of an instance counts until one has finished."""

_BACKLOG_US = 20_000
_FIRST_DEPTH = _BACKLOG_US // _FIRST_MEAN_US
_MIN_DEPTH = 2
"""One runs, one is there when it ends."""


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
        """See `TaskLines`."""
        account = self._accounts.get(task.instance_id)
        if account is None:
            self._ranks += 1
            account = self._accounts[task.instance_id] = _Account(self._ranks)
        account.tasks[task.task_id] = task

    def wake(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        if task.queued:
            return
        task.queued = True
        self._in_line += 1
        account = self._accounts[task.instance_id]
        if not account.line and not any(other.calls for other in account.tasks.values()):
            account.used_us = max(account.used_us, self._floor_us)
        account.line.append(task)

    def step_out(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        if task.queued:
            task.queued = False
            self._in_line -= 1
            self._accounts[task.instance_id].line.remove(task)

    def forget(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
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
        """See `TaskLines`."""
        return [task for account in self._accounts.values() for task in account.line]

    def lanes(self, executors: Sequence[Executor], config: DispatcherConfig, now_ms: int) -> list[Lane]:
        """See `TaskLines`."""
        depth = min(self._depth(), config.executor_max_runnable)
        return [Lane(self, Seats(executors, config, now_ms, depth), executors)]

    def _depth(self) -> int:
        """How many runnable calls one executor may hold, by what calls that are out take on average."""
        running = run_us = 0
        for account in self._accounts.values():
            count = sum(task.inflight for task in account.tasks.values())
            running += count
            run_us += count * account.mean_us
        return max(_BACKLOG_US * running // run_us, _MIN_DEPTH) if run_us else _FIRST_DEPTH

    def _forget_paid(self) -> None:
        """Drop accounts that have no tasks and no debt, and all without tasks when nobody is in line."""
        for instance_id, account in list(self._accounts.items()):
            if not account.tasks and (not self._in_line or account.used_us <= self._floor_us):
                del self._accounts[instance_id]
