"""The dispatcher's books: all records, and what goes out while one event is handled.

Frames for executors are collected on the executors and leave together when the event has been handled: what starts a
call before what answers or stops it. How calls end is in `ends`, and what follows for equal ones in `flights`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from blockx_executor.wire.messages import CancelCall, CancelCallPayload, ResumeCall, ResumeCallPayload
from blockx_worker.dispatch.cache import CallCache
from blockx_worker.dispatch.commands import (
    CancelCalls,
    DispatchCalls,
    DispatchCommand,
    DispatchDropped,
    ResumeCalls,
)
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.executors import Executor, ExecutorTable
from blockx_worker.dispatch.fairness import InstanceFair
from blockx_worker.dispatch.records import Call, TaskCalls
from blockx_worker.dispatch.states import TRANSITIONS
from blockx_worker.dispatch.tenants import TenantLines
from blockx_worker.dispatch.turn_order import RoundRobin, TaskLines

__all__ = ["DispatchBooks", "advance", "post_cancel", "post_resume", "send_posted"]


class DispatchBooks:
    """All that the dispatcher knows.

    ``dirty``: tasks whose epilogue (stop, drain, settle, converge) has something to look at. ``suspects``: READY calls
    that must run alone, and some that are over. ``stirred``: something happened since the last turn that may let a call
    go on. ``posted``: frames lie on executors. ``discarded``: caches of ended tasks, taken apart in turns.
    """

    __slots__ = (
        "config",
        "dirty",
        "discarded",
        "done_before",
        "dropped",
        "executors",
        "jitter",
        "last_call_no",
        "last_subcall",
        "order",
        "posted",
        "stirred",
        "suspects",
        "tasks",
    )

    def __init__(self, config: DispatcherConfig, jitter: Callable[[], float]) -> None:
        self.config = config
        self.jitter = jitter
        self.tasks: dict[str, TaskCalls] = {}
        self.executors = ExecutorTable()
        self.order = _lines(config)
        self.dirty: dict[str, TaskCalls] = {}
        self.suspects: deque[Call] = deque()
        self.discarded: deque[CallCache] = deque()
        self.last_call_no = 0
        self.last_subcall = 0
        self.dropped: Counter[str] = Counter()
        self.done_before = 0
        self.stirred = False
        self.posted = False

    def wake(self, task: TaskCalls) -> None:
        """The task can go on, as far as it knows."""
        task.window_full = False
        self.order.wake(task)
        self.stirred = True

    def soil(self, task: TaskCalls) -> None:
        """The task's epilogue must be looked at."""
        self.dirty[task.task_id] = task
        self.stirred = True

    def enqueue(self, call: Call, *, first: bool = False) -> None:
        """A root call needs an executor, and nothing else; ``first``: before the others of its task."""
        if call.suspect:
            self.suspects.append(call)
            self.stirred = True
            return
        if first:
            call.task.ready.appendleft(call)
        else:
            call.task.ready.append(call)
        self.wake(call.task)

    def withdraw(self, call: Call) -> None:
        """A root call that was put in a queue needs no executor after all."""
        if call.suspect:
            self.suspects.remove(call)
        else:
            call.task.ready.remove(call)

    def discard_cache(self, task: TaskCalls) -> None:
        """The task looks nothing up any more."""
        if task.cache:
            self.discarded.append(task.cache)
            task.cache = CallCache(0)
            self.stirred = True

    def drop(
        self, out: list[DispatchCommand], event: str, reason: str, call_id: str = "", count: int = 1
    ) -> None:
        """Count and report something that came too late or for something else."""
        self.dropped[reason] += count
        out.append(DispatchDropped(event=event, reason=reason, call_id=call_id, count=count))


def advance(call: Call, step: str) -> None:
    """Move a call along the table of states; a step that is not there is a bug and raises KeyError."""
    call.state = TRANSITIONS[call.state, step]


def post_resume(
    books: DispatchBooks,
    call: Call,
    request_id: int,
    payload: ResumeCallPayload,
    sidecar: bytes | None = None,
) -> None:
    """Answer a request of a call that an executor holds."""
    executor = call.executor
    if executor is not None:
        executor.resumes.append(ResumeCall(call.call_id, request_id, payload))
        executor.sidecars.append(sidecar)
        books.posted = True


def post_cancel(books: DispatchBooks, call: Call, executor: Executor, reason: str) -> None:
    """Tell an executor to stop an attempt."""
    payload = CancelCallPayload(task_id=call.task.task_id, attempt_seq=call.attempt_seq, reason=reason)
    executor.cancels.append(CancelCall(call.call_id, payload))
    books.posted = True


def send_posted(books: DispatchBooks, out: list[DispatchCommand]) -> list[DispatchCommand]:
    """One command of a kind and executor: calls and answers before the other commands, cancels behind them."""
    calls: list[DispatchCommand] = []
    answers: list[DispatchCommand] = []
    cancels: list[DispatchCommand] = []
    for executor in books.executors.ordered:
        key = executor.executor_id
        if executor.outgoing:
            calls.append(DispatchCalls(executor_id=key, calls=executor.outgoing))
            executor.outgoing = []
        if executor.resumes:
            sidecars = executor.sidecars if any(part is not None for part in executor.sidecars) else ()
            answers.append(ResumeCalls(executor_id=key, frames=executor.resumes, sidecars=sidecars))
            executor.resumes, executor.sidecars = [], []
        if executor.cancels:
            cancels.append(CancelCalls(executor_id=key, calls=executor.cancels))
            executor.cancels = []
    books.posted = False
    return [*calls, *answers, *out, *cancels]


def _lines(config: DispatcherConfig) -> TaskLines:
    if config.executor_share != "all":
        return TenantLines(config.executor_share)
    return InstanceFair(config.instance_fairness_quantum) if config.instance_fairness else RoundRobin()
