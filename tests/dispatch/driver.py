"""A conversation with a DispatcherCore: say an event at a time, get the commands; the invariants are checked each time.

The driver plays the shell: it remembers what was sent where, so that a test names a call by its id only, and collects
outputs, answers and ends of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    CallError,
    CallFailed,
    CallFailedPayload,
    CallWaiting,
    CallWaitingPayload,
    ExecuteCall,
    ExecuteCallPayload,
    HeartbeatPayload,
    ResumeCallPayload,
    ReturnedCall,
)
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
    BatchSettled,
    CancelCalls,
    ConvergeTaskCalls,
    DispatchCalls,
    DispatchCommand,
    DispatchDropped,
    GrantProduction,
    KillExecutor,
    ResumeCalls,
)
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.dispatcher import DispatcherCore
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
from blockx_worker.dispatch.source import CallBatch, CallSource, ListSource, ResolvedFunction, StreamSource
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskFailure

DIGEST = "d" * 64
FUNCTION = ResolvedFunction("pkg.mod.fn", DIGEST, "fn")
OTHER = ResolvedFunction("pkg.mod.other", DIGEST, "other")
FAST_FAIL, COLLECT_ALL = CallFailurePolicy.FAST_FAIL, CallFailurePolicy.COLLECT_ALL

C = TypeVar("C", bound=DispatchCommand)


def raws(args: Iterable[Any]) -> list[msgspec.Raw]:
    """Argument lists as the builder hands them over."""
    return [msgspec.Raw(msgspec.json.encode(arg)) for arg in args]


def completed(
    call: ExecuteCall, output: bytes = b"null", run_us: int = 0, budget_used_ms: int = 0
) -> CallCompleted:
    """The frame of an executor that ran this attempt."""
    sent = call.payload
    payload = CallCompletedPayload(
        task_id=sent.task_id,
        attempt_seq=sent.attempt_seq,
        output=msgspec.Raw(output),
        run_us=run_us,
        budget_used_ms=budget_used_ms,
    )
    return CallCompleted(call.call_id, payload)


def failed(call: ExecuteCall, kind: str = "USER_ERROR", message: str = "boom", **more: Any) -> CallFailed:
    """The frame of an executor where this attempt failed."""
    sent = call.payload
    payload = CallFailedPayload(
        task_id=sent.task_id, attempt_seq=sent.attempt_seq, error_kind=kind, error_message=message, **more
    )
    return CallFailed(call.call_id, payload)


def waiting(call: ExecuteCall, request_id: int, kind: str, **fields: Any) -> CallWaiting:
    """The frame of a call that waits for something."""
    sent = call.payload
    payload = CallWaitingPayload(task_id=sent.task_id, attempt_seq=sent.attempt_seq, wait_kind=kind, **fields)
    return CallWaiting(call.call_id, request_id, payload)


def returned(call: ExecuteCall) -> ReturnedCall:
    """A call as an executor gives it back."""
    return ReturnedCall(
        call_id=call.call_id, task_id=call.payload.task_id, attempt_seq=call.payload.attempt_seq
    )


class Talk:
    """One DispatcherCore, its clock and its executors as far as frames go."""

    def __init__(self, *, jitter: float = 0.0, **config: Any) -> None:
        self.core = DispatcherCore(DispatcherConfig(**config), jitter=lambda: jitter)
        self.now = 0
        self.aboard: dict[str, dict[str, ExecuteCall]] = {}
        self.outputs: dict[str, list[bytes | None]] = {}
        self.ends: dict[str, ConvergeTaskCalls] = {}
        self.answers: dict[int, ResumeCallPayload] = {}
        self.credits: dict[str, int] = {}
        self.requests = 0
        self.said: list[DispatchCommand] = []

    # --- events

    def say(self, event: DispatchEvent, at: int | None = None) -> list[DispatchCommand]:
        """Post an event, now or at a later time."""
        if at is not None:
            assert at >= self.now
            self.now = at
        commands = self.core.handle(event, self.now)
        self.core.check_invariants()
        for command in commands:
            self._note(command)
        self.said.extend(commands)
        return commands

    def attach(self, *executor_ids: str, contexts: int = 128) -> None:
        """Let executors attach."""
        for executor_id in executor_ids:
            self.say(ExecutorAttached(executor_id=executor_id, usable_contexts=contexts))
            self.aboard.setdefault(executor_id, {})

    def start(
        self,
        task_id: str,
        args: Iterable[Any],
        policy: CallFailurePolicy = FAST_FAIL,
        *,
        rows: int = 8192,
        attempts: int = 3,
        base_backoff_ms: int = 10,
        budget_ms: int = 5000,
        instance_id: str = "i",
        max_output_bytes: int = 0,
        function: ResolvedFunction = FUNCTION,
        source: CallSource | None = None,
    ) -> list[DispatchCommand]:
        """Begin the calls phase of a task: one call per item of ``args``, in batches of ``rows``."""
        return self.say(
            TaskCallsStarted(
                task_id=task_id,
                instance_id=instance_id,
                source=source or ListSource(function, raws(args), batch_max_rows=rows),
                failure_policy=policy,
                retry_policy=CallRetryPolicy(max_attempts=attempts, base_backoff_ms=base_backoff_ms),
                call_budget_ms=budget_ms,
                max_output_bytes=max_output_bytes,
            )
        )

    def stream(
        self, task_id: str, policy: CallFailurePolicy = FAST_FAIL, **options: Any
    ) -> list[DispatchCommand]:
        """Begin the calls phase of a task whose builder streams."""
        return self.start(task_id, (), policy, source=StreamSource(FUNCTION), **options)

    def produce(
        self, task_id: str, args: Iterable[Any], first: int, blocks_done: int | None = None
    ) -> list[DispatchCommand]:
        """The builder of this task makes a batch."""
        return self.say(
            CallBatchProduced(task_id=task_id, batch=CallBatch(first, raws(args), blocks_done=blocks_done))
        )

    def end_stream(self, task_id: str, failure: TaskFailure | None = None) -> list[DispatchCommand]:
        """The builder of this task makes nothing more."""
        return self.say(CallProductionEnded(task_id=task_id, failure=failure))

    def turn(self, max_calls: int = 1000) -> list[DispatchCommand]:
        """One turn."""
        return self.say(DispatchTurn(max_calls=max_calls))

    def turns(self, max_calls: int = 1000, limit: int = 1000) -> list[DispatchCommand]:
        """Turns until none is pending; a machine that would spin fails here."""
        commands: list[DispatchCommand] = []
        for _ in range(limit):
            if not self.core.turn_pending:
                return commands
            commands += self.turn(max_calls)
        raise AssertionError("a turn is still pending: the shell would spin")

    def complete(
        self, *call_ids: str, output: bytes = b"null", run_us: int = 0, budget_used_ms: int = 0
    ) -> list[DispatchCommand]:
        """These calls return a value, where they are."""
        commands: list[DispatchCommand] = []
        for call_id in call_ids:
            executor_id, call = self._take(call_id)
            frames = [completed(call, output, run_us, budget_used_ms)]
            commands += self.say(CallsFinished(executor_id=executor_id, frames=frames))
        return commands

    def fail(
        self, call_id: str, kind: str = "USER_ERROR", message: str = "boom", **more: Any
    ) -> list[DispatchCommand]:
        """This call fails, where it is."""
        executor_id, call = self._take(call_id)
        return self.say(CallsFinished(executor_id=executor_id, frames=[failed(call, kind, message, **more)]))

    def refuse(self, *call_ids: str) -> list[DispatchCommand]:
        """These calls could not be sent."""
        taken = [self._take(call_id) for call_id in call_ids]
        return self.say(DispatchRefused(executor_id=taken[0][0], call_ids=call_ids))

    def ask_io(self, call_id: str, **fields: Any) -> int:
        """This call asks a back end; the number of its request."""
        self.requests += 1
        frame = waiting(self._call(call_id), self.requests, "io", backend="rpc", op="call", **fields)
        self.say(CallWaitRequested(executor_id=self.where(call_id), frame=frame))
        return self.requests

    def answer_io(
        self, call_id: str, request_id: int, result: bytes = b"1", sidecar: bytes | None = None
    ) -> list[DispatchCommand]:
        """The back end has answered a request of this call."""
        sent = self.sent(call_id)
        return self.say(
            CallWaitOver(
                executor_id=self.where(call_id),
                task_id=sent.task_id,
                call_id=call_id,
                attempt_seq=sent.attempt_seq,
                request_id=request_id,
                payload=ResumeCallPayload(resume_kind="io", result=msgspec.Raw(result)),
                sidecar=sidecar,
            )
        )

    def ask(
        self,
        call_id: str,
        args: Any,
        function: ResolvedFunction | None = OTHER,
        *,
        budget_ms: int = 1000,
        error: CallError | None = None,
    ) -> list[DispatchCommand]:
        """This call calls a function; ``requests`` is the number of its request."""
        self.requests += 1
        frame = waiting(
            self._call(call_id),
            self.requests,
            "subcall",
            function_id="" if function is None else function.function_id,
            args=raws([args])[0],
            granted_budget_ms=budget_ms,
        )
        return self.say(
            SubcallRequested(executor_id=self.where(call_id), frame=frame, function=function, error=error)
        )

    def begin(self, call_id: str, args: Any, function: ResolvedFunction = OTHER) -> str:
        """This call calls a function, which is sent at once; the id of the subcall."""
        (executor,) = dispatched(self.ask(call_id, args, function)).values()
        (subcall_id,) = executor
        return subcall_id

    def give_back(self, *call_ids: str) -> list[DispatchCommand]:
        """Their executor gives these calls back."""
        taken = [self._take(call_id) for call_id in call_ids]
        calls = [returned(call) for _, call in taken]
        return self.say(CallsGivenBack(executor_id=taken[0][0], calls=calls, reason="behind a slow call"))

    def retry(self, armed: ArmCallRetry) -> list[DispatchCommand]:
        """The timer of a retry goes off in time."""
        event = CallRetryDue(task_id=armed.task_id, call_id=armed.call_id, attempt_seq=armed.attempt_seq)
        return self.say(event, at=max(armed.due_ms, self.now))

    def lose(
        self, executor_id: str, *, exit_code: int | None = 1, by_us: bool = False, running: str = ""
    ) -> list[DispatchCommand]:
        """The executor's process is dead; ``running`` is the call that its black box shows last."""
        number = self.aboard[executor_id][running].payload.call_no if running else 0
        self.aboard[executor_id].clear()
        return self.say(
            ExecutorLost(
                executor_id=executor_id,
                message=f"exit {exit_code}",
                exit_code=exit_code,
                killed_by_us=by_us,
                running_call_no=number,
            )
        )

    def drop(self, task_id: str) -> list[DispatchCommand]:
        """The task has ended."""
        return self.say(TaskCallsDropped(task_id=task_id, reason="the task has ended"))

    def heartbeat(self, executor_id: str, at: int | None = None, **fields: Any) -> list[DispatchCommand]:
        """A heartbeat; by default all that is aboard is runnable."""
        inflight = len(self.aboard[executor_id])
        values: dict[str, Any] = {
            "executor_id": executor_id,
            "heartbeat_seq": 1,
            "pid": 1,
            "version": "0",
            "runnable_count": inflight,
            "inflight_count": inflight,
            "available_contexts": 128 - inflight,
            "memory_bytes": 0,
        }
        event = ExecutorHeartbeat(executor_id=executor_id, heartbeat=HeartbeatPayload(**(values | fields)))
        return self.say(event, at)

    def observe(
        self,
        executor_id: str,
        running: str = "",
        since: int = 1,
        *,
        loading: bool = False,
        at: int | None = None,
        call_no: int = 0,
    ) -> list[DispatchCommand]:
        """The tick reads the black box: it shows this call, or a bare number."""
        number = self.aboard[executor_id][running].payload.call_no if running else call_no
        event = ExecutorObserved(executor_id=executor_id, call_no=number, since=since, loading=loading)
        return self.say(event, at)

    def sweep(self, at: int | None = None) -> list[DispatchCommand]:
        """The tick looks after the executors."""
        return self.say(ExecutorsSwept(), at)

    # --- what the shell knows

    def where(self, call_id: str) -> str:
        """The executor that a call was sent to and has not come back from."""
        return next(key for key, calls in self.aboard.items() if call_id in calls)

    def sent(self, call_id: str) -> ExecuteCallPayload:
        """What was sent of a call that is out."""
        return self.aboard[self.where(call_id)][call_id].payload

    def out(self) -> list[str]:
        """Ids of all calls that are out, in the order of their numbers."""
        calls = [call for calls in self.aboard.values() for call in calls.values()]
        return [call.call_id for call in sorted(calls, key=lambda call: call.payload.call_no)]

    def answer(self, request_id: int = 0) -> bytes | CallError:
        """What came back for a request, by default for the last one."""
        payload = self.answers[request_id or self.requests]
        return bytes(payload.result) if payload.error is None else payload.error

    def _call(self, call_id: str) -> ExecuteCall:
        return self.aboard[self.where(call_id)][call_id]

    def _take(self, call_id: str) -> tuple[str, ExecuteCall]:
        executor_id = self.where(call_id)
        return executor_id, self.aboard[executor_id].pop(call_id)

    def _note(self, command: DispatchCommand) -> None:
        if isinstance(command, DispatchCalls):
            self.aboard[command.executor_id].update({call.call_id: call for call in command.calls})
        elif isinstance(command, ResumeCalls):
            for frame in command.frames:
                assert frame.call_id in self.aboard[command.executor_id], "an answer goes where the call is"
                assert frame.request_id not in self.answers, "a request is answered once"
                self.answers[frame.request_id] = frame.payload
        elif isinstance(command, GrantProduction):
            self.credits[command.task_id] = self.credits.get(command.task_id, 0) + command.batches
        elif isinstance(command, BatchSettled):
            done = self.outputs.setdefault(command.task_id, [])
            assert command.first_index == len(done), "batches settle in order"
            done.extend(command.outputs)
        elif isinstance(command, ConvergeTaskCalls):
            assert command.task_id not in self.ends, "a task converges once"
            self.ends[command.task_id] = command


def of(commands: Sequence[DispatchCommand], kind: type[C]) -> list[C]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def dispatched(commands: Sequence[DispatchCommand]) -> dict[str, list[str]]:
    """Ids of the calls that went to each executor."""
    return {
        command.executor_id: [call.call_id for call in command.calls]
        for command in of(commands, DispatchCalls)
    }


def cancelled(commands: Sequence[DispatchCommand]) -> dict[str, list[str]]:
    """Ids of the calls whose cancel went to each executor."""
    return {
        command.executor_id: [call.call_id for call in command.calls] for command in of(commands, CancelCalls)
    }


def dropped(commands: Sequence[DispatchCommand]) -> list[tuple[str, int]]:
    """Reasons and counts of what was dropped."""
    return [(command.reason, command.count) for command in of(commands, DispatchDropped)]


def armed(commands: Sequence[DispatchCommand]) -> ArmCallRetry:
    """The one retry that was armed."""
    (retry,) = of(commands, ArmCallRetry)
    return retry


def killed(commands: Sequence[DispatchCommand]) -> KillExecutor:
    """The one kill that was ordered."""
    (kill,) = of(commands, KillExecutor)
    return kill
