"""Which calls may be sent where, and which answers may be given: the part of the naive model that only judges."""

from __future__ import annotations

from blockx_executor.wire.messages import ExecuteCall, ResumeCall
from blockx_worker.dispatch.commands import DispatchCalls, DispatchCommand
from tests.stateful.dispatcher_rows import Held, Host, Row, Task

Fact = tuple[str, str, int]


class SendJudge:
    """The state of the model, and what it allows."""

    def __init__(
        self,
        *,
        max_inflight: int,
        max_losses: int,
        max_batches: int,
        max_depth: int,
        share: str,
        caches: bool,
        heartbeat_timeout_ms: int,
        grace_ms: int,
        cancel_kill_ms: int,
        load_ms: int,
        too_large: int,
    ) -> None:
        self.max_inflight = max_inflight
        self.max_losses = max_losses
        self.max_batches = max_batches
        self.max_depth = max_depth
        self.share = share
        self.caches = caches
        self.heartbeat_timeout_ms = heartbeat_timeout_ms
        self.grace_ms = grace_ms
        self.cancel_kill_ms = cancel_kill_ms
        self.load_ms = load_ms
        self.too_large = too_large
        self.tasks: dict[str, Task] = {}
        self.hosts: dict[str, Host] = {}
        self.last_subcall = 0

    def is_live(self, held: Held) -> bool:
        """The attempt still counts: neither its task nor its parent has gone."""
        task = held.task
        return self.tasks.get(task.task_id) is task and task.find(held.call.call_id) is held.row

    def refusal(self, parent: Row, name: bytes) -> str:
        """Why a subcall may not be."""
        above = [parent, *parent.above()]
        if any(row.name == name for row in above):
            return "SUBCALL_CYCLE"
        return "SUBCALL_DEPTH" if len(above) >= self.max_depth else ""

    def accept(
        self, task: Task, parent: Row, request_id: int, name: bytes, args: bytes, *, shares: bool
    ) -> None:
        """A subcall begins to exist."""
        self.last_subcall += 1
        call_id = f"{parent.call_id}/sub-{self.last_subcall}"
        row = Row(call_id, name, name if shares else b"", args, parent, request_id)
        task.subs[call_id] = parent.requests[request_id] = row

    def answer(self, task: Task, row: Row) -> list[Fact]:
        """A subcall is over: its parent hears of it."""
        parent = row.parent
        assert parent is not None
        del task.subs[row.call_id]
        del parent.requests[row.request_id]
        return [("resume", parent.call_id, row.request_id)]

    def shared(self, host_id: str, frame: ResumeCall) -> None:
        """A subcall got what became of an equal call."""
        held = next(
            held
            for held in self.hosts[host_id].held.values()
            if held.call.call_id == frame.call_id and self.is_live(held)
        )
        row = held.row.requests[frame.request_id]
        assert row is not None, "a back end's answer comes with a fact"
        assert not row.executor, "who runs answers for itself"
        if frame.payload.error is None:
            assert bytes(frame.payload.result) in held.task.produced[row.key], "an output of an equal call"
        else:
            assert row.key in held.task.shared_failures, "a failure of an equal call"
        assert frame.payload.budget_used_ms == 0, "sharing costs nothing"
        row.end = "shared"
        held.task.subcalls += 1
        self.answer(held.task, row)

    def judge_sent(self, commands: list[DispatchCommand], now: int) -> None:
        """Look at all calls that leave with one event."""
        sent = [command for command in commands if isinstance(command, DispatchCalls)]
        assert len({command.executor_id for command in sent}) == len(sent), "one DispatchCalls per executor"
        for command in sent:
            for call in command.calls:
                self._sent(command.executor_id, call, now)

    def judge_quiet(self, now: int) -> None:
        """No turn is pending: whoever could go on has gone on."""
        room = any(self._room(host, now) > 0 for host in self.hosts.values())
        suspects = any(row.started_losses >= 2 for task in self.tasks.values() for row in task.living())
        excused = room and (suspects or self.share != "all")  # executors are kept for some
        for task in self.tasks.values():
            waits = any(row.executor or (row.backing_off and not task.stopping) for row in task.rows)
            waits |= task.production_open and not task.stopping
            assert task.converged or waits or excused or (not room and not task.stopping), (
                f"{task.task_id} is stuck"
            )
            if task.stopping:
                assert task.announced, "production was stopped"
                for row in task.rows:
                    assert not row.executor or row.cancelled, "what runs of a stopped task is cancelled"
            for row in task.subs.values():
                self._judge_waiting(task, row)

    def _judge_waiting(self, task: Task, row: Row) -> None:
        """A subcall that is not out has a good reason."""
        parent = row.parent
        assert parent is not None
        assert parent.executor, "a subcall without a parent is an orphan"
        assert not task.stopping, "a stopped task has no subcalls"
        bound = any(other.executor or other.parent is not None for other in task.equals(row))
        stuck = self.hosts[parent.executor].stuck
        assert row.executor or row.backing_off or bound or stuck, f"{row.call_id} waits for nothing"

    def _room(self, host: Host, now: int) -> int:
        silent = now - host.heard_ms > self.heartbeat_timeout_ms
        if host.killed or silent or host.stuck or host.too_large or host.alone() is not None or host.hogged():
            return 0
        return min(host.contexts, self.max_inflight) - len(host.held)

    def _sent(self, host_id: str, call: ExecuteCall, now: int) -> None:
        host = self.hosts[host_id]
        task = self.tasks[call.payload.task_id]
        row = task.row(call.call_id)
        assert call.payload.call_no > 0
        assert bytes(call.payload.args) == row.args, "the arguments of this call"
        assert not row.end, "a call that is over is not sent"
        assert not row.executor, "a call is in one place"
        assert not row.backing_off, "a back-off is waited for"
        assert call.payload.attempt_seq > row.seq, "attempts rise"
        put_off = row.parent is not None and bool(row.seq)  # was given back or refused: then it simply runs
        assert put_off or not (self.caches and row.key and row.key in task.produced), (
            "a known result is not computed again"
        )
        if row.parent is None:
            self._sent_root(host_id, host, task, row, now)
        else:
            self._sent_subcall(host_id, host, task, row)
            assert call.payload.parent_call_id == row.parent.call_id
        row.executor, row.seq = host_id, call.payload.attempt_seq
        host.held[call.call_id, row.seq] = Held(call, task, row)

    def _sent_root(self, host_id: str, host: Host, task: Task, row: Row, now: int) -> None:
        assert self._room(host, now) > 0, f"{host_id} has no room"
        if row.started_losses >= 2:
            assert not host.held, "a suspect runs alone"
        tenant = {"all": "", "instance": task.instance_id, "task": task.task_id}[self.share]
        assert host.tenant in (None, tenant), "tenants do not meet"
        host.tenant = tenant
        for other in task.equals(row):
            busy = (other.executor or (other.backing_off and other.parent is not None)) and not other.beside
            assert not busy, "equal calls run one at a time"

    def _sent_subcall(self, host_id: str, host: Host, task: Task, row: Row) -> None:
        parent = row.parent
        assert parent is not None
        assert parent.executor == host_id, "a subcall is with its parent"
        assert not host.stuck, "an executor that gave calls back gets none"
        if not row.seq:
            task.subcalls += 1
        for other in task.equals(row):
            if other.executor and not other.beside:
                row.beside = True
                assert row.seq or self._may_wait_for(task, other, set(parent.above()) | {parent}), (
                    "equal calls run one at a time, unless one would wait for itself, or was put off"
                )

    def _may_wait_for(self, task: Task, row: Row, targets: set[Row]) -> bool:
        """Whether a call waits for one of these, if each that is not out waits for all equal ones."""
        seen: set[Row] = set()
        to_look = [row]
        while to_look:
            row = to_look.pop()
            if row in seen:
                continue
            seen.add(row)
            to_look += [subcall for subcall in row.requests.values() if subcall is not None]
            if not row.executor:
                to_look += task.equals(row)
        return bool(seen & targets)
