"""The door of the dispatcher: one method that changes anything, and reads.

The machine is split by subject; the modules share `books`, and each is small enough to be read at once:

* `turn`: new work in slices (`DispatchTurn`); `turn_order`, `fairness`, `tenants`: whose; `seats`: where; `launch`: how;
* `waits`, `subcalls`: what running calls ask for; `trees`: what ends with them; `flights`: equal calls run once;
* `attempts`: ends of attempts, retries; `losses`: blame; `failures`: their texts and rules; `ends`: the books;
* `suspects`, `recycling`, `wedge`: who runs alone, what is renewed, whom to kill;
* `streams`: calls that are made meanwhile; `epilogue`: stop, drain, settle, converge;
* `records`, `executors`, `states`, `cache`: what is remembered; `views`, `invariants`: what is shown and checked.

Facts are booked at once and start nothing. `turn_pending` says that a turn would go on with something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from blockx_worker.dispatch.attempts import calls_finished, calls_given_back, dispatch_refused, retry_due
from blockx_worker.dispatch.books import DispatchBooks, send_posted
from blockx_worker.dispatch.commands import CallsStatistic, DispatchCommand
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.epilogue import drop_task, statistic_of
from blockx_worker.dispatch.events import (
    CallBatchProduced,
    CallProductionEnded,
    CallRetryDue,
    CallsFinished,
    CallsGivenBack,
    CallWaitOver,
    CallWaitRequested,
    DispatchEvent,
    DispatchRefused,
    DispatchTurn,
    ExecutorAttached,
    ExecutorHeartbeat,
    ExecutorLost,
    ExecutorObserved,
    ExecutorsSwept,
    SubcallRequested,
    TaskCallsDropped,
    TaskCallsStarted,
)
from blockx_worker.dispatch.executors import Executor
from blockx_worker.dispatch.invariants import check_books
from blockx_worker.dispatch.losses import executor_lost
from blockx_worker.dispatch.records import TaskCalls
from blockx_worker.dispatch.recycling import judge_memory
from blockx_worker.dispatch.signs import note_black_box, note_heartbeat
from blockx_worker.dispatch.source import ResolvedFunction
from blockx_worker.dispatch.streams import batch_produced, grant_batches, production_ended
from blockx_worker.dispatch.subcalls import subcall_requested
from blockx_worker.dispatch.turn import run_turn
from blockx_worker.dispatch.views import CallView, ExecutorView, call_view, executor_views, progress_of
from blockx_worker.dispatch.waits import wait_over, wait_requested
from blockx_worker.dispatch.wedge import sweep
from blockx_worker.model.watch import TaskProgress

__all__ = ["DispatcherCore"]


class DispatcherCore:
    """Calls of all tasks over all executors. ``jitter`` gives numbers from 0 to 1 for back-offs."""

    def __init__(self, config: DispatcherConfig, *, jitter: Callable[[], float]) -> None:
        self._books = DispatchBooks(config, jitter)

    def handle(self, event: DispatchEvent, now_ms: int) -> list[DispatchCommand]:
        """Let one thing happen; ``now_ms`` is core time and never goes back."""
        out: list[DispatchCommand] = []
        self._happen(event, now_ms, out)
        return send_posted(self._books, out) if self._books.posted else out

    def _happen(  # noqa: C901, PLR0912  # one case per event
        self, event: DispatchEvent, now_ms: int, out: list[DispatchCommand]
    ) -> None:
        books = self._books
        match event:
            case CallsFinished():
                calls_finished(books, event, now_ms, out)
            case DispatchTurn():
                run_turn(books, event.max_calls, now_ms, out)
            case CallWaitRequested():
                wait_requested(books, event, out)
            case CallWaitOver():
                wait_over(books, event, out)
            case SubcallRequested():
                subcall_requested(books, event, out)
            case CallRetryDue():
                retry_due(books, event, out)
            case CallsGivenBack():
                calls_given_back(books, event, out)
            case DispatchRefused():
                dispatch_refused(books, event, now_ms, out)
            case CallBatchProduced():
                batch_produced(books, event, out)
            case CallProductionEnded():
                production_ended(books, event, out)
            case TaskCallsStarted():
                self._start(event, out)
            case TaskCallsDropped():
                self._drop(event, now_ms, out)
            case ExecutorAttached():
                self._attach(event, now_ms, out)
            case ExecutorHeartbeat():
                self._hear(event, now_ms, out)
            case ExecutorObserved():
                self._observe(event, now_ms, out)
            case ExecutorLost():
                executor_lost(books, event, now_ms, out)
            case ExecutorsSwept():
                sweep(books, now_ms, out)
            case _:
                assert_never(event)

    @property
    def turn_pending(self) -> bool:
        """A `DispatchTurn` would go on with something; False while all that is left waits for an event."""
        books = self._books
        return books.stirred and bool(books.order or books.dirty or books.discarded or books.suspects)

    @property
    def has_attached_executor(self) -> bool:
        """At least one executor is attached and not on its way out."""
        return any(executor.healthy for executor in self._books.executors.ordered)

    @property
    def calls_done(self) -> int:
        """Calls that succeeded or failed, over all tasks so far."""
        books = self._books
        return books.done_before + sum(task.succeeded + task.failed for task in books.tasks.values())

    @property
    def dropped(self) -> dict[str, int]:
        """How often something came too late or for something else, by reason."""
        return dict(self._books.dropped)

    def progress(self, task_id: str) -> TaskProgress | None:
        """How far a task is; None when it is not known (not yet, or dropped)."""
        task = self._books.tasks.get(task_id)
        return None if task is None else progress_of(task)

    def statistic(self, task_id: str) -> CallsStatistic | None:
        """The books of a task as they stand; None when it is not known."""
        task = self._books.tasks.get(task_id)
        return None if task is None else statistic_of(task)

    def executors(self) -> tuple[ExecutorView, ...]:
        """All attached executors, ordered by id."""
        return executor_views(self._books)

    def call(self, call_id: str) -> CallView | None:
        """A call that is in its task's window; None before and after."""
        return call_view(self._books, call_id)

    def code_wanted(self, executor_id: str, call_id: str, digest: str) -> ResolvedFunction | None:
        """The function of a call, if this executor holds the call and the function's code has this digest."""
        executor = self._books.executors.get(executor_id)
        call = None if executor is None else executor.aboard.get(call_id)
        if call is None or call.function.digest != digest:
            return None
        return call.function

    def digest_bound(self, executor_id: str, digest: str) -> bool:
        """This executor holds a call of a function whose code has this digest."""
        executor = self._books.executors.get(executor_id)
        return executor is not None and any(
            call.function.digest == digest for call in executor.aboard.values()
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when kept counts differ from recomputed ones or a call is where it cannot be."""
        check_books(self._books)

    def _start(self, event: TaskCallsStarted, out: list[DispatchCommand]) -> None:
        books = self._books
        if event.task_id in books.tasks:
            books.drop(out, "TaskCallsStarted", "task is already known")
            return
        # A zombie of an earlier task with this id must not answer for a call of this one.
        floor = max(
            (
                zombie.attempt_seq
                for executor in books.executors.ordered
                for zombie in executor.zombies.values()
                if zombie.task_id == event.task_id
            ),
            default=0,
        )
        task = TaskCalls(event, call_cache_bytes=books.config.call_cache_bytes, attempt_floor=floor)
        books.tasks[event.task_id] = task
        books.order.join(task)
        books.wake(task)
        grant_batches(task, books.config.max_outstanding_batches, out)

    def _drop(self, event: TaskCallsDropped, now_ms: int, out: list[DispatchCommand]) -> None:
        task = self._books.tasks.get(event.task_id)
        if task is None:
            self._books.drop(out, "TaskCallsDropped", "task is not known")
        else:
            drop_task(self._books, task, event.reason, now_ms)

    def _attach(self, event: ExecutorAttached, now_ms: int, out: list[DispatchCommand]) -> None:
        if self._books.executors.get(event.executor_id) is not None:
            self._books.drop(out, "ExecutorAttached", "executor is already attached")
            return
        self._books.executors.add(Executor(event.executor_id, event.usable_contexts, now_ms))
        self._books.stirred = True

    def _hear(self, event: ExecutorHeartbeat, now_ms: int, out: list[DispatchCommand]) -> None:
        executor = self._books.executors.get(event.executor_id)
        if executor is None:
            self._books.drop(out, "ExecutorHeartbeat", "executor is not attached")
            return
        executor.hear(event.heartbeat, now_ms)
        note_heartbeat(self._books, executor)
        judge_memory(self._books.config, executor, out)
        self._books.stirred = True

    def _observe(self, event: ExecutorObserved, now_ms: int, out: list[DispatchCommand]) -> None:
        executor = self._books.executors.get(event.executor_id)
        if executor is None:
            self._books.drop(out, "ExecutorObserved", "executor is not attached")
            return
        executor.box.read(event.call_no, event.since, now_ms, loading=event.loading)
        note_black_box(self._books, executor)
        self._books.stirred = True
