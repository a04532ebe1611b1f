"""A naive model of the dispatcher.

It knows each call's fate by the rules of retries and blame, written down once more in the plainest way: no queues, no
window, no cache, no order. What a fact must lead to, it predicts to the letter, but for one thing: whether a subcall
runs or waits for an equal one it only judges. What a turn does, it only judges as well: nothing may be sent that is
out, over, stopped, known or running elsewhere under the same key, and no executor may get more than it holds.
"""

from __future__ import annotations

from typing import TypeAlias

from blockx_executor.wire.messages import CallCompleted, CallFailed, ReturnedCall
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
    RecycleExecutor,
    ResumeCalls,
    ServeCallIo,
    StopCallProduction,
)
from blockx_worker.model.errors import TaskFailureCode
from tests.stateful.dispatcher_judge import SendJudge
from tests.stateful.dispatcher_rows import Held, Host, Row, Task

Fact: TypeAlias = tuple[str, str, int]
"""A command in short: ("retry", call id, due) · ("dropped", "", count) · ("cancel", call id, attempt) ·
("resume", parent id, request) · ("io", call id, request) · ("recycle", executor id, 0) · ("grant", task id, batches)."""

REFUSED_BACKOFF_MS = 10
SHARED = ("USER_ERROR", "OUTPUT_NOT_JSON")
DROPPED: Fact = ("dropped", "", 1)


class DispatcherModel(SendJudge):
    """See the module's text."""

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
            if self.is_live(held):
                facts += self._abandon(held.task, held.row, now)
                facts += self._ended(held.task, held.row, frame, now)
        host.stuck = False
        return facts + ([("dropped", "", strays)] if strays else []) + self.retired(host_id)

    def given_back(self, host_id: str, calls: list[ReturnedCall]) -> list[Fact]:
        host = self.hosts.get(host_id)
        if host is None:
            return [("dropped", "", len(calls))]
        strays = 0
        for call in calls:
            held = host.held.get((call.call_id, call.attempt_seq))
            if (
                held is None
                or held.task.task_id != call.task_id
                or (self.is_live(held) and held.row.requests)
            ):
                strays += 1
                continue
            del host.held[call.call_id, call.attempt_seq]
            if self.is_live(held):
                held.row.executor = ""
                if held.task.stopping and held.row.parent is None:
                    held.row.end = "cancelled"
        host.stuck, host.stuck_at = True, None
        return ([("dropped", "", strays)] if strays else []) + self.retired(host_id)

    def refused(self, host_id: str, call_ids: list[str], now: int) -> list[Fact]:
        host = self.hosts.get(host_id)
        if host is None:
            return [("dropped", "", len(call_ids))]
        facts: list[Fact] = []
        for call_id in call_ids:
            matching = [key for key in host.held if key[0] == call_id]
            living = [key for key in matching if self.is_live(host.held[key])]
            for key in living or matching:
                held = host.held.pop(key)
                if key in living:
                    facts += self._abandon(held.task, held.row, now)
                    facts += self._refused(held.task, held.row, now)
            if not matching:
                facts.append(DROPPED)
        return facts + self.retired(host_id)

    def due(self, task_id: str, call_id: str, seq: int, *, dropped: bool) -> list[Fact]:
        """A timer goes off. A call that has come to follow an equal one ends unseen: then it may be dropped."""
        task = self.tasks.get(task_id)
        row = None if task is None else task.find(call_id)
        current = row is not None and row.parent is None and row.backing_off and row.seq == seq
        if dropped and task is not None and row is not None and current:
            shared = row.key in task.produced or row.key in task.shared_failures
            row.backing_off = not shared
        if task is None or row is None or task.stopping or not row.backing_off or row.seq != seq:
            return [DROPPED]
        row.backing_off = False
        return []

    def waits(self, host_id: str, call_id: str, task_id: str, seq: int, request_id: int) -> Row | None:
        """Who may ask this, if anybody."""
        held = self._bound(host_id, call_id, task_id, seq)
        if held is None:
            return None
        self.hosts[host_id].stuck = False
        held.row.started_seq = seq
        return None if held.task.stopping or request_id in held.row.requests else held.row

    def asked_io(self, host_id: str, call_id: str, task_id: str, seq: int, request_id: int) -> list[Fact]:
        row = self.waits(host_id, call_id, task_id, seq, request_id)
        if row is None:
            return [DROPPED]
        row.requests[request_id] = None
        self.tasks[task_id].io_requests += 1
        return [("io", call_id, request_id)]

    def answered_io(self, host_id: str, call_id: str, task_id: str, seq: int, request_id: int) -> list[Fact]:
        held = self._bound(host_id, call_id, task_id, seq)
        if held is None or held.row.requests.get(request_id, held) is not None:
            return [DROPPED]
        del held.row.requests[request_id]
        return [("resume", call_id, request_id)]

    def lost(
        self, host_id: str, exit_code: int | None, running_no: int, now: int, *, by_us: bool
    ) -> list[Fact]:
        host = self.hosts.pop(host_id, None)
        if host is None:
            return [DROPPED]
        facts: list[Fact] = []
        live = [held for held in host.held.values() if self.is_live(held)]
        guilty, kind = self._guilty(host, exit_code, running_no, by_us=by_us)
        for held in live:
            number = held.call.payload.call_no
            held.row.started_losses += held.row.started_seq == held.row.seq or number == running_no
        for held in live:
            self._abandon(held.task, held.row, now, quietly=True)
        for held in live:
            if held.row.parent is None:
                held.row.executor = ""
                facts += self._lost(held.task, held.row, kind if held.row is guilty else "", now)
        return facts

    def drop(self, task_id: str, now: int) -> list[Fact]:
        task = self.tasks.pop(task_id, None)
        if task is None:
            return [DROPPED]
        facts: list[Fact] = []
        for host in self.hosts.values():
            for (call_id, seq), held in host.held.items():
                if held.task is task and held.cancelled_ms is None:
                    held.cancelled_ms = now
                    facts.append(("cancel", call_id, seq))
        return facts

    # --- turns: what is allowed

    def judge_turn(self, commands: list[DispatchCommand], max_calls: int, now: int) -> None:
        self.judge_sent(commands, now)
        touched = 0
        for command in commands:
            match command:
                case DispatchCalls():
                    touched += len(command.calls)
                case ResumeCalls():
                    touched += len(command.frames)
                    for frame in command.frames:
                        self.shared(command.executor_id, frame)
                case CancelCalls():
                    touched += self._cancelled(command, now)
                case StopCallProduction():
                    task = self.tasks[command.task_id]
                    task.stopping |= task.fast_fail and self._failed_unseen(task)
                    assert task.stopping, "production stops for a reason"
                    assert not task.announced, "production stops once"
                    task.announced = True
                case BatchSettled():
                    self._settled(self.tasks[command.task_id], command)
                case GrantProduction():
                    self.tasks[command.task_id].granted += command.batches
                case ConvergeTaskCalls():
                    self._converged(self.tasks[command.task_id], command)
                case RecycleExecutor():
                    assert self.share != "all", "in a turn only tenants change"
                    assert not self.hosts[command.executor_id].held, "only an empty executor is renewed"
                    self.hosts[command.executor_id].killed = True
                case _:
                    raise AssertionError(f"a turn never orders {command}")
        assert touched <= max_calls, "a turn touches no more than it may"
        for task in self.tasks.values():
            limit = self.max_batches + task.batches_settled
            assert task.granted <= limit, "a batch is granted for one that settled"
            assert task.granted == limit or not task.production_open or task.stopping, "a credit was lost"

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

    # --- inside

    def _bound(self, host_id: str, call_id: str, task_id: str, seq: int) -> Held | None:
        host = self.hosts.get(host_id)
        held = None if host is None else host.held.get((call_id, seq))
        if held is None or held.task.task_id != task_id or not self.is_live(held):
            return None
        return held

    def _abandon(self, task: Task, row: Row, now: int, *, quietly: bool = False) -> list[Fact]:
        """All that a call waits for ends; what an executor holds of it becomes a zombie."""
        below = list(row.below())
        facts: list[Fact] = []
        for subcall in below:
            del task.subs[subcall.call_id]
            subcall.end = "cancelled"
            if subcall.executor and not quietly:
                held = self.hosts[subcall.executor].held[subcall.call_id, subcall.seq]
                held.cancelled_ms = now
                facts.append(("cancel", subcall.call_id, subcall.seq))
            subcall.requests.clear()
        row.requests.clear()
        return facts

    def _ended(self, task: Task, row: Row, frame: CallCompleted | CallFailed, now: int) -> list[Fact]:
        row.executor = ""
        if isinstance(frame, CallCompleted):
            row.end, row.output = "ok", bytes(frame.payload.output)
            task.produced.setdefault(row.key, set()).add(row.output)
            for other in task.equals(row):
                other.beside |= bool(other.executor)  # it was overtaken
            if row.parent is not None:
                return self.answer(task, row)
            total = sum(len(other.output) for other in task.rows)
            if task.output_limit and total > task.output_limit and not task.stopping:
                task.stopping = task.over_limit = True
            return []
        kind = frame.payload.error_kind
        if row.cancelled and kind == "CANCELLED":
            row.end = "cancelled"
            return []
        if kind == "DISPATCH_REFUSED":
            return self._refused(task, row, now)
        user = kind in {"USER_ERROR", "SOMETHING_NEW"}
        retryable = frame.payload.retryable if user else False
        if row.parent is not None:
            row.end = "failed"
            if (user or kind in SHARED) and not retryable:
                task.shared_failures.add(row.key)
            return self.answer(task, row)
        return self._charge(task, row, now, retryable=retryable, shared=user or kind in SHARED)

    def _guilty(
        self, host: Host, exit_code: int | None, running_no: int, *, by_us: bool
    ) -> tuple[Row | None, str]:
        live = {held.call.payload.call_no: held.row for held in host.held.values() if self.is_live(held)}
        if by_us and host.culprit:
            row = live.get(host.culprit)
            return (None if row is None else row.root), "EXECUTOR_WEDGED"
        if exit_code == -9 and not by_us:
            return None, ""
        known = {held.call.payload.call_no for held in host.held.values()}
        row = live.get(running_no) if running_no in known else host.alone()
        return (None if row is None else row.root), "EXECUTOR_LOST"

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

    def _refused(self, task: Task, row: Row, now: int) -> list[Fact]:
        row.executor = ""
        if task.stopping and row.parent is None:
            row.end = "cancelled"
            return []
        row.backing_off = True
        return [("retry", row.call_id, now + REFUSED_BACKOFF_MS)]

    def _charge(self, task: Task, row: Row, now: int, *, retryable: bool, shared: bool) -> list[Fact]:
        row.charged += 1
        if retryable and not task.stopping and row.charged < task.max_attempts:
            row.backing_off = True
            return [("retry", row.call_id, now + task.base_ms * 2 ** (row.charged - 1))]
        row.end = "failed"
        if shared and not retryable:
            task.shared_failures.add(row.key)
        if task.fast_fail:
            task.stopping = True
        return []

    def _cancelled(self, command: CancelCalls, now: int) -> int:
        """Root calls of stopped tasks, each with all that was out below it."""
        expected: list[Fact] = []
        roots = 0
        said = [("cancel", cancel.call_id, cancel.payload.attempt_seq) for cancel in command.calls]
        for cancel in command.calls:
            held = self.hosts[command.executor_id].held[cancel.call_id, cancel.payload.attempt_seq]
            assert held.task.stopping, "only a stopped task cancels"
            if held.row.parent is None:
                assert held.cancelled_ms is None, "a cancel is ordered once"
                expected += self._abandon(held.task, held.row, now)
                expected.append(("cancel", cancel.call_id, cancel.payload.attempt_seq))
                held.cancelled_ms = now
                held.row.cancelled = True
                roots += 1
        assert sorted(said) == sorted(expected), "what is below a cancelled call is cancelled"
        return roots

    def _failed_unseen(self, task: Task) -> bool:
        """A root call shared the failure of a subcall."""
        return any(not row.end and not row.executor and row.key in task.shared_failures for row in task.rows)

    def retired(self, host_id: str) -> list[Fact]:
        host = self.hosts[host_id]
        if not host.too_large or host.held or host.killed:
            return []
        host.killed = True
        return [("recycle", host_id, 0)]

    def _settled(self, task: Task, command: BatchSettled) -> None:
        assert command.first_index == task.settled, "batches settle in order, each once"
        assert not task.over_limit, "dropped outputs do not come back"
        task.batches_settled += 1
        for row, output in zip(task.rows[task.settled :], command.outputs, strict=False):
            assert not row.requests, "a batch settles when its subcalls are done"
            if row.end == "":  # ended together with an equal call
                assert output in task.produced.get(row.key, ()) if output else row.key in task.shared_failures
                row.end, row.output = ("ok", output) if output else ("failed", b"")
            assert row.end != "cancelled", "a batch with a cancelled call does not settle"
            assert (output or b"") == row.output, "each call's own output at its place"
        task.settled += len(command.outputs)

    def _converged(self, task: Task, command: ConvergeTaskCalls) -> None:
        assert not task.converged, "a task converges once"
        assert not any(row.executor for row in task.rows), "nothing is out any more"
        assert not task.subs, "no subcall is left"
        task.converged = True
        books = command.statistic
        ends = [row.end for row in task.rows]
        assert books.succeeded + books.failed + books.cancelled == books.total == len(task.rows)
        assert books.failed == len(command.failed_calls) + command.failed_calls_omitted
        assert (books.subcalls, books.io_requests) == (task.subcalls, task.io_requests)
        code = None if command.failure is None else command.failure.code
        if task.stopping:
            expected = TaskFailureCode.CALLS_FAILED
            if task.over_limit:
                expected = TaskFailureCode.OUTPUT_BYTES_EXCEEDED
            elif task.broken:
                expected = TaskFailureCode.BUILDER_FAILED
            assert code is expected
            assert books.succeeded >= ends.count("ok")
            assert books.failed >= ends.count("failed")
            return
        assert not task.production_open, "production has ended"
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
        limit = self.load_ms if last[3] else owner.budget_ms
        over = last[0] - host.reads[-same][0] > limit + self.grace_ms
        return owner if over and limit else None


def short(commands: list[DispatchCommand]) -> list[Fact]:
    """Commands that follow a fact, in short; drops are summed. Calls that are sent are judged apart."""
    facts: list[Fact] = []
    for command in commands:
        match command:
            case ArmCallRetry():
                facts.append(("retry", command.call_id, command.due_ms))
            case CancelCalls():
                facts += [("cancel", cancel.call_id, cancel.payload.attempt_seq) for cancel in command.calls]
            case ResumeCalls():
                facts += [("resume", frame.call_id, frame.request_id) for frame in command.frames]
            case ServeCallIo():
                facts.append(("io", command.frame.call_id, command.frame.request_id))
            case RecycleExecutor():
                facts.append(("recycle", command.executor_id, 0))
            case GrantProduction():
                facts.append(("grant", command.task_id, command.batches))
            case DispatchDropped():
                facts.append(("dropped", "", command.count))
            case DispatchCalls():
                pass
            case _:
                raise AssertionError(f"a fact never orders {command}")
    return facts
