"""How the state machine test of the dispatcher posts events: to the machine, to a twin of it and to the naive model."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from blockx_executor.wire.messages import ExecuteCall, HeartbeatPayload, ResumeCallPayload
from blockx_worker.dispatch import events as e
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
    DispatchCalls,
    DispatchCommand,
    ResumeCalls,
)
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.source import CallSource, ListSource, ResolvedFunction, StreamSource
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskFailure
from tests.dispatch.driver import completed, waiting
from tests.stateful.dispatcher_model import DROPPED, DispatcherModel, Fact, short
from tests.stateful.dispatcher_rows import Host, Task

FUNCTION = ResolvedFunction("m.f", "d" * 64, "f")
PRIVATE = ResolvedFunction("m.g", "d" * 64, "g", no_cache=True)
TASKS = ("a", "b", "c")
HOSTS = ("exec-0", "exec-1", "exec-2")
TOO_LARGE = 1000


class DispatcherTalk(RuleBasedStateMachine):
    """What the rules are made of. Each event is posted once, and what follows is compared at once."""

    core: DispatcherCore
    twin: DispatcherCore
    model: DispatcherModel
    now: int
    history: list[ExecuteCall]
    armed: list[ArmCallRetry]
    outputs: int
    requests: int

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

    def end_stream(self, task: Task, *, fails: bool) -> None:
        failure = TaskFailure(code=TaskFailureCode.BUILDER_FAILED, message="no") if fails else None
        expected = [DROPPED]
        if not task.stopping and task.production_open:
            task.production_open = False
            task.stopping = task.broken = fails
            expected = []
        self.fact(e.CallProductionEnded(task_id=task.task_id, failure=failure), expected)

    def turns_until_quiet(self, max_calls: int) -> None:
        for _ in range(500):
            if not self.core.turn_pending:
                break
            self.one_turn(max_calls)
        assert not self.core.turn_pending, "turns come to an end"
        self.model.judge_quiet(self.now)

    def at_most(self, count: int) -> int:
        """With subcalls one frame at a time: a call that is sent and cancelled by one event is not modelled."""
        return 1 if any(task.subs for task in self.model.tasks.values()) else count

    def asking(self, pick: int, *, stray: bool) -> tuple[str, ExecuteCall]:
        if self.held() and not stray:
            return self.held()[pick % len(self.held())]
        return self.host_of(pick), self.history[-1 - pick % len(self.history)]

    def request(self, pick: int) -> int:
        """Mostly a new number."""
        if pick % 16:
            self.requests += 1
        return self.requests

    def io(self, host_id: str, call: ExecuteCall, request_id: int) -> None:
        frame = waiting(call, request_id, "io")
        sent = call.payload
        expected = self.model.asked_io(
            host_id, call.call_id, sent.task_id, sent.attempt_seq, frame.request_id
        )
        self.fact(e.CallWaitRequested(executor_id=host_id, frame=frame), expected)

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

    def time_is_up(self, armed: ArmCallRetry) -> None:
        self.now = max(self.now, armed.due_ms)
        event = e.CallRetryDue(task_id=armed.task_id, call_id=armed.call_id, attempt_seq=armed.attempt_seq)
        commands = self.post(event)
        said = short(commands)
        expected = self.model.due(armed.task_id, armed.call_id, armed.attempt_seq, dropped=said == [DROPPED])
        self.model.judge_sent(commands, self.now)
        self.agree(said, expected)

    def attach(self, host_id: str, contexts: int) -> None:
        known = host_id in self.model.hosts
        self.fact(
            e.ExecutorAttached(executor_id=host_id, usable_contexts=contexts),
            [("dropped", "", 1)] if known else [],
        )
        if not known:
            self.model.hosts[host_id] = Host(contexts, self.now)

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
