"""A naive model of the dispatcher.

It knows each call's fate by the rules of retries and blame, written down once more in the plainest way: no queues, no
window, no cache, no order. What a fact must lead to, it predicts to the letter. What a turn does, it only judges:
nothing may be sent that is out, over, stopped, known or running elsewhere under the same key, and no executor may get
more than it holds.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from blockx_executor.wire.messages import CallCompleted, CallFailed, ExecuteCall
from blockx_worker.dispatch.commands import (
    ArmCallRetry,
    BatchSettled,
    CancelCalls,
    ConvergeTaskCalls,
    DispatchCalls,
    DispatchCommand,
    DispatchDropped,
    KillExecutor,
    StopCallProduction,
)
from blockx_worker.model.errors import TaskFailureCode

Fact: TypeAlias = tuple[str, str, int]
"""A command in short: ("retry", call id, due) · ("dropped", "", count) · ("cancel", call id, attempt)."""

REFUSED_BACKOFF_MS = 10
FINAL = ("BUDGET_EXCEEDED", "CANCELLED", "OUTPUT_NOT_JSON")
SHARED = ("USER_ERROR", "OUTPUT_NOT_JSON")


@attrs.define
class Row:
    """One call: open, or how it ended."""

    key: bytes
    end: str = ""
    output: bytes = b""
    executor: str = ""
    seq: int = 0
    charged: int = 0
    losses: int = 0
    backing_off: bool = False
    cancelled: bool = False


@attrs.define(eq=False)
class Task:
    """One task and what it is allowed."""

    task_id: str
    rows: list[Row]
    fast_fail: bool
    max_attempts: int
    base_ms: int
    output_limit: int
    budget_ms: int
    stopping: bool = False
    over_limit: bool = False
    announced: bool = False
    converged: bool = False
    settled: int = 0
    shared_failures: set[bytes] = attrs.field(factory=set)
    produced: dict[bytes, set[bytes]] = attrs.field(factory=dict)

    def row(self, call_id: str) -> Row:
        return self.rows[int(call_id.rpartition("/")[2])]

    def call_id(self, row: Row) -> str:
        return f"{self.task_id}/{next(i for i, other in enumerate(self.rows) if other is row)}"


@attrs.define(eq=False)
class Held:
    """An attempt that takes a context; ``task`` may have been dropped since."""

    call: ExecuteCall
    task: Task
    cancelled_ms: int | None = None


@attrs.define(eq=False)
class Host:
    """One executor."""

    contexts: int
    heard_ms: int
    held: dict[tuple[str, int], Held] = attrs.field(factory=dict)
    reads: list[tuple[int, int, int, bool]] = attrs.field(factory=list)
    killed: bool = False
    culprit: int = 0


class DispatcherModel:
    """See the module's text."""

    def __init__(
        self,
        *,
        max_inflight: int,
        max_losses: int,
        caches: bool,
        heartbeat_timeout_ms: int,
        grace_ms: int,
        cancel_kill_ms: int,
        load_ms: int,
    ) -> None:
        self.max_inflight = max_inflight
        self.max_losses = max_losses
        self.caches = caches
        self.heartbeat_timeout_ms = heartbeat_timeout_ms
        self.grace_ms = grace_ms
        self.cancel_kill_ms = cancel_kill_ms
        self.load_ms = load_ms
        self.tasks: dict[str, Task] = {}
        self.hosts: dict[str, Host] = {}
        self.last_no = 0

    # --- facts: what must follow

    def finished(self, host_id: str, frames: list[CallCompleted | CallFailed], now: int) -> list[Fact]:
        host = self.hosts.get(host_id)
        if host is None:
            return [("dropped", "", len(frames))] if frames else []
        facts: list[Fact] = []
        strays = 0
        for frame in frames:
            held = host.held.get((frame.call_id, frame.payload.attempt_seq))
            if held is None or held.task.task_id != frame.payload.task_id:
                strays += 1
                continue
            del host.held[frame.call_id, frame.payload.attempt_seq]
            if self.tasks.get(held.task.task_id) is held.task:
                facts += self._ended(held.task, frame, now)
        return facts + ([("dropped", "", strays)] if strays else [])

    def refused(self, host_id: str, call_ids: list[str], now: int) -> list[Fact]:
        host = self.hosts.get(host_id)
        if host is None:
            return [("dropped", "", len(call_ids))]
        facts: list[Fact] = []
        for call_id in call_ids:
            matching = [key for key in host.held if key[0] == call_id]
            living = [key for key in matching if self._lives(host.held[key].task)]
            for key in living or matching:
                task = host.held.pop(key).task
                if key in living:
                    facts += self._refused(task, call_id, now)
            if not matching:
                facts.append(("dropped", "", 1))
        return facts

    def due(self, task_id: str, call_id: str, seq: int) -> list[Fact]:
        task = self.tasks.get(task_id)
        row = (
            task.row(call_id)
            if task is not None and int(call_id.rpartition("/")[2]) < len(task.rows)
            else None
        )
        if task is None or row is None or task.stopping or not row.backing_off or row.seq != seq:
            return [("dropped", "", 1)]
        row.backing_off = False
        return []

    def lost(
        self, host_id: str, exit_code: int | None, running_no: int, now: int, *, by_us: bool
    ) -> list[Fact]:
        host = self.hosts.pop(host_id, None)
        if host is None:
            return [("dropped", "", 1)]
        facts: list[Fact] = []
        for (call_id, _), held in host.held.items():
            if not self._lives(held.task):
                continue
            row, number = held.task.row(call_id), held.call.payload.call_no
            row.executor = ""
            if by_us and host.culprit:
                kind = "EXECUTOR_WEDGED" if number == host.culprit else ""
            elif exit_code == -9 and not by_us:
                kind = ""
            else:
                kind = "EXECUTOR_LOST" if running_no == number else ""
            facts += self._lost(held.task, row, kind, now)
        return facts

    def drop(self, task_id: str, now: int) -> list[Fact]:
        task = self.tasks.pop(task_id, None)
        if task is None:
            return [("dropped", "", 1)]
        facts: list[Fact] = []
        for host in self.hosts.values():
            for (call_id, seq), held in host.held.items():
                if held.task is task and held.cancelled_ms is None:
                    held.cancelled_ms = now
                    facts.append(("cancel", call_id, seq))
        return facts

    # --- turns: what is allowed

    def judge_turn(self, commands: list[DispatchCommand], max_calls: int, now: int) -> None:
        sent = [command for command in commands if isinstance(command, DispatchCalls)]
        assert len({command.executor_id for command in sent}) == len(sent), (
            "one DispatchCalls per executor and turn"
        )
        touched = 0
        for command in commands:
            match command:
                case DispatchCalls():
                    touched += len(command.calls)
                    for call in command.calls:
                        self._sent(command.executor_id, call, now)
                case CancelCalls():
                    touched += len(command.calls)
                    for cancel in command.calls:
                        held = self.hosts[command.executor_id].held[
                            cancel.call_id, cancel.payload.attempt_seq
                        ]
                        assert held.cancelled_ms is None, "a cancel is ordered once"
                        assert held.task.stopping, "only a stopped task cancels"
                        held.cancelled_ms = now
                        held.task.row(cancel.call_id).cancelled = True
                case StopCallProduction():
                    task = self.tasks[command.task_id]
                    assert task.stopping, "production stops for a reason"
                    assert not task.announced, "production stops once"
                    task.announced = True
                case BatchSettled():
                    self._settled(self.tasks[command.task_id], command)
                case ConvergeTaskCalls():
                    self._converged(self.tasks[command.task_id], command)
                case _:
                    raise AssertionError(f"a turn never orders {command}")
        assert touched <= max_calls, "a turn touches no more than it may"

    def judge_sweep(self, commands: list[DispatchCommand], now: int) -> None:
        kills = {command.executor_id: command for command in commands if isinstance(command, KillExecutor)}
        assert len(kills) == len(commands), "a sweep only kills, each executor once"
        for host_id, host in self.hosts.items():
            kill = kills.get(host_id)
            wedged = self._wedged(host)
            assert kill is None or not host.killed, "an executor is killed once"
            if host.killed:
                continue
            if wedged is not None:
                assert kill is not None, "a wedged call is not overlooked"
                assert kill.call_id == wedged.call.call_id, "the wedged call is named"
                host.culprit = wedged.call.payload.call_no
            elif kill is not None and kill.call_id:
                deaf = next(
                    held
                    for held in host.held.values()
                    if held.call.call_id == kill.call_id
                    and held.cancelled_ms is not None
                    and now - held.cancelled_ms >= self.cancel_kill_ms
                )
                host.culprit = deaf.call.payload.call_no
            elif kill is not None:
                assert now - host.heard_ms > self.heartbeat_timeout_ms, "only a silent executor is lost"
            host.killed = kill is not None

    def judge_quiet(self, now: int) -> None:
        """No turn is pending: whoever could go on has gone on."""
        room = any(self._room(host, now) > 0 for host in self.hosts.values())
        for task in self.tasks.values():
            waits = any(row.executor or (row.backing_off and not task.stopping) for row in task.rows)
            assert task.converged or waits or (not room and not task.stopping), f"{task.task_id} is stuck"
            if task.stopping:
                assert task.announced, "production was stopped"
                for row in task.rows:
                    assert not row.executor or row.cancelled, "what runs of a stopped task is cancelled"

    # --- inside

    def _lives(self, task: Task) -> bool:
        return self.tasks.get(task.task_id) is task

    def _room(self, host: Host, now: int) -> int:
        if host.killed or now - host.heard_ms > self.heartbeat_timeout_ms:
            return 0
        return min(host.contexts, self.max_inflight) - len(host.held)

    def _ended(self, task: Task, frame: CallCompleted | CallFailed, now: int) -> list[Fact]:
        row = task.row(frame.call_id)
        row.executor = ""
        if isinstance(frame, CallCompleted):
            row.end, row.output = "ok", bytes(frame.payload.output)
            task.produced.setdefault(row.key, set()).add(row.output)
            total = sum(len(other.output) for other in task.rows)
            if task.output_limit and total > task.output_limit and not task.stopping:
                task.stopping = task.over_limit = True
            return []
        kind = frame.payload.error_kind
        if row.cancelled and kind == "CANCELLED":
            row.end = "cancelled"
            return []
        if kind == "DISPATCH_REFUSED":
            return self._refused(task, frame.call_id, now)
        user = kind in {"USER_ERROR", "SOMETHING_NEW"}
        return self._charge(
            task,
            row,
            now,
            retryable=frame.payload.retryable if user else False,
            shared=user or kind in SHARED,
        )

    def _lost(self, task: Task, row: Row, kind: str, now: int) -> list[Fact]:
        if row.cancelled or (not kind and task.stopping):
            row.end = "cancelled"
            return []
        if kind:
            return self._charge(task, row, now, retryable=kind == "EXECUTOR_LOST", shared=False)
        row.losses += 1
        if row.losses > self.max_losses:
            return self._charge(task, row, now, retryable=True, shared=False)
        return []

    def _refused(self, task: Task, call_id: str, now: int) -> list[Fact]:
        row = task.row(call_id)
        row.executor = ""
        if task.stopping:
            row.end = "cancelled"
            return []
        row.backing_off = True
        return [("retry", call_id, now + REFUSED_BACKOFF_MS)]

    def _charge(self, task: Task, row: Row, now: int, *, retryable: bool, shared: bool) -> list[Fact]:
        row.charged += 1
        if retryable and not task.stopping and row.charged < task.max_attempts:
            row.backing_off = True
            return [("retry", task.call_id(row), now + task.base_ms * 2 ** (row.charged - 1))]
        row.end = "failed"
        if shared and not retryable:
            task.shared_failures.add(row.key)
        if task.fast_fail:
            task.stopping = True
        return []

    def _sent(self, host_id: str, call: ExecuteCall, now: int) -> None:
        host = self.hosts[host_id]
        task = self.tasks[call.payload.task_id]
        row = task.row(call.call_id)
        assert self._room(host, now) > 0, f"{host_id} has no room"
        assert call.payload.call_no > 0
        assert bytes(call.payload.args) == row.key, "the arguments of this call"
        assert not row.end, "a call that is over is not sent"
        assert not row.executor, "a call is in one place"
        assert not row.backing_off, "a back-off is waited for"
        assert call.payload.attempt_seq > row.seq, "attempts rise"
        assert not (self.caches and row.key in task.produced), "a known result is not computed again"
        for other in task.rows:
            busy = other is not row and other.key == row.key and (other.executor or other.backing_off)
            assert not busy, "equal calls run one at a time"
        row.executor, row.seq = host_id, call.payload.attempt_seq
        host.held[call.call_id, row.seq] = Held(call, task)

    def _settled(self, task: Task, command: BatchSettled) -> None:
        assert command.first_index == task.settled, "batches settle in order, each once"
        assert not task.over_limit, "dropped outputs do not come back"
        for row, output in zip(task.rows[task.settled :], command.outputs, strict=False):
            if row.end == "":  # ended together with an equal call
                assert output in task.produced.get(row.key, ()) if output else row.key in task.shared_failures
                row.end, row.output = ("ok", output) if output else ("failed", b"")
            assert row.end != "cancelled", "a batch with a cancelled call does not settle"
            assert (output or b"") == row.output, "each call's own output at its place"
        task.settled += len(command.outputs)

    def _converged(self, task: Task, command: ConvergeTaskCalls) -> None:
        assert not task.converged, "a task converges once"
        assert not any(row.executor for row in task.rows), "nothing is out any more"
        task.converged = True
        books = command.statistic
        ends = [row.end for row in task.rows]
        assert books.succeeded + books.failed + books.cancelled == books.total == len(task.rows)
        assert books.failed == len(command.failed_calls) + command.failed_calls_omitted
        code = None if command.failure is None else command.failure.code
        if task.stopping:
            expected = (
                TaskFailureCode.OUTPUT_BYTES_EXCEEDED if task.over_limit else TaskFailureCode.CALLS_FAILED
            )
            assert code is expected
            assert books.succeeded >= ends.count("ok")
            assert books.failed >= ends.count("failed")
            return
        assert task.settled == len(task.rows), "every output was handed over"
        assert (books.succeeded, books.failed, books.cancelled) == (ends.count("ok"), ends.count("failed"), 0)
        assert code is (TaskFailureCode.CALLS_FAILED if books.failed else None)
        assert [call.index for call in command.failed_calls] == [
            index for index, end in enumerate(ends) if end == "failed"
        ][: len(command.failed_calls)]

    def _wedged(self, host: Host) -> Held | None:
        """Straight from the list of all reads."""
        if not host.reads:
            return None
        last = host.reads[-1]
        same = 0
        while same < len(host.reads) and host.reads[-1 - same][1:] == last[1:]:
            same += 1
        owner = next((held for held in host.held.values() if held.call.payload.call_no == last[1]), None)
        if same < 2 or owner is None:
            return None
        limit = self.load_ms if last[3] else owner.task.budget_ms
        over = last[0] - host.reads[-same][0] > limit + self.grace_ms
        return owner if over and limit else None


def short(commands: list[DispatchCommand]) -> list[Fact]:
    """Commands that follow a fact, in short; drops are summed."""
    facts: list[Fact] = []
    for command in commands:
        match command:
            case ArmCallRetry():
                facts.append(("retry", command.call_id, command.due_ms))
            case CancelCalls():
                facts += [("cancel", cancel.call_id, cancel.payload.attempt_seq) for cancel in command.calls]
            case DispatchDropped():
                facts.append(("dropped", "", command.count))
            case _:
                raise AssertionError(f"a fact never orders {command}")
    return facts
