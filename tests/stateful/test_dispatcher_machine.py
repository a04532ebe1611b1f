"""DispatcherCore beside its naive model: any events in any order, legal or not, under small limits; then all drains."""

from __future__ import annotations

import os

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from blockx_executor.wire.messages import ExecuteCall
from blockx_worker.dispatch import events as e
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
)
from blockx_worker.dispatch.config import DispatcherConfig, ExecutorShare
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.source import CallBatch
from tests.dispatch.driver import completed, failed, returned
from tests.stateful.dispatcher_model import DROPPED, DispatcherModel
from tests.stateful.dispatcher_talk import HOSTS, TASKS, TOO_LARGE, DispatcherTalk

picks = st.integers(0, 1000)
kinds = st.sampled_from(
    (
        "USER_ERROR",
        "USER_ERROR",
        "SOMETHING_NEW",
        "BUDGET_EXCEEDED",
        "OUTPUT_NOT_JSON",
        "CANCELLED",
        "DISPATCH_REFUSED",
    )
)


class DispatcherMachine(DispatcherTalk):
    """Every rule posts an event to the machine, to a twin of it and to the model."""

    @initialize(
        inflight=st.integers(1, 4),
        window=st.integers(1, 6),
        cache=st.sampled_from((0, 1 << 20)),
        batches=st.integers(1, 3),
        losses=st.integers(0, 2),
        fair=st.booleans(),
        quantum=st.integers(0, 3),
        kept=st.integers(0, 3),
        depth=st.sampled_from((1, 3, 4, 4)),
        share=st.sampled_from(("all", "all", "all", "instance", "task")),
        first=st.lists(st.integers(0, 3), min_size=3, max_size=9),
        fast_fail=st.booleans(),
    )
    def begin(  # noqa: PLR0917  # rules are called by keyword
        self,
        inflight: int,
        window: int,
        cache: int,
        batches: int,
        losses: int,
        fair: bool,
        quantum: int,
        kept: int,
        depth: int,
        share: ExecutorShare,
        first: list[int],
        fast_fail: bool,
    ) -> None:
        config = DispatcherConfig(
            executor_max_inflight=inflight,
            task_max_inflight_calls=window,
            call_cache_bytes=cache,
            max_outstanding_batches=batches,
            max_uncharged_losses=losses,
            instance_fairness=fair,
            instance_fairness_quantum=quantum,
            failed_calls_kept=kept,
            max_subcall_depth=depth,
            executor_share=share,
            executor_memory_recycle_bytes=TOO_LARGE,
            heartbeat_timeout_ms=1000,
            scheduler_stall_timeout_ms=1_000_000,
            cancel_kill_ms=300,
            wedge_grace_ms=100,
            function_load_timeout_ms=700,
        )
        self.core = DispatcherCore(config, jitter=lambda: 0.0)
        self.twin = DispatcherCore(config, jitter=lambda: 0.0)
        self.model = DispatcherModel(
            max_inflight=inflight,
            max_losses=losses,
            max_batches=batches,
            max_depth=depth,
            share=share,
            too_large=TOO_LARGE,
            caches=bool(cache),
            heartbeat_timeout_ms=1000,
            grace_ms=100,
            cancel_kill_ms=300,
            load_ms=700,
        )
        self.now = 0
        self.history: list[ExecuteCall] = []
        self.armed: list[ArmCallRetry] = []
        self.outputs = 0
        self.requests = 0
        for host_id in HOSTS[:2]:
            self.attach(host_id, 4)
        self.begin_task("a", first, fast_fail)
        self.turns_until_quiet(20)

    # --- tasks

    @precondition(lambda self: len(self.model.tasks) < len(TASKS))
    @rule(
        task_id=st.sampled_from(TASKS),
        keys=st.lists(st.integers(0, 3), max_size=9),
        fast_fail=st.booleans(),
        attempts=st.integers(1, 3),
        rows=st.integers(1, 4),
        limit=st.sampled_from((0, 0, 0, 3)),
        budget=st.sampled_from((0, 200)),
        instance=st.sampled_from("xy"),
        streams=st.sampled_from((False, False, True)),
    )
    def start_task(  # noqa: PLR0917  # rules are called by keyword
        self,
        task_id: str,
        keys: list[int],
        fast_fail: bool,
        attempts: int,
        rows: int,
        limit: int,
        budget: int,
        instance: str,
        streams: bool,
    ) -> None:
        if limit:
            keys = list(range(len(keys)))  # shared outputs are served unseen, so the model could not count
            streams = False
        self.begin_task(task_id, keys, fast_fail, attempts, rows, limit, budget, instance, streams)

    @precondition(lambda self: any(task.streams for task in self.live_tasks()))
    @rule(pick=picks, keys=st.lists(st.integers(0, 3), max_size=4), wrong=st.integers(0, 19))
    def produce(self, pick: int, keys: list[int], wrong: int) -> None:
        """Mostly a batch of a stream that is open; once in a while without credit, too late or out of order."""
        tasks = [task for task in self.model.tasks.values() if task.streams]
        task = tasks[pick % len(tasks)]
        args = [b"[%d]" % key for key in keys]
        first = len(task.rows) + (wrong == 1)
        expected = [DROPPED]
        if not task.stopping and task.production_open and task.batches < task.granted:
            expected = []
            if wrong == 1:
                task.stopping = task.broken = True
            else:
                task.batches += 1
                task.add_rows(args)
        batch = CallBatch(first, [msgspec.Raw(arg) for arg in args])
        self.fact(e.CallBatchProduced(task_id=task.task_id, batch=batch), expected)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks, fails=st.booleans())
    def end_production(self, pick: int, fails: bool) -> None:
        tasks = list(self.model.tasks.values())
        self.end_stream(tasks[pick % len(tasks)], fails=fails)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks)
    def drop_task(self, pick: int) -> None:
        ids = list(self.model.tasks) if self.model.tasks and pick % 8 else TASKS
        task_id = ids[pick // 8 % len(ids)]
        self.fact(e.TaskCallsDropped(task_id=task_id, reason="over"), self.model.drop(task_id, self.now))

    # --- turns

    @precondition(lambda self: self.core.turn_pending)
    @rule(max_calls=st.integers(1, 6))
    def turn(self, max_calls: int) -> None:
        self.one_turn(max_calls)

    @precondition(lambda self: self.core.turn_pending)
    @rule(max_calls=st.integers(1, 20))
    def all_turns(self, max_calls: int) -> None:
        self.turns_until_quiet(max_calls)

    # --- frames

    @precondition(lambda self: self.held())
    @rule(pick=picks, count=st.integers(1, 4))
    def complete(self, pick: int, count: int) -> None:
        first = pick % len(self.held())
        host_id, _ = self.held()[first]
        calls = [call for other, call in self.held()[first:] if other == host_id][: self.at_most(count)]
        self.frames(host_id, [completed(call, self.output(), run_us=7) for call in calls])

    @precondition(lambda self: self.held())
    @rule(count=st.integers(1, 3), ok=st.booleans(), kind=kinds)
    def end_newest(self, count: int, ok: bool, kind: str) -> None:
        """The way that trees end: from below."""
        for _ in range(count):
            if self.held():
                host_id, call = max(self.held(), key=lambda held: held[1].payload.call_no)
                self.frames(host_id, [completed(call, self.output()) if ok else failed(call, kind)])

    @precondition(lambda self: self.held())
    @rule(pick=picks, kind=kinds, retryable=st.booleans())
    def fail(self, pick: int, kind: str, retryable: bool) -> None:
        host_id, call = self.held()[pick % len(self.held())]
        self.frames(host_id, [failed(call, kind, retryable=retryable)])

    @precondition(lambda self: self.history)
    @rule(host=picks, picked=st.lists(picks, min_size=1, max_size=3), ok=st.booleans())
    def any_frames(self, host: int, picked: list[int], ok: bool) -> None:
        """Frames of any attempt that ever was, from anywhere: most are stale or forged."""
        calls = [self.history[-1 - pick % len(self.history)] for pick in picked[: self.at_most(3)]]
        frames = [
            completed(call, self.output()) if ok else failed(call, "USER_ERROR", retryable=True)
            for call in calls
        ]
        self.frames(self.host_of(host), frames)

    @precondition(lambda self: self.held())
    @rule(pick=picks, count=st.integers(1, 4), stray=st.booleans(), host=picks)
    def give_back(self, pick: int, count: int, stray: bool, host: int) -> None:
        """Some that were never started, all that is there, or something that never was there."""
        host_id, _ = self.held()[pick % len(self.held())]
        calls = [call for other, call in self.held() if other == host_id][-count:]
        if stray:
            host_id = self.host_of(host)
            calls = [self.history[-1 - pick % len(self.history)]]
        back = [returned(call) for call in calls]
        expected = self.model.given_back(host_id, back)
        self.fact(e.CallsGivenBack(executor_id=host_id, calls=back, reason="slow"), expected)

    # --- waits

    @precondition(lambda self: self.history)
    @rule(pick=picks, stray=st.integers(0, 9), again=picks)
    def ask_io(self, pick: int, stray: int, again: int) -> None:
        host_id, call = self.asking(pick, stray=stray == 0)
        self.io(host_id, call, self.request(again))

    @precondition(lambda self: self.history)
    @rule(pick=picks, stray=st.integers(0, 9), which=picks)
    def answer_io(self, pick: int, stray: int, which: int) -> None:
        host_id, call = self.asking(pick, stray=stray == 0)
        waiting_ones = [
            (host_id, held.call, request_id)
            for host_id, host in self.model.hosts.items()
            for held in host.held.values()
            for request_id, subcall in held.row.requests.items()
            if subcall is None
        ]
        request_id = which % (self.requests + 1)
        if waiting_ones and stray:
            host_id, call, request_id = waiting_ones[which % len(waiting_ones)]
        self.io_over(host_id, call, request_id)

    # --- subcalls

    @precondition(lambda self: self.history)
    @rule(pick=picks, stray=st.integers(0, 9), key=st.integers(0, 4), how=st.integers(0, 9), again=picks)
    def call_another(self, pick: int, stray: int, key: int, how: int, again: int) -> None:
        host_id, call = self.asking(pick, stray=stray == 0)
        self.subcall(host_id, call, self.request(again), key, how)

    @precondition(lambda self: self.held())
    @rule(pick=picks, keys=st.lists(st.integers(0, 3), min_size=2, max_size=5), last=st.booleans())
    def gather(self, pick: int, keys: list[int], last: bool) -> None:
        """Several at once, from any call or from the newest, so that trees grow deep."""
        host_id, call = self.held()[-1] if last else self.asking(pick, stray=False)
        for key in keys:
            self.requests += 1
            self.subcall(host_id, call, self.requests, key, 9)

    @precondition(lambda self: len(self.held()) > 1)
    @rule(pick=picks, other=picks, deep=st.booleans())
    def cross(self, pick: int, other: int, deep: bool) -> None:
        """Two calls ask for each other's work, if they may."""
        pairs = [self.held()[pick % len(self.held())], self.held()[other % len(self.held())]]
        for asking, (_, wanted) in zip(pairs, reversed(pairs), strict=True):
            key = int(bytes(wanted.payload.args)[1:-1])
            self.requests += 2
            if deep:
                self.subcall(*asking, self.requests - 1, 4, 9)
            self.subcall(*(self.held()[-1] if deep else asking), self.requests, key, 9)

    @precondition(lambda self: self.history)
    @rule(pick=picks, stray=st.booleans(), host=picks)
    def refuse(self, pick: int, stray: bool, host: int) -> None:
        host_id = self.host_of(host)
        if self.held() and not stray:
            host_id, call = self.held()[pick % len(self.held())]
        else:
            call = self.history[-1 - pick % len(self.history)]
        expected = self.model.refused(host_id, [call.call_id], self.now)
        self.fact(e.DispatchRefused(executor_id=host_id, call_ids=[call.call_id]), expected)

    @precondition(lambda self: self.armed)
    @rule(pick=picks, late=st.booleans())
    def retry(self, pick: int, late: bool) -> None:
        self.time_is_up(self.armed[-1 - pick % len(self.armed)])

    # --- executors

    @precondition(lambda self: len(self.model.hosts) < len(HOSTS))
    @rule(host_id=st.sampled_from(HOSTS), contexts=st.integers(0, 4))
    def attach_host(self, host_id: str, contexts: int) -> None:
        self.attach(host_id, contexts)

    @precondition(lambda self: self.held() and len(self.model.hosts) > 1)
    @rule(pick=picks, losses=st.integers(1, 2), box=st.booleans())
    def haunt(self, pick: int, losses: int, box: bool) -> None:
        """A host dies, once or twice, with all that was started there."""
        host_id, _ = self.held()[pick % len(self.held())]
        for _ in range(losses):
            for other, call in self.held():
                if other == host_id and box:
                    self.read(host_id, call.payload.call_no, self.now, loading=False)
                elif other == host_id:
                    self.requests += 1
                    self.io(host_id, call, self.requests)
            self.lose_host(host_id, -9, by_us=False)
            self.attach(host_id, 4)
            self.turns_until_quiet(20)

    @precondition(lambda self: self.held())
    @rule(
        host=picks,
        exit_code=st.sampled_from((None, 1, -9, -11)),
        by_us=st.booleans(),
        pick=picks,
        known=st.booleans(),
    )
    def lose(self, host: int, exit_code: int | None, by_us: bool, pick: int, known: bool) -> None:
        self.lose_host(self.host_of(host), exit_code, by_us=by_us, pick=pick, known=known)

    @precondition(lambda self: self.held())
    @rule(host=picks, contexts=st.integers(0, 4), memory=st.integers(0, 11))
    def heartbeat(self, host: int, contexts: int, memory: int) -> None:
        self.beat(self.host_of(host), contexts, memory=TOO_LARGE + 1 if memory == 0 else TOO_LARGE)

    @precondition(lambda self: self.held())
    @rule(host=picks, pick=picks, since=st.integers(1, 2), loading=st.booleans())
    def observe(self, host: int, pick: int, since: int, loading: bool) -> None:
        host_id = self.host_of(host)
        known = self.model.hosts.get(host_id)
        numbers = [held.call.payload.call_no for held in known.held.values()] if known else []
        number = [0, 999, *numbers * 2][-1 - pick % (2 + 2 * len(numbers))]
        self.read(host_id, number, since, loading=loading)

    @precondition(lambda self: self.held())
    @rule(pick=picks, gap=st.integers(0, 900), loading=st.booleans(), beats=st.booleans())
    def stare(self, pick: int, gap: int, loading: bool, beats: bool) -> None:
        """Two equal reads of a call that is there, and a look at it."""
        host_id, call = self.held()[pick % len(self.held())]
        self.read(host_id, call.payload.call_no, 3, loading=loading)
        self.now += gap
        if beats:
            self.beat(host_id, 4)
        self.read(host_id, call.payload.call_no, 3, loading=loading)
        self.sweep(0)

    @precondition(lambda self: self.held())
    @rule(gap=st.integers(0, 500))
    def sweep(self, gap: int) -> None:
        self.now += gap
        self.model.judge_sweep(self.post(e.ExecutorsSwept()), self.now)

    # --- always, and at the end

    @invariant()
    def counts_agree(self) -> None:
        for view in self.core.executors():
            assert view.inflight == len(self.model.hosts[view.executor_id].held)
            assert view.healthy is not self.model.hosts[view.executor_id].killed
        for task_id, task in self.model.tasks.items():
            progress = self.core.progress(task_id)
            assert progress is not None
            assert progress.inflight == sum(bool(row.executor) for row in task.rows)

    def teardown(self) -> None:
        """Whatever has happened: with a healthy executor every task comes to its end, each output at its place."""
        if not hasattr(self, "core"):
            return
        for host_id in HOSTS:
            self.lose_host(host_id, -9, by_us=False)
        self.attach("exec-1", 4)
        for task in list(self.model.tasks.values()):
            self.end_stream(task, fails=False)
        for _ in range(300):
            self.now += 500
            for host_id in HOSTS:
                if host_id in self.model.hosts:
                    self.beat(host_id, 4)
            self.turns_until_quiet(7)
            if all(task.converged for task in self.model.tasks.values()):
                break
            self.everybody_goes_on()
        assert all(task.converged for task in self.model.tasks.values()), "everything comes to its end"
        assert not self.held(), "no orphan is bound anywhere"
        for task_id in list(self.model.tasks):
            self.fact(e.TaskCallsDropped(task_id=task_id, reason="over"), self.model.drop(task_id, self.now))
        while self.core.turn_pending:
            self.one_turn(7)


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)
