"""A naive model of WorkerCore, written from the rules and not from the machine.

It keeps plain dictionaries, recomputes everything and looks nothing up in a table. What it predicts is the *outline* of
the commands: what `outline` leaves of a real command, so without texts and drop reasons.
"""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never

from blockx_worker.core import commands as c
from blockx_worker.core.events import PhaseOutcome
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.model.tasks import TaskRequest, TaskSnapshot

Outline: TypeAlias = tuple[Any, ...]

NEXT_PHASE = {"BUILDER": "CALLS", "CALLS": "PLUGIN"}


def outline(command: c.WorkerCommand) -> Outline:  # noqa: PLR0911 - one arm per command
    """The predictable part of a command."""
    match command:
        case c.AnswerSnapshot():
            return ("answer", picture(command.snapshot), command.created)
        case c.Refuse():
            return ("refuse", str(command.code))
        case c.ConvergeTask():
            failure = command.result.failure
            code = None if failure is None else str(failure.code)
            return ("end", command.task_id, str(command.result.state), code, command.result.output_count)
        case c.PrepareTaskActivation():
            return ("prepare", command.task_id, command.slot_id)
        case c.ArmTaskDeadline() | c.ArmWatchGrace():
            return (type(command).__name__, command.task_id, command.deadline_ms)
        case c.Dropped():
            return ("dropped", command.event)
        case (
            c.StartBuilderPhase()
            | c.StartCallPhase()
            | c.StartWriterPhase()
            | c.PublishTask()
            | c.CommitGranted()
            | c.DisarmWatchGrace()
            | c.ForgetResult()
        ):
            return (type(command).__name__, command.task_id)
        case _:
            assert_never(command)


def picture(snapshot: TaskSnapshot | None) -> Outline | None:
    """The predictable part of a snapshot."""
    if snapshot is None:
        return None
    failure = None if snapshot.result is None else snapshot.result.failure
    return (
        snapshot.task_id,
        snapshot.slot_id,
        str(snapshot.state),
        None if snapshot.phase is None else str(snapshot.phase),
        snapshot.lease_remaining_ms,
        None if failure is None else str(failure.code),
    )


class WorkerModel:
    """Slots and tasks, the slow and simple way. ``live`` holds what has a slot, ``ended`` what is retained, oldest first.

    Bytes are counted without the records themselves: the test keeps outputs large and the budget between two steps.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.live: dict[str, dict[str, Any]] = {}
        self.ended: list[dict[str, Any]] = []
        self.draining = False
        self.leases = 0

    # --- what can be seen ------------------------------------------------------------------------------------------

    def picture(self, task_id: str, now: int) -> Outline | None:
        if task_id in self.live:
            task = self.live[task_id]
            remaining = max(0, task["lease_end"] - now) if task["state"] == "ALLOCATED" else 0
            return (task_id, task["slot_id"], task["state"], task["phase"], remaining, None)
        for task in self.ended:
            if task["id"] == task_id:
                return (task_id, task["slot_id"], task["state"], "DONE", 0, task["code"])
        return None

    def by_place(self) -> list[dict[str, Any]]:
        return sorted(self.live.values(), key=lambda task: int(task["place"]))

    def expired_slots(self, now: int) -> list[str]:
        tasks = self.by_place()
        return [
            task["slot_id"] for task in tasks if task["state"] == "ALLOCATED" and now >= task["lease_end"]
        ]

    def timed_out(self, now: int) -> list[str]:
        return [
            task["id"]
            for task in self.by_place()
            if task["phase"] is not None and task["later"] is None and now >= task["deadline"]
        ]

    def grace_expired(self, now: int) -> list[str]:
        return [
            task["id"]
            for task in self.by_place()
            if task["grace"] is not None and task["later"] is None and now >= task["grace"]
        ]

    def next_deadline(self) -> int | None:
        times = [task["lease_end"] for task in self.live.values() if task["state"] == "ALLOCATED"]
        for task in self.live.values():
            if task["phase"] is not None and task["later"] is None:
                times += [task["deadline"], *([task["grace"]] if task["grace"] is not None else [])]
        times += [task["ended_at"] + self.limits.result_retention_ms for task in self.ended]
        return min(times, default=None)

    # --- requests --------------------------------------------------------------------------------------------------

    def slot_requested(self, task_id: str, ttl: int, now: int) -> list[Outline]:
        if ttl < 0 or ttl > self.limits.max_ttl_ms:
            return [("refuse", "INVALID_ARGUMENT")]
        ttl = ttl or self.limits.default_ttl_ms
        task = self.live.get(task_id)
        if task and task["phase"] is None and now >= task["lease_end"]:
            if self.draining:
                return [("refuse", "UNAVAILABLE")]
            task["lease_end"] = now + ttl
        if seen := self.picture(task_id, now):
            return [("answer", seen, False)]
        if self.draining:
            return [("refuse", "UNAVAILABLE")]
        if len(self.live) == self.limits.task_slots:
            return [("refuse", "NO_SLOT")]
        self._lease(task_id, now + ttl)
        return [("answer", self.picture(task_id, now), True)]

    def submit_requested(self, request: TaskRequest, now: int) -> list[Outline]:  # noqa: PLR0911 - one per answer
        task_id = request.task_id
        if request.timeout_ms < 1 or request.timeout_ms > self.limits.max_timeout_ms:
            return [("refuse", "INVALID_ARGUMENT")]
        task = self.live.get(task_id)
        known = [one for one in [*self.live.values(), *self.ended] if one["id"] == task_id and one["phase"]]
        if known:
            if known[0]["fingerprint"] != request.fingerprint:
                return [("refuse", "TASK_ID_CONFLICT")]
            return [("answer", self.picture(task_id, now), False)]
        if self.draining:
            return [("refuse", "UNAVAILABLE")]
        if request.slot_id is not None and (not task or task["slot_id"] != request.slot_id):
            return [("refuse", "INVALID_SLOT")]
        if task and now >= task["lease_end"]:
            return [("refuse", "SLOT_UNCERTAIN")]
        if not task and len(self.live) == self.limits.task_slots:
            return [("refuse", "NO_SLOT")]
        leased = task is not None
        task = task or self._lease(task_id, now + self.limits.default_ttl_ms)
        task["phase"] = "PREPARING"
        task["fingerprint"] = request.fingerprint
        task["deadline"] = now + request.timeout_ms
        return [
            ("answer", self.picture(task_id, now), True),
            ("prepare", task_id, task["slot_id"]),
            ("ArmTaskDeadline", task_id, task["deadline"]),
            *([("PublishTask", task_id)] if leased else []),
        ]

    def cancel_requested(self, task_id: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task:
            seen = self.picture(task_id, now)
            return [("answer", seen, False)] if seen else [("refuse", "NOT_FOUND")]
        if task["phase"] is None:
            del self.live[task_id]
            seen = (task_id, task["slot_id"], "CANCELLED", "DONE", 0, "CANCELLED_BY_CLIENT")
            return [("answer", seen, False), ("PublishTask", task_id)]
        ordered = self._end_from_outside(task, "CancelTaskRequested", "CANCELLED", "CANCELLED_BY_CLIENT", now)
        return [("answer", self.picture(task_id, now), False), *ordered]

    # --- facts -----------------------------------------------------------------------------------------------------

    def activation_prepared(self, task_id: str, slot_id: str) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["phase"] != "PREPARING" or task["slot_id"] != slot_id:
            return [("dropped", "TaskActivationPrepared")]
        task["state"] = "RUNNING"
        task["phase"] = "BUILDER"
        return [("StartBuilderPhase", task_id), ("PublishTask", task_id)]

    def activation_failed(self, task_id: str, code: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["phase"] != "PREPARING":
            return [("dropped", "TaskActivationFailed")]
        return self._end(task, "FAILED", code, now)

    def phase_finished(self, task_id: str, phase: str, outcome: PhaseOutcome, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or phase not in ("BUILDER", "CALLS", "PLUGIN"):
            return [("dropped", "TaskPhaseFinished")]
        meanwhile = task["phase"] == "CALLS" and task["commit"]  # a batch is being committed while calls run
        if (task["phase"] != phase and not (meanwhile and phase == "PLUGIN")) or (
            meanwhile and outcome.failure is None
        ):
            return [("dropped", "TaskPhaseFinished")]
        task["outputs"] = outcome.output_count or task["outputs"]
        task["bytes"] = outcome.retained_bytes or task["bytes"]
        if outcome.failure is None and phase != "PLUGIN":
            task["phase"] = NEXT_PHASE[phase]
            start = "StartCallPhase" if phase == "BUILDER" else "StartWriterPhase"
            return [(start, task_id), ("PublishTask", task_id)]
        late = [("dropped", task["later"][0])] if task["later"] else []
        if outcome.failure is None:
            return [*self._end(task, "SUCCEEDED", None, now), *late]
        return [*self._end(task, "FAILED", str(outcome.failure.code), now), *late]

    def measured(self, task_id: str, outcome: PhaseOutcome) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["phase"] is None:
            return [("dropped", "TaskMeasured")]
        task["outputs"] = outcome.output_count or task["outputs"]
        task["bytes"] = outcome.retained_bytes or task["bytes"]
        return []

    def commit_started(self, task_id: str, *, final: bool) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["commit"] or task["phase"] not in (["PLUGIN"] if final else ["CALLS", "PLUGIN"]):
            return [("dropped", "WriterCommitStarted")]
        task["commit"] = "final" if final else "one of several"
        return [("CommitGranted", task_id)]

    def commit_ended(self, task_id: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["commit"] != "one of several":
            return [("dropped", "WriterCommitEnded")]
        task["commit"] = None
        if not task["later"]:
            return []
        _, state, code = task["later"]
        return self._end(task, state, code, now)

    def timed_out_event(self, task_id: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["phase"] is None or now < task["deadline"]:
            return [("dropped", "TaskTimedOut")]
        return self._end_from_outside(task, "TaskTimedOut", "TIMED_OUT", "TASK_TIMED_OUT", now)

    def lease_expired(self, slot_id: str, now: int) -> list[Outline]:
        for task in self.live.values():
            if task["slot_id"] == slot_id and task["state"] == "ALLOCATED" and now >= task["lease_end"]:
                if task["phase"] is not None:
                    return self._end(task, "FAILED", "SLOT_LOST", now)
                del self.live[task["id"]]
                return [("PublishTask", task["id"])]
        return [("dropped", "SlotLeaseExpired")]

    def watch_attached(self, task_id: str) -> list[Outline]:
        task = self.live.get(task_id)
        if not task:
            return [("dropped", "WatchAttached")]
        task["owners"] += 1
        armed, task["grace"] = task["grace"], None
        return [] if armed is None else [("DisarmWatchGrace", task_id)]

    def watch_detached(self, task_id: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or not task["owners"]:
            return [("dropped", "WatchDetached")]
        task["owners"] -= 1
        if task["owners"] or task["phase"] is None or not self.limits.watch_disconnect_grace_ms:
            return []
        task["grace"] = now + self.limits.watch_disconnect_grace_ms
        return [("ArmWatchGrace", task_id, task["grace"])]

    def watch_grace_expired(self, task_id: str, now: int) -> list[Outline]:
        task = self.live.get(task_id)
        if not task or task["grace"] is None or now < task["grace"]:
            return [("dropped", "WatchGraceExpired")]
        return self._end_from_outside(task, "WatchGraceExpired", "CANCELLED", "WATCH_DISCONNECTED", now)

    def retention_elapsed(self, now: int) -> list[Outline]:
        old = [task for task in self.ended if now - task["ended_at"] >= self.limits.result_retention_ms]
        self.ended = [task for task in self.ended if task not in old]
        return [("ForgetResult", task["id"]) for task in old]

    def drain_started(self) -> list[Outline]:
        if self.draining:
            return [("dropped", "DrainStarted")]
        self.draining = True
        return []

    def drain_expired(self, now: int) -> list[Outline]:
        if not self.draining:
            return [("dropped", "DrainExpired")]
        ordered: list[Outline] = []
        for task in self.by_place():
            if task["phase"] is None:
                del self.live[task["id"]]
                ordered.append(("PublishTask", task["id"]))
            else:
                ordered += self._end_from_outside(task, "DrainExpired", "CANCELLED", "WORKER_SHUTDOWN", now)
        return ordered

    # --- steps -----------------------------------------------------------------------------------------------------

    def _lease(self, task_id: str, end: int) -> dict[str, Any]:
        self.leases += 1
        taken = {task["place"] for task in self.live.values()}
        place = min(set(range(self.limits.task_slots)) - taken)
        self.live[task_id] = {
            "id": task_id,
            "place": place,
            "slot_id": f"slot-{place}-{self.leases}",
            "lease_end": end,
            "state": "ALLOCATED",
            "phase": None,
            "owners": 0,
            "grace": None,
            "commit": None,
            "later": None,
            "outputs": 0,
            "bytes": 0,
        }
        return self.live[task_id]

    def _end_from_outside(
        self, task: dict[str, Any], event: str, state: str, code: str, now: int
    ) -> list[Outline]:
        if not task["commit"]:
            return self._end(task, state, code, now)
        if task["later"]:
            return [("dropped", event)]
        task["later"] = (event, state, code)
        return []

    def _end(self, task: dict[str, Any], state: str, code: str | None, now: int) -> list[Outline]:
        del self.live[task["id"]]
        self.ended.append({**task, "state": state, "code": code, "ended_at": now})
        ordered: list[Outline] = [("end", task["id"], state, code, task["outputs"])]
        while len(self.ended) > 1 and (
            len(self.ended) > self.limits.result_retention_count
            or sum(one["bytes"] for one in self.ended) > self.limits.result_retention_bytes
        ):
            ordered.append(("ForgetResult", self.ended.pop(0)["id"]))
        return ordered
