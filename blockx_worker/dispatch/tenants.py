"""Executors that are not shared: a process runs the calls of one tenant (an instance or a task) in all its life.

Each tenant has its own line of tasks and its own executors. Who gets how many:

1. a new executor goes to the waiting tenant that has fewest, of these to the one that got none for longest;
2. a waiting tenant without room takes an empty executor of one that does not wait: it is ended, the next is new;
3. else it takes one of the tenant that has most, if it has none itself or at least two fewer: that executor gets no new
   calls and is ended when it is empty. It must have served its tenant for a while first, since a change costs the start
   of a process.

One executor at a time is on its way to a tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from blockx_worker.dispatch.commands import DispatchCommand
from blockx_worker.dispatch.config import DispatcherConfig, ExecutorShare
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import Call, TaskCalls
from blockx_worker.dispatch.recycling import recycle
from blockx_worker.dispatch.seats import Seats
from blockx_worker.dispatch.turn_order import Lane, RoundRobin

__all__ = ["MIN_TENURE_MS", "TenantLines", "tenant_of"]

MIN_TENURE_MS = 2_000
"""How long an executor serves a tenant that has work for it before it goes to another; several starts of a process."""


def tenant_of(share: ExecutorShare, task: TaskCalls) -> str:
    """Whose calls these are, as far as executors must tell."""
    return {"all": "", "instance": task.instance_id, "task": task.task_id}[share]


@attrs.define(eq=False)
class _Tenant:
    name: str
    line: RoundRobin = attrs.field(factory=RoundRobin)
    tasks: int = 0
    last_claim: int = 0


class TenantLines:
    """Round robin over the tasks of each tenant; see the module's text for what is between tenants."""

    def __init__(self, share: ExecutorShare) -> None:
        self._share: ExecutorShare = share
        self._tenants: dict[str, _Tenant] = {}
        self._claims = 0

    def __len__(self) -> int:
        return sum(len(tenant.line) for tenant in self._tenants.values())

    def join(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        name = tenant_of(self._share, task)
        self._tenants.setdefault(name, _Tenant(name)).tasks += 1

    def wake(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        self._of(task).line.wake(task)

    def step_out(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        self._of(task).line.step_out(task)

    def forget(self, task: TaskCalls) -> None:
        """See `TaskLines`."""
        tenant = self._of(task)
        tenant.line.forget(task)
        tenant.tasks -= 1
        if not tenant.tasks:
            del self._tenants[tenant.name]

    def in_line(self) -> list[TaskCalls]:
        """See `TaskLines`."""
        return [task for tenant in self._tenants.values() for task in tenant.line.in_line()]

    def lanes(self, executors: Sequence[Executor], config: DispatcherConfig, now_ms: int) -> list[Lane]:
        """Each line with its tenant's executors; new ones go, one by one, to the waiting tenant that has fewest."""
        places: dict[str, list[Executor]] = {name: [] for name in self._tenants}
        for executor in executors:
            if executor.tenant in places:
                places[executor.tenant].append(executor)
        owned = _owned(executors)
        waiting = self._names_in_line()
        for executor in executors:
            if waiting and _is_new(executor, config, now_ms):
                name = min(waiting, key=lambda name: (owned[name], self._tenants[name].last_claim))
                places[name].append(executor)
                owned[name] += 1
        depth = config.executor_max_runnable
        return [
            Lane(tenant.line, Seats(places[name], config, now_ms, depth), places[name], name)
            for name, tenant in self._tenants.items()
        ]

    def claim(self, lanes: Sequence[Lane], now_ms: int) -> None:
        """After a turn: note who has begun to use a new executor."""
        for lane in lanes:
            for executor in lane.executors:
                if executor.outgoing and executor.tenant is None:
                    executor.tenant, executor.tenant_ms = lane.tenant, now_ms
                    self._claims += 1
                    self._tenants[lane.tenant].last_claim = self._claims

    def change_hands(
        self,
        executors: Sequence[Executor],
        waiting: Sequence[str],
        config: DispatcherConfig,
        now_ms: int,
        out: list[DispatchCommand],
    ) -> bool:
        """Free executors for those that wait (see `waiting`). True: the next turn finds more to use than this one."""
        if self._take_back(executors, waiting):
            return True
        if any(_is_new(executor, config, now_ms) for executor in executors):
            # The next turn gives it to a tenant in line; suspects alone wait for more than an executor.
            return not set(waiting).isdisjoint(self._names_in_line())
        for name in waiting:
            if not any(executor.yielding == name for executor in executors):
                self._take_one(name, executors, now_ms)
        for executor in executors:
            if executor.yielding is not None and executor.healthy and not executor.inflight:
                recycle(executor, self._message(executor), out)
        return False

    def waiting(
        self, executors: Sequence[Executor], lanes: Sequence[Lane], suspects: Iterable[Call]
    ) -> list[str]:
        """Tenants that could use one more executor; one that has only suspects needs just one of its own."""
        owned = _owned(executors)
        alone = [tenant_of(self._share, call.task) for call in suspects]
        names = [lane.tenant for lane in lanes if len(lane.order) and not lane.seats.room]
        return [*names, *(name for name in dict.fromkeys(alone) if name not in names and not owned[name])]

    def _take_back(self, executors: Sequence[Executor], waiting: Sequence[str]) -> bool:
        """Whom an executor was to go to waits no more: it serves its tenant again."""
        free = [
            executor
            for executor in executors
            if executor.yielding is not None and executor.yielding not in waiting and executor.healthy
        ]
        for executor in free:
            executor.yielding = None
        return bool(free)

    def _message(self, executor: Executor) -> str:
        return (
            f"it has run calls of {self._share} {executor.tenant!r}, and {self._share} {executor.yielding!r}"
            " waits for an executor"
        )

    def _take_one(self, name: str, executors: Sequence[Executor], now_ms: int) -> None:
        """Let one executor of another tenant yield, if the rules allow it."""
        owned = _owned(executors)
        working = self._names_in_line()
        others = [
            executor
            for executor in executors
            if _stays(executor) and not executor.apart and executor.tenant not in (None, name)
        ]
        for executor in others:
            if not executor.inflight and executor.tenant not in working:
                executor.yielding = name
                return
        fair = [
            executor
            for executor in others
            if (not owned[name] or owned[executor.tenant] >= owned[name] + 2)
            and (executor.tenant not in working or now_ms - executor.tenant_ms >= MIN_TENURE_MS)
        ]
        if fair:
            min(fair, key=lambda executor: (-owned[executor.tenant], executor.inflight)).yielding = name

    def _names_in_line(self) -> list[str]:
        return [name for name, tenant in self._tenants.items() if len(tenant.line)]

    def _of(self, task: TaskCalls) -> _Tenant:
        return self._tenants[tenant_of(self._share, task)]


def _stays(executor: Executor) -> bool:
    return executor.healthy and not executor.retiring and executor.yielding is None


def _is_new(executor: Executor, config: DispatcherConfig, now_ms: int) -> bool:
    return executor.tenant is None and executor.room(config, now_ms, config.executor_max_runnable) > 0


def _owned(executors: Sequence[Executor]) -> Counter[str | None]:
    return Counter(executor.tenant for executor in executors if _stays(executor))
