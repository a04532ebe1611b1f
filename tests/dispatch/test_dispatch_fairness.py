"""Executor time in equal parts for instances, simulated: executors that run one call after the other."""

from __future__ import annotations

from collections import deque

import attrs
import msgspec
import pytest

from blockx_executor.wire.messages import ExecuteCall
from blockx_worker.dispatch.commands import ConvergeTaskCalls, DispatchCalls
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.events import CallsFinished, DispatchTurn, ExecutorAttached, TaskCallsStarted
from blockx_worker.dispatch.source import ListSource
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy
from tests.dispatch.driver import FUNCTION, completed


@attrs.define
class _Process:
    """An executor: its queue, and when the call at its head is done (µs)."""

    queue: deque[ExecuteCall] = attrs.field(factory=deque)
    done_us: int = 0


class _Simulation:
    """Calls take a time by task; each end is reported at once, and a turn follows."""

    def __init__(self, executors: int, run_us: dict[str, int], *, quantum: int = 0) -> None:
        config = DispatcherConfig(instance_fairness=True, instance_fairness_quantum=quantum)
        self.core = DispatcherCore(config, jitter=lambda: 0.0)
        self.run_us = run_us
        self.now_us = 0
        self.processes = {f"exec-{number}": _Process() for number in range(executors)}
        self.ends: dict[str, int] = {}
        for executor_id in self.processes:
            self.core.handle(ExecutorAttached(executor_id=executor_id, usable_contexts=128), 0)

    def start(self, task_id: str, count: int) -> None:
        args = [msgspec.Raw(b"[%d]" % number) for number in range(count)]
        event = TaskCallsStarted(
            task_id=task_id,
            instance_id=task_id,
            source=ListSource(FUNCTION, args),
            failure_policy=CallFailurePolicy.FAST_FAIL,
            retry_policy=CallRetryPolicy(),
            call_budget_ms=0,
        )
        self.core.handle(event, self.now_us // 1000)
        self._turns()

    def run(self, until_us: int = 1 << 60, *, end: str = "") -> None:
        """Go on until a time or the end of a task."""
        while end not in self.ends:
            busy = [(key, process) for key, process in self.processes.items() if process.queue]
            if not busy:
                return
            executor_id, process = min(busy, key=lambda item: item[1].done_us)
            if process.done_us > until_us:
                self.now_us = until_us
                return
            self.now_us = process.done_us
            call = process.queue.popleft()
            self._begin(process)
            frames = [completed(call, run_us=self.run_us[call.payload.task_id])]
            self.core.handle(CallsFinished(executor_id=executor_id, frames=frames), self.now_us // 1000)
            self._turns()

    def _turns(self) -> None:
        while self.core.turn_pending:
            for command in self.core.handle(DispatchTurn(max_calls=128), self.now_us // 1000):
                if isinstance(command, DispatchCalls):
                    process = self.processes[command.executor_id]
                    idle = not process.queue
                    process.queue.extend(command.calls)
                    if idle:
                        self._begin(process)
                elif isinstance(command, ConvergeTaskCalls):
                    self.ends[command.task_id] = self.now_us

    def _begin(self, process: _Process) -> None:
        if process.queue:
            process.done_us = self.now_us + self.run_us[process.queue[0].payload.task_id]


def _alone(executors: int, run_us: int) -> int:
    simulation = _Simulation(executors, {"small": run_us})
    simulation.start("small", 100)
    simulation.run()
    return simulation.ends["small"]


@pytest.mark.parametrize("executors", [1, 2, 8])
@pytest.mark.parametrize("quantum", [0, 16])
@pytest.mark.parametrize(("big_us", "small_us"), [(2_000, 2_000), (10_000, 10_000), (1_000, 10_000)])
def test_a_small_instance_beside_a_huge_one_takes_twice_its_time_alone(
    executors: int, quantum: int, big_us: int, small_us: int
) -> None:
    """100 calls come while 100,000 of another instance are queued and run; at most one call more than twice."""
    simulation = _Simulation(executors, {"big": big_us, "small": small_us}, quantum=quantum)
    simulation.start("big", 100_000)
    simulation.run(until_us=500_000)
    begun_us = simulation.now_us
    simulation.start("small", 100)
    simulation.run(end="small")
    took_us = simulation.ends["small"] - begun_us
    assert took_us <= 2 * _alone(executors, small_us) + max(big_us, small_us)


def test_time_counts_and_not_calls() -> None:
    """Of two endless instances one has calls ten times as long: each gets half of the time."""
    simulation = _Simulation(2, {"long": 10_000, "short": 1_000})
    simulation.start("long", 100_000)
    simulation.start("short", 100_000)
    simulation.run(until_us=4_000_000)
    spent = {}
    for task_id in ("long", "short"):
        statistic = simulation.core.statistic(task_id)
        assert statistic is not None
        spent[task_id] = statistic.run_us
    assert 0.9 <= spent["long"] / spent["short"] <= 1.1


def test_an_executor_holds_no_more_than_it_runs_in_a_moment() -> None:
    """What it holds cannot be taken back, so long calls are sent few at a time; short ones fill it."""
    for run_us, least, most in ((10_000, 2, 2), (1_000, 15, 25), (50, 128, 128)):
        simulation = _Simulation(1, {"big": run_us})
        simulation.start("big", 100_000)
        simulation.run(until_us=100 * run_us)
        assert least <= len(simulation.processes["exec-0"].queue) <= most
