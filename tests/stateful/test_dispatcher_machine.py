"""DispatcherCore beside its naive model: any events in any order, legal or not, under small limits; then all drains."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockx_executor.wire.messages import ExecuteCall, HeartbeatPayload, ResumeCallPayload
from blockx_worker.dispatch import events as e
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
    DispatchCalls,
    DispatchCommand,
    ResumeCalls,
)
from blockx_worker.dispatch.config import DispatcherConfig, ExecutorShare
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.source import CallBatch, CallSource, ListSource, ResolvedFunction, StreamSource
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskFailure
from tests.dispatch.driver import completed, failed, returned, waiting
from tests.stateful.dispatcher_model import DROPPED, DispatcherModel, Fact, short
from tests.stateful.dispatcher_rows import Host, Task

FUNCTION = ResolvedFunction("m.f", "d" * 64, "f")
PRIVATE = ResolvedFunction("m.g", "d" * 64, "g", no_cache=True)
TASKS = ("a", "b", "c")
HOSTS = ("exec-0", "exec-1", "exec-2")
TOO_LARGE = 1000

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

    def fact(
        self, event: e.DispatchEvent, expected: list[Fact], twin: e.DispatchEvent | None = None
    ) -> list[DispatchCommand]:
        commands = self.post(event, twin)
        self.model.judge_sent(commands, self.now)
        self.agree(short(commands), expected)
        return commands

    def agree(self, said: list[Fact], expected: list[Fact]) -> None:
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

    def live_tasks(self) -> list[Task]:
        return [task for task in self.model.tasks.values() if not task.stopping]

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

    def begin_task(  # noqa: PLR0917  # rules are called by keyword
        self,
        task_id: str,
        keys: list[int],
        fast_fail: bool = False,
        attempts: int = 3,
        rows: int = 4,
        limit: int = 0,
        budget: int = 200,
        instance: str = "x",
        streams: bool = False,
    ) -> None:
        args = [] if streams else [b"[%d]" % key for key in keys]
        event, twin = (
            e.TaskCallsStarted(
                task_id=task_id,
                instance_id=instance,
                source=self.source(args, rows, streams=streams),
                failure_policy=CallFailurePolicy.FAST_FAIL if fast_fail else CallFailurePolicy.COLLECT_ALL,
                retry_policy=CallRetryPolicy(max_attempts=attempts, base_backoff_ms=10),
                call_budget_ms=budget,
                max_output_bytes=limit,
            )
            for _ in range(2)
        )
        if task_id in self.model.tasks:
            self.fact(event, [DROPPED], twin)
            return
        task = Task(task_id, instance, [], fast_fail, attempts, 10, limit, budget)
        task.add_rows(args)
        task.streams = task.production_open = streams
        task.granted = self.model.max_batches
        self.model.tasks[task_id] = task
        self.fact(event, [("grant", task_id, task.granted)] if streams else [], twin)

    def source(self, args: list[bytes], rows: int, *, streams: bool) -> CallSource:
        if streams:
            return StreamSource(FUNCTION)
        return ListSource(FUNCTION, [msgspec.Raw(arg) for arg in args], batch_max_rows=rows)

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

    def end_stream(self, task: Task, *, fails: bool) -> None:
        failure = TaskFailure(code=TaskFailureCode.BUILDER_FAILED, message="no") if fails else None
        expected = [DROPPED]
        if not task.stopping and task.production_open:
            task.production_open = False
            task.stopping = task.broken = fails
            expected = []
        self.fact(e.CallProductionEnded(task_id=task.task_id, failure=failure), expected)

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

    def at_most(self, count: int) -> int:
        """With subcalls one frame at a time: a call that is sent and cancelled by one event is not modelled."""
        return 1 if any(task.subs for task in self.model.tasks.values()) else count

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

    def asking(self, pick: int, *, stray: bool) -> tuple[str, ExecuteCall]:
        if self.held() and not stray:
            return self.held()[pick % len(self.held())]
        return self.host_of(pick), self.history[-1 - pick % len(self.history)]

    def request(self, pick: int) -> int:
        """Mostly a new number."""
        if pick % 16:
            self.requests += 1
        return self.requests

    @precondition(lambda self: self.history)
    @rule(pick=picks, stray=st.integers(0, 9), again=picks)
    def ask_io(self, pick: int, stray: int, again: int) -> None:
        host_id, call = self.asking(pick, stray=stray == 0)
        self.io(host_id, call, self.request(again))

    def io(self, host_id: str, call: ExecuteCall, request_id: int) -> None:
        frame = waiting(call, request_id, "io")
        sent = call.payload
        expected = self.model.asked_io(
            host_id, call.call_id, sent.task_id, sent.attempt_seq, frame.request_id
        )
        self.fact(e.CallWaitRequested(executor_id=host_id, frame=frame), expected)

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

    def io_over(self, host_id: str, call: ExecuteCall, request_id: int) -> None:
        sent = call.payload
        expected = self.model.answered_io(host_id, call.call_id, sent.task_id, sent.attempt_seq, request_id)
        event = e.CallWaitOver(
            executor_id=host_id,
            task_id=sent.task_id,
            call_id=call.call_id,
            attempt_seq=sent.attempt_seq,
            request_id=request_id,
            payload=ResumeCallPayload(resume_kind="io", result=msgspec.Raw(b"1")),
        )
        self.fact(event, expected)

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

    def subcall(self, host_id: str, call: ExecuteCall, request_id: int, key: int, how: int) -> None:
        args = b"[%d]" % key
        frame = waiting(call, request_id, "subcall", args=msgspec.Raw(args), granted_budget_ms=150)
        sent = call.payload
        parent = self.model.waits(host_id, call.call_id, sent.task_id, sent.attempt_seq, request_id)
        task = self.model.tasks.get(sent.task_id)
        private = how == 1 or (task is not None and task.output_limit > 0)
        function = None if how == 0 else PRIVATE if private else FUNCTION
        event = e.SubcallRequested(executor_id=host_id, frame=frame, function=function)
        if parent is None or task is None:
            self.fact(event, [DROPPED])
            return
        name = (b"g" if private else b"f") + args
        refusal = "FUNCTION_NOT_FOUND" if function is None else self.model.refusal(parent, name)
        commands = self.post(event)
        answers = [
            frame for command in commands if isinstance(command, ResumeCalls) for frame in command.frames
        ]
        if refusal:
            (answer,) = answers
            assert answer.payload.error is not None
            assert answer.payload.error.kind == refusal
        elif answers:
            (answer,) = answers
            assert bytes(answer.payload.result) in task.produced[name], "an output of an equal call"
            assert not private, "a function that shares nothing has no known results"
            task.subcalls += 1
        else:
            self.model.accept(task, parent, request_id, name, args, shares=not private)
        self.model.judge_sent(commands, self.now)
        self.agree(short(commands), [("resume", call.call_id, request_id)] if answers else [])

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
        self.time_is_up(self.armed[-1 - pick % len(self.armed)])

    def time_is_up(self, armed: ArmCallRetry) -> None:
        self.now = max(self.now, armed.due_ms)
        event = e.CallRetryDue(task_id=armed.task_id, call_id=armed.call_id, attempt_seq=armed.attempt_seq)
        commands = self.post(event)
        said = short(commands)
        expected = self.model.due(armed.task_id, armed.call_id, armed.attempt_seq, dropped=said == [DROPPED])
        self.model.judge_sent(commands, self.now)
        self.agree(said, expected)

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

    @precondition(lambda self: self.held())
    @rule(host=picks, contexts=st.integers(0, 4), memory=st.integers(0, 11))
    def heartbeat(self, host: int, contexts: int, memory: int) -> None:
        self.beat(self.host_of(host), contexts, memory=TOO_LARGE + 1 if memory == 0 else TOO_LARGE)

    def beat(self, host_id: str, contexts: int, memory: int = 0) -> None:
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
            memory_bytes=memory,
        )
        expected = [DROPPED]
        if host is not None:
            host.heard_ms = self.now
            host.contexts = inflight + contexts
            host.stuck = False
            host.too_large |= memory > TOO_LARGE
            expected = self.model.retired(host_id)
        self.fact(e.ExecutorHeartbeat(executor_id=host_id, heartbeat=beat), expected)

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

    def read(self, host_id: str, number: int, since: int, *, loading: bool) -> None:
        host = self.model.hosts.get(host_id)
        event = e.ExecutorObserved(executor_id=host_id, call_no=number, since=since, loading=loading)
        if host is not None:
            host.reads.append((self.now, number, since, loading))
            for held in host.held.values():
                if held.call.payload.call_no == number and self.model.is_live(held):
                    held.row.started_seq = held.row.seq
            if not number or host.stuck_at not in (None, (number, since)):
                host.stuck = False
            host.stuck_at = (number, since)
        self.fact(event, [] if host else [DROPPED])

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

    def everybody_goes_on(self) -> None:
        """Timers go off, back ends answer, calls return, processes that were ordered to end are replaced."""
        for armed in list(self.armed):
            self.time_is_up(armed)
        self.armed.clear()
        for host_id, call in self.held():
            held = self.model.hosts[host_id].held.get((call.call_id, call.payload.attempt_seq))
            for request_id, subcall in list(held.row.requests.items()) if held is not None else []:
                if subcall is None:
                    self.io_over(host_id, call, request_id)
            if held is not None and not held.row.requests:
                self.frames(host_id, [completed(call, self.output())])
        for host_id, host in list(self.model.hosts.items()):
            if host.killed:
                self.lose_host(host_id, 0, by_us=True)
                self.attach(host_id, 4)


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)
