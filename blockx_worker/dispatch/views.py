"""What the dispatcher shows: frozen copies, so that no reader can change a record or keep one alive."""

from __future__ import annotations

import re

import attrs

from blockx_worker.dispatch.books import DispatchBooks
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.records import NOT_CANCELLED, Call, TaskCalls
from blockx_worker.dispatch.source import ResolvedFunction
from blockx_worker.dispatch.states import CallState
from blockx_worker.model.watch import TaskProgress

__all__ = ["CallView", "ExecutorView", "call_view", "executor_views", "progress_of"]

_SUBCALLS = re.compile(r"(/sub-[0-9]+)+\Z")


@attrs.frozen(kw_only=True)
class ExecutorView:
    """An attached executor.

    ``inflight`` is our own count of contexts taken, ``waiting`` how many of them wait for answers, ``runnable`` an
    estimate. ``message``: why it is not healthy, or gets no new calls for good.
    """

    executor_id: str
    healthy: bool
    inflight: int
    waiting: int
    runnable: int
    memory_bytes: int
    running_call_id: str
    message: str = ""


@attrs.frozen(kw_only=True)
class CallView:
    """A call in the window of its task, or below one; ``executor_id`` empty while no executor holds it.

    A subcall has the index of its root call; ``parent_call_id`` is empty for a root call.
    """

    call_id: str
    task_id: str
    index: int
    state: CallState
    attempt_seq: int
    executor_id: str
    cancelling: bool
    function: ResolvedFunction
    parent_call_id: str = ""
    open_requests: int = 0


def executor_views(books: DispatchBooks) -> tuple[ExecutorView, ...]:
    """All attached executors, ordered by id."""
    return tuple(_executor_view(executor) for executor in books.executors.ordered)


def call_view(books: DispatchBooks, call_id: str) -> CallView | None:
    """A call that is in its task's window, or below one; None before and after."""
    root_id = _SUBCALLS.sub("", call_id)
    task = books.tasks.get(root_id.rpartition("/")[0])
    call = None if task is None else task.calls.get(call_id) or task.subcalls.get(call_id)
    return None if call is None else _call_view(call)


def progress_of(task: TaskCalls) -> TaskProgress:
    """How far the calls of a task are."""
    return TaskProgress(
        total=task.source.total, succeeded=task.succeeded, failed=task.failed, inflight=task.inflight
    )


def _executor_view(executor: Executor) -> ExecutorView:
    running = executor.running()
    return ExecutorView(
        executor_id=executor.executor_id,
        healthy=executor.healthy,
        inflight=executor.inflight,
        waiting=executor.waiting,
        runnable=executor.runnable,
        memory_bytes=executor.memory_bytes,
        running_call_id="" if running is None else running.call_id,
        message=executor.kill_message or executor.retiring,
    )


def _call_view(call: Call) -> CallView:
    return CallView(
        call_id=call.call_id,
        task_id=call.task.task_id,
        index=call.index,
        state=call.state,
        attempt_seq=call.attempt_seq,
        executor_id="" if call.executor is None else call.executor.executor_id,
        cancelling=call.cancelled_ms != NOT_CANCELLED,
        function=call.function,
        parent_call_id="" if call.sub is None else call.sub.parent.call_id,
        open_requests=len(call.waits or ()),
    )
