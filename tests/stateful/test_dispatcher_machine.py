"""DispatcherCore beside its naive model: any events in any order, legal or not, under small limits; then all drains."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    CallFailed,
    CallFailedPayload,
    ExecuteCall,
    HeartbeatPayload,
)
from blockx_worker.dispatch import events as e
from blockx_worker.dispatch.commands import ArmCallRetry, DispatchCalls, DispatchCommand
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.source import ListSource, ResolvedFunction
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy
from tests.stateful.dispatcher_model import DispatcherModel, Fact, Host, Row, Task, short

FUNCTION = ResolvedFunction("m.f", "d" * 64, "f")
TASKS = ("a", "b", "c")
HOSTS = ("exec-0", "exec-1", "exec-2")

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


def completed(call: ExecuteCall, output: bytes) -> CallCompleted:
    sent = call.payload
    payload = CallCompletedPayload(
        task_id=sent.task_id, attempt_seq=sent.attempt_seq, output=msgspec.Raw(output), run_us=len(output)
    )
    return CallCompleted(call.call_id, payload)


def failed(call: ExecuteCall, kind: str, *, retryable: bool) -> CallFailed:
    sent = call.payload
    payload = CallFailedPayload(
        task_id=sent.task_id,
        attempt_seq=sent.attempt_seq,
        error_kind=kind,
        error_message="boom",
        retryable=retryable,
    )
    return CallFailed(call.call_id, payload)


class DispatcherMachine(RuleBasedStateMachine):
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
        for host_id in HOSTS[:2]:
            self.attach(host_id, 4)

    # --- posting

    def post(self, event: e.DispatchEvent, twin: e.DispatchEvent | None = None) -> list[DispatchCommand]:
        commands = self.core.handle(event, self.now)
        assert self.twin.handle(twin or event, self.now) == commands, "the same inputs give the same commands"
        self.core.check_invariants()
        for command in commands:
            if isinstance(command, DispatchCalls):
                self.history.extend(command.calls)
            elif isinstance(command, ArmCallRetry):
                self.armed.append(command)
        return commands

    def fact(self, event: e.DispatchEvent, expected: list[Fact]) -> None:
        said = short(self.post(event))
        drops = [sum(fact[2] for fact in facts if fact[0] == "dropped") for facts in (said, expected)]
        assert drops[0] == drops[1]
        rest = [sorted(fact for fact in facts if fact[0] != "dropped") for facts in (said, expected)]
        assert rest[0] == rest[1]

    def one_turn(self, max_calls: int) -> None:
        self.model.judge_turn(self.post(e.DispatchTurn(max_calls=max_calls)), max_calls, self.now)

    def held(self) -> list[tuple[str, ExecuteCall]]:
        return [
            (host_id, held.call) for host_id, host in self.model.hosts.items() for held in host.held.values()
        ]

    def host_of(self, pick: int) -> str:
        """Seven times in eight an attached executor, so that most events fit; else any id."""
        ids = list(self.model.hosts) if self.model.hosts and pick % 8 else HOSTS
        return ids[pick // 8 % len(ids)]

    def output(self) -> bytes:
        self.outputs += 1
        return b"%d" % self.outputs

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
    ) -> None:
        if limit:
            keys = list(range(len(keys)))  # shared outputs are served unseen, so the model could not count
        args = [b"[%d]" % key for key in keys]
        event, twin = (
            e.TaskCallsStarted(
                task_id=task_id,
                instance_id=instance,
                source=ListSource(FUNCTION, [msgspec.Raw(arg) for arg in args], batch_max_rows=rows),
                failure_policy=CallFailurePolicy.FAST_FAIL if fast_fail else CallFailurePolicy.COLLECT_ALL,
                retry_policy=CallRetryPolicy(max_attempts=attempts, base_backoff_ms=10),
                call_budget_ms=budget,
                max_output_bytes=limit,
            )
            for _ in range(2)
        )
        said = short(self.post(event, twin))
        if task_id in self.model.tasks:
            assert said == [("dropped", "", 1)]
            return
        assert said == []
        self.model.tasks[task_id] = Task(
            task_id, [Row(arg) for arg in args], fast_fail, attempts, 10, limit, budget
        )

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
    def turns_until_quiet(self, max_calls: int) -> None:
        for _ in range(500):
            if not self.core.turn_pending:
                break
            self.one_turn(max_calls)
        assert not self.core.turn_pending, "turns come to an end"
        self.model.judge_quiet(self.now)

    # --- frames

    @precondition(lambda self: self.held())
    @rule(pick=picks, count=st.integers(1, 4))
    def complete(self, pick: int, count: int) -> None:
        held = self.held()
        host_id, _ = held[pick % len(held)]
        calls = [call for other, call in held if other == host_id][:count]
        self.frames(host_id, [completed(call, self.output()) for call in calls])

    @precondition(lambda self: self.held())
    @rule(pick=picks, kind=kinds, retryable=st.booleans())
    def fail(self, pick: int, kind: str, retryable: bool) -> None:
        host_id, call = self.held()[pick % len(self.held())]
        self.frames(host_id, [failed(call, kind, retryable=retryable)])

    @precondition(lambda self: self.history)
    @rule(host=picks, picked=st.lists(picks, min_size=1, max_size=3), ok=st.booleans())
    def any_frames(self, host: int, picked: list[int], ok: bool) -> None:
        """Frames of any attempt that ever was, from anywhere: most are stale or forged."""
        calls = [self.history[-1 - pick % len(self.history)] for pick in picked]
        frames = [
            completed(call, self.output()) if ok else failed(call, "USER_ERROR", retryable=True)
            for call in calls
        ]
        self.frames(self.host_of(host), frames)

    def frames(self, host_id: str, frames: list[Any]) -> None:
        expected = self.model.finished(host_id, frames, self.now)
        self.fact(e.CallsFinished(executor_id=host_id, frames=frames), expected)

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
        armed = self.armed[-1 - pick % len(self.armed)]
        self.now = max(self.now, armed.due_ms)
        expected = self.model.due(armed.task_id, armed.call_id, armed.attempt_seq)
        event = e.CallRetryDue(task_id=armed.task_id, call_id=armed.call_id, attempt_seq=armed.attempt_seq)
        self.fact(event, expected)

    # --- executors

    @precondition(lambda self: len(self.model.hosts) < len(HOSTS))
    @rule(host_id=st.sampled_from(HOSTS), contexts=st.integers(0, 4))
    def attach(self, host_id: str, contexts: int) -> None:
        known = host_id in self.model.hosts
        self.fact(
            e.ExecutorAttached(executor_id=host_id, usable_contexts=contexts),
            [("dropped", "", 1)] if known else [],
        )
        if not known:
            self.model.hosts[host_id] = Host(contexts, self.now)

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

    def lose_host(
        self, host_id: str, exit_code: int | None, *, by_us: bool, pick: int = 0, known: bool = False
    ) -> None:
        host = self.model.hosts.get(host_id)
        numbers = [held.call.payload.call_no for held in host.held.values()] if host else []
        running = numbers[pick % len(numbers)] if numbers and known else pick
        expected = self.model.lost(host_id, exit_code, running, self.now, by_us=by_us)
        lost = e.ExecutorLost(
            executor_id=host_id,
            message="gone",
            exit_code=exit_code,
            killed_by_us=by_us,
            running_call_no=running,
        )
        self.fact(lost, expected)

    @rule(host=picks, contexts=st.integers(0, 4))
    def heartbeat(self, host: int, contexts: int) -> None:
        self.beat(self.host_of(host), contexts)

    def beat(self, host_id: str, contexts: int) -> None:
        host = self.model.hosts.get(host_id)
        inflight = len(host.held) if host else 0
        beat = HeartbeatPayload(
            executor_id=host_id,
            heartbeat_seq=1,
            pid=1,
            version="0",
            runnable_count=inflight,
            inflight_count=inflight,
            available_contexts=contexts,
            memory_bytes=0,
        )
        event = e.ExecutorHeartbeat(executor_id=host_id, heartbeat=beat)
        self.fact(event, [] if host else [("dropped", "", 1)])
        if host is not None:
            host.heard_ms = self.now
            host.contexts = inflight + contexts

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

    def read(self, host_id: str, number: int, since: int, *, loading: bool) -> None:
        host = self.model.hosts.get(host_id)
        event = e.ExecutorObserved(executor_id=host_id, call_no=number, since=since, loading=loading)
        self.fact(event, [] if host else [("dropped", "", 1)])
        if host is not None:
            host.reads.append((self.now, number, since, loading))

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
        for _ in range(300):
            self.turns_until_quiet(7)
            if all(task.converged for task in self.model.tasks.values()):
                break
            for armed in list(self.armed):
                self.now = max(self.now, armed.due_ms)
                event = e.CallRetryDue(
                    task_id=armed.task_id, call_id=armed.call_id, attempt_seq=armed.attempt_seq
                )
                self.fact(event, self.model.due(armed.task_id, armed.call_id, armed.attempt_seq))
            self.armed.clear()
            for host_id in list(self.model.hosts):
                self.beat(host_id, 4)
                calls = [call for other, call in self.held() if other == host_id]
                self.frames(host_id, [completed(call, self.output()) for call in calls])
        assert all(task.converged for task in self.model.tasks.values()), "everything comes to its end"
        for task_id in list(self.model.tasks):
            self.fact(e.TaskCallsDropped(task_id=task_id, reason="over"), self.model.drop(task_id, self.now))
        while self.core.turn_pending:
            self.one_turn(7)


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)
