"""The attached executors: what each holds, and which one takes the next call.

Room is our own count: a context is taken from dispatch until the executor's terminal frame for that attempt. A call
that was cancelled with its task or its parent leaves a *zombie* here, which keeps the context. Calls aboard and zombies
are counted by the length of their dictionaries, and how many are runnable is the last heartbeat's count corrected by
what came aboard, left, began to wait and was resumed since; so nothing is counted twice, and nothing per plain call.

Root calls need room, subcalls do not: they take a context of their parent's executor, however many are taken. Else
parents that fill an executor would wait for ever for subcalls that find no place on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from blockx_executor.wire.messages import CancelCall, ExecuteCall, HeartbeatPayload, ResumeCall
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.records import Call

__all__ = ["HOGGED_MS", "BlackBox", "Executor", "ExecutorTable", "Zombie"]

HOGGED_MS = 200
"""An executor whose main thread one call has kept for so long, by two looks at its black box, gets nothing new.

Mostly it says so itself, earlier, by giving calls back. Native code that holds the interpreter keeps it from that."""


@attrs.frozen
class Zombie:
    """An attempt whose task or parent is gone; its executor has not reported its end yet."""

    call_id: str
    task_id: str
    attempt_seq: int
    call_no: int
    budget_ms: int
    cancelled_ms: int


@attrs.define
class BlackBox:
    """The last word of an executor's black box, and between which of our reads it said the same.

    Only our own clock counts: the page can be written by user code.
    """

    call_no: int = 0
    since: int = 0
    loading: bool = False
    first_ms: int = 0
    last_ms: int = 0
    reads: int = 0

    def read(self, call_no: int, since: int, now_ms: int, *, loading: bool) -> None:
        """One read of the page."""
        if not self.reads or (call_no, since, loading) != (self.call_no, self.since, self.loading):
            self.call_no, self.since, self.loading = call_no, since, loading
            self.first_ms = now_ms
            self.reads = 0
        self.last_ms = now_ms
        self.reads += 1

    @property
    def unchanged_ms(self) -> int:
        """How long the same was read; 0 after one read."""
        return self.last_ms - self.first_ms


class Executor:
    """One life of an executor process, from attach to loss.

    Why it may get no root calls although it has room: ``kill_message`` (we ordered its end), ``retiring`` (it has
    grown too large), ``yielding`` (another tenant needs it), ``stuck`` (it gave calls back and has not
    moved on since), ``apart`` (it is kept for calls that must run alone; ``alone`` is the one that does).
    """

    __slots__ = (
        "aboard",
        "alone",
        "apart",
        "box",
        "cancels",
        "culprit_no",
        "executor_id",
        "gone",
        "heard_active",
        "heard_ms",
        "heard_runnable",
        "held_back",
        "kill_message",
        "left",
        "memory_bytes",
        "outgoing",
        "resumes",
        "retiring",
        "running_attempt_seq",
        "running_call_id",
        "running_for_ms",
        "sidecars",
        "stuck",
        "stuck_at",
        "tenant",
        "tenant_ms",
        "usable_contexts",
        "waiting",
        "yielding",
        "zombies",
    )

    def __init__(self, executor_id: str, usable_contexts: int, now_ms: int) -> None:
        self.executor_id = executor_id
        self.usable_contexts = usable_contexts
        self.aboard: dict[str, Call] = {}
        self.zombies: dict[tuple[str, int], Zombie] = {}
        self.waiting = 0  # how many aboard are WAITING
        self.heard_ms = now_ms
        self.heard_runnable = 0
        self.heard_active = 0
        self.memory_bytes = 0
        self.running_call_id = ""
        self.running_attempt_seq = 0
        self.running_for_ms = 0
        self.box = BlackBox()
        self.kill_message = ""  # why we ordered to end it; empty while it is healthy
        self.culprit_no = 0
        self.gone = False
        self.retiring = ""
        self.stuck = False
        self.stuck_at: tuple[int, int] | None = None  # what the black box showed since
        self.held_back: list[Call] = []  # subcalls that wait for it to move on
        self.apart = False
        self.alone: Call | None = None
        self.tenant: str | None = None  # whose calls it has run, where that matters
        self.tenant_ms = 0
        self.yielding: str | None = None  # to which other tenant
        # only while one event is handled
        self.outgoing: list[ExecuteCall] = []
        self.resumes: list[ResumeCall] = []
        self.sidecars: list[bytes | None] = []
        self.cancels: list[CancelCall] = []
        self.left = 0

    @property
    def healthy(self) -> bool:
        """Nobody ordered its end."""
        return not self.kill_message

    @property
    def inflight(self) -> int:
        """Contexts taken, by our own count."""
        return len(self.aboard) + len(self.zombies)

    @property
    def runnable(self) -> int:
        """Calls that want the main thread: the heartbeat's count and what came and went since."""
        return max(self.heard_runnable + self.active - self.heard_active, 0)

    @property
    def active(self) -> int:
        """Attempts that wait for nothing."""
        return len(self.aboard) + len(self.zombies) - self.waiting

    def hear(self, heartbeat: HeartbeatPayload, now_ms: int) -> None:
        """Take over a heartbeat; an executor that is about to leave says so with no available contexts."""
        self.heard_ms = now_ms
        self.heard_runnable = heartbeat.runnable_count
        self.heard_active = self.active
        self.usable_contexts = heartbeat.inflight_count + heartbeat.available_contexts
        self.memory_bytes = heartbeat.memory_bytes
        self.running_call_id = heartbeat.running_call_id or ""
        self.running_attempt_seq = heartbeat.running_attempt_seq
        self.running_for_ms = heartbeat.running_for_ms

    def bound(self, call_no: int) -> Call | Zombie | None:
        """The attempt with this number, if this executor holds it. For rare questions: it looks at all."""
        if not call_no:
            return None
        return next((attempt for attempt in self.held() if attempt.call_no == call_no), None)

    def held(self) -> Iterator[Call | Zombie]:
        """All attempts that take a context."""
        yield from self.aboard.values()
        yield from self.zombies.values()

    def running(self) -> Call | Zombie | None:
        """The attempt that owns the main thread: by the black box, else by the last heartbeat."""
        if owner := self.bound(self.box.call_no):
            return owner
        call = self.aboard.get(self.running_call_id)
        if call is not None and call.attempt_seq == self.running_attempt_seq:
            return call
        return self.zombies.get((self.running_call_id, self.running_attempt_seq))

    def stalled(self, timeout_ms: int) -> bool:
        """One call has kept the main thread for longer than ``timeout_ms``."""
        if self.running_for_ms > timeout_ms:
            return True
        return self.box.unchanged_ms > timeout_ms and self.bound(self.box.call_no) is not None

    def _hogged(self) -> bool:
        return self.box.unchanged_ms >= HOGGED_MS and self.bound(self.box.call_no) is not None

    def room(self, config: DispatcherConfig, now_ms: int, depth: int) -> int:
        """How many more root calls it may take now, runnable ones up to ``depth``; 0 when it may not be chosen."""
        return 0 if self.apart else self.vacancies(config, now_ms, depth)

    def vacancies(self, config: DispatcherConfig, now_ms: int, depth: int) -> int:
        """The same for calls that must run alone."""
        if (
            not self.healthy
            or self.stuck
            or self.retiring
            or self.yielding is not None
            or now_ms - self.heard_ms > config.heartbeat_timeout_ms
            or (0 < config.executor_memory_high_watermark <= self.memory_bytes)
            or self.stalled(config.scheduler_stall_timeout_ms)
            or self._hogged()
        ):
            return 0
        inflight = self.inflight
        return max(
            min(
                self.usable_contexts - inflight,
                config.executor_max_inflight - inflight,
                depth - self.runnable,
            ),
            0,
        )


class ExecutorTable:
    """All attached executors, ordered by id as people count: exec-2 before exec-10."""

    __slots__ = ("_by_id", "ordered")

    def __init__(self) -> None:
        self._by_id: dict[str, Executor] = {}
        self.ordered: list[Executor] = []

    def __len__(self) -> int:
        return len(self.ordered)

    def get(self, executor_id: str) -> Executor | None:
        """The attached executor of that id."""
        return self._by_id.get(executor_id)

    def add(self, executor: Executor) -> None:
        """Attach an executor whose id is free."""
        self._by_id[executor.executor_id] = executor
        self.ordered = sorted(self._by_id.values(), key=_numeric_aware)

    def remove(self, executor: Executor) -> None:
        """Forget an executor."""
        del self._by_id[executor.executor_id]
        self.ordered.remove(executor)


def _numeric_aware(executor: Executor) -> tuple[list[tuple[int, str]], str]:
    """Digits compare by value: a shorter number is smaller, and equally long ones compare as texts."""
    parts = re.split(r"([0-9]+)", executor.executor_id)
    key = [
        (0, part) if index % 2 == 0 else (len(part.lstrip("0")), part.lstrip("0"))
        for index, part in enumerate(parts)
    ]
    return key, executor.executor_id
