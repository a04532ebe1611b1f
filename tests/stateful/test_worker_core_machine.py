"""WorkerCore beside its naive model: any events in any order, legal or not, under small limits and jumping time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockx_worker.core import events as e
from blockx_worker.core.commands import WorkerCommand
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.worker import WorkerCore
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskFailure, TaskPhase, TaskRequest, TypedConfig
from tests.stateful.worker_model import Outline, WorkerModel, outline, picture

MEGABYTE = 1 << 20
"""Step of output sizes; far above the size of all result records together."""

TASK_IDS = ("a", "b", "c")
PHASES = (TaskPhase.BUILDER, TaskPhase.CALLS, TaskPhase.PLUGIN)

task_ids = st.sampled_from(TASK_IDS)
picks = st.integers(0, 4 * len(TASK_IDS) - 1)
timeouts = st.sampled_from((0, 300, 2_000, 10_001))
failures = st.sampled_from((None, None, None, TaskFailureCode.CALLS_FAILED, TaskFailureCode.PLUGIN_FAILED))


class WorkerCoreMachine(RuleBasedStateMachine):
    """Every rule posts events to the machine and to the model and compares what they order."""

    @initialize(
        slots=st.integers(1, 3),
        count=st.integers(1, 3),
        megabytes=st.integers(1, 5),
        grace=st.sampled_from((0, 200)),
    )
    def start(self, slots: int, count: int, megabytes: int, grace: int) -> None:
        limits = WorkerLimits(
            task_slots=slots,
            default_ttl_ms=400,
            max_ttl_ms=1_000,
            default_timeout_ms=1_000,
            max_timeout_ms=10_000,
            result_retention_ms=1_500,
            result_retention_count=count,
            result_retention_bytes=megabytes * MEGABYTE + MEGABYTE // 2,
            watch_disconnect_grace_ms=grace,
        )
        self.core = WorkerCore(limits)
        self.twin = WorkerCore(limits)
        self.model = WorkerModel(limits)
        self.now = 0
        self.posted = 0
        self.drops = 0
        self.slot_ids = ["slot-9-9"]
        self.seen: dict[str, tuple[object, int]] = {}
        self.newest_version = 0

    def post(self, event: e.WorkerEvent, expected: list[Outline]) -> None:
        commands: list[WorkerCommand] = self.core.handle(event, self.now)
        assert [outline(command) for command in commands] == expected
        assert self.twin.handle(event, self.now) == commands, "the same inputs give the same commands"
        self.core.check_invariants()
        self.posted += 1
        self.drops += sum(one[0] == "dropped" for one in expected)

    def slot_of(self, task_id: str) -> str:
        task = self.model.live.get(task_id)
        return "slot-9-9" if task is None else str(task["slot_id"])

    def one(self, pick: int, *phases: str | None) -> str:
        """Three times in four an id that stands in one of these phases, so that most events fit; else any id."""
        fitting = [task_id for task_id, task in self.model.live.items() if task["phase"] in phases]
        ids = fitting if fitting and pick % 4 else TASK_IDS
        return ids[pick // 4 % len(ids)]

    # --- time --------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 99, 200, 400, 1_500)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def jump_to_the_next_deadline_and_sweep(self) -> None:
        self.now = max(self.now, self.model.next_deadline() or 0)
        self.sweep()

    @rule()
    def sweep(self) -> None:
        for slot_id in self.core.expired_slots(self.now):
            self.expire_lease(slot_id)
        for task_id in self.core.timed_out_tasks(self.now):
            self.time_out(task_id)
        for task_id in self.core.grace_expired_tasks(self.now):
            self.expire_grace(task_id)
        self.post(e.ResultRetentionElapsed(), self.model.retention_elapsed(self.now))
        assert (self.core.next_deadline() or (self.now + 1,))[0] > self.now, (
            "a sweep leaves nothing that is due"
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    @rule(task_id=task_ids, ttl=st.sampled_from((0, 0, 100, 1_000, 1_001, -1)))
    def request_slot(self, task_id: str, ttl: int) -> None:
        self.post(
            e.SlotRequested(task_id=task_id, ttl_ms=ttl), self.model.slot_requested(task_id, ttl, self.now)
        )

    @rule(
        pick=picks, timeout=timeouts, slot=st.sampled_from(("none", "own", "some", "wrong")), data=st.data()
    )
    def submit(self, pick: int, timeout: int, slot: str, data: st.DataObject) -> None:
        task_id = self.one(pick, None)
        slot_id = None
        if slot == "own":
            slot_id = self.slot_of(task_id)
        elif slot == "wrong":
            slot_id = self.slot_ids[0]
        elif slot == "some":
            slot_id = data.draw(st.sampled_from(self.slot_ids))
        self.submit_request(task_id, timeout, slot_id)

    def submit_request(self, task_id: str, timeout: int, slot_id: str | None) -> None:
        config = TypedConfig("CallListCallConfig")
        request = TaskRequest(
            task_id=task_id, timeout_ms=timeout, slot_id=slot_id, function_call_config=config
        )
        self.post(e.SubmitRequested(request=request), self.model.submit_requested(request, self.now))

    @rule(task_id=task_ids)
    def cancel(self, task_id: str) -> None:
        self.post(e.CancelTaskRequested(task_id=task_id), self.model.cancel_requested(task_id, self.now))

    @rule(
        task_id=task_ids,
        submitted=st.booleans(),
        ms=st.sampled_from((99, 100, 400)),
        again=st.sampled_from(("request", "submit", "drain")),
    )
    def use_a_lease_at_its_end(self, task_id: str, submitted: bool, ms: int, again: str) -> None:
        """A rule of its own, because a lease is seldom met between its end and the sweep."""
        self.request_slot(task_id, 100)
        if submitted:
            self.submit_request(task_id, 2_000, None)
        self.now += ms
        if again == "drain" and self.posted > 50:
            self.start_drain()
        if again != "submit":
            self.request_slot(task_id, 100)
        self.submit_request(task_id, 2_000, None)

    # --- progress ----------------------------------------------------------------------------------------------------

    @rule(pick=picks, own=st.booleans(), data=st.data())
    def prepare(self, pick: int, own: bool, data: st.DataObject) -> None:
        task_id = self.one(pick, "PREPARING")
        self.activate(task_id, self.slot_of(task_id) if own else data.draw(st.sampled_from(self.slot_ids)))

    def activate(self, task_id: str, slot_id: str) -> None:
        event = e.TaskActivationPrepared(task_id=task_id, slot_id=slot_id, epoch=1)
        self.post(event, self.model.activation_prepared(task_id, slot_id))

    @rule(pick=picks)
    def fail_to_prepare(self, pick: int) -> None:
        task_id, code = self.one(pick, "PREPARING"), TaskFailureCode.IO_SCOPE_FAILED
        event = e.TaskActivationFailed(task_id=task_id, code=code, message="no scope")
        self.post(event, self.model.activation_failed(task_id, str(code), self.now))

    @rule(pick=picks, failure=failures, megabytes=st.integers(0, 3))
    def finish_its_phase(self, pick: int, failure: TaskFailureCode | None, megabytes: int) -> None:
        task_id = self.one(pick, *PHASES)
        self.finish(task_id, self.core.phase_of(task_id) or TaskPhase.CALLS, failure, megabytes)

    @rule(task_id=task_ids, phase=st.sampled_from(TaskPhase), failure=failures)
    def finish_some_phase(self, task_id: str, phase: TaskPhase, failure: TaskFailureCode | None) -> None:
        self.finish(task_id, phase, failure, 1)

    def finish(self, task_id: str, phase: TaskPhase, code: TaskFailureCode | None, megabytes: int) -> None:
        outcome = e.PhaseOutcome(
            failure=None if code is None else TaskFailure(code=code, message="because"),
            output_count=megabytes,
            retained_bytes=megabytes * MEGABYTE,
        )
        event = e.TaskPhaseFinished(task_id=task_id, phase=phase, outcome=outcome)
        self.post(event, self.model.phase_finished(task_id, str(phase), outcome, self.now))

    @rule(pick=picks, megabytes=st.integers(0, 3))
    def measure(self, pick: int, megabytes: int) -> None:
        task_id = self.one(pick, *PHASES)
        outcome = e.PhaseOutcome(output_count=megabytes, retained_bytes=megabytes * MEGABYTE)
        self.post(e.TaskMeasured(task_id=task_id, outcome=outcome), self.model.measured(task_id, outcome))

    @rule(task_id=task_ids, megabytes=st.integers(0, 3), phases=st.integers(1, 3))
    def run_on(self, task_id: str, megabytes: int, phases: int) -> None:
        """A rule of its own, because single steps seldom lead a task to its writer or its end."""
        self.submit_request(task_id, 2_000, None)
        self.activate(task_id, self.slot_of(task_id))
        for phase in PHASES[:phases]:
            self.finish(task_id, phase, None, megabytes)

    @rule(pick=picks, final=st.booleans())
    def start_commit(self, pick: int, final: bool) -> None:
        self.commit(self.one(pick, "PLUGIN"), final=final)

    def commit(self, task_id: str, *, final: bool) -> None:
        event = e.WriterCommitStarted(task_id=task_id, final=final)
        self.post(event, self.model.commit_started(task_id, final=final))

    @rule(pick=picks)
    def end_commit(self, pick: int) -> None:
        task_id = self.one(pick, "PLUGIN")
        self.post(e.WriterCommitEnded(task_id=task_id), self.model.commit_ended(task_id, self.now))

    @rule(
        task_id=task_ids,
        final=st.booleans(),
        ends=st.permutations(("cancel", "time-out", "grace", "drain")),
        waits=st.booleans(),
        then=st.sampled_from(("ended", "outcome", "later")),
    )
    def put_ends_off(self, task_id: str, final: bool, ends: list[str], waits: bool, then: str) -> None:
        """A rule of its own for the rarest path: ends that strike while a writer commits."""
        self.run_on(task_id, 1, 2)
        self.attach(task_id)
        self.commit(task_id, final=final)
        self.detach(task_id)
        for end in ends[:2]:
            if waits:
                self.now += 2_000
            if end == "cancel":
                self.cancel(task_id)
            elif end == "time-out":
                self.time_out(task_id)
            elif end == "grace":
                self.expire_grace(task_id)
            else:
                self.expire_drain()
        if then == "ended":
            self.post(e.WriterCommitEnded(task_id=task_id), self.model.commit_ended(task_id, self.now))
        elif then == "outcome":
            self.finish(task_id, TaskPhase.PLUGIN, None, 1)

    # --- ends --------------------------------------------------------------------------------------------------------

    @rule(task_id=task_ids)
    def time_out(self, task_id: str) -> None:
        self.post(e.TaskTimedOut(task_id=task_id), self.model.timed_out_event(task_id, self.now))

    @rule(pick=picks)
    def expire_its_lease(self, pick: int) -> None:
        self.expire_lease(self.slot_of(self.one(pick, None, "PREPARING")))

    @rule(data=st.data())
    def expire_some_lease(self, data: st.DataObject) -> None:
        self.expire_lease(data.draw(st.sampled_from(self.slot_ids)))

    def expire_lease(self, slot_id: str) -> None:
        self.post(e.SlotLeaseExpired(slot_id=slot_id), self.model.lease_expired(slot_id, self.now))

    @rule(pick=picks, owners=st.integers(1, 2), leave=st.integers(1, 2), ms=st.sampled_from((199, 200)))
    def own_and_leave(self, pick: int, owners: int, leave: int, ms: int) -> None:
        """A rule of its own, because a grace is seldom met at its very end."""
        task_id = self.one(pick, None, *PHASES)
        for _ in range(owners):
            self.attach(task_id)
        for _ in range(leave):
            self.detach(task_id)
        self.now += ms
        self.expire_grace(task_id)

    @rule(task_id=task_ids)
    def attach(self, task_id: str) -> None:
        self.post(e.WatchAttached(task_id=task_id), self.model.watch_attached(task_id))

    @rule(task_id=task_ids)
    def detach(self, task_id: str) -> None:
        self.post(e.WatchDetached(task_id=task_id), self.model.watch_detached(task_id, self.now))

    @rule(task_id=task_ids)
    def expire_grace(self, task_id: str) -> None:
        self.post(e.WatchGraceExpired(task_id=task_id), self.model.watch_grace_expired(task_id, self.now))

    @precondition(lambda self: self.posted > 50)
    @rule()
    def start_drain(self) -> None:
        self.post(e.DrainStarted(), self.model.drain_started())

    @rule()
    def expire_drain(self) -> None:
        self.post(e.DrainExpired(), self.model.drain_expired(self.now))

    # --- what is always true -----------------------------------------------------------------------------------------

    @invariant()
    def machine_and_model_look_the_same(self) -> None:
        core, model, now = self.core, self.model, self.now
        for task_id in TASK_IDS:
            assert picture(core.snapshot(task_id, now)) == model.picture(task_id, now)
        assert list(core.expired_slots(now)) == model.expired_slots(now)
        assert list(core.timed_out_tasks(now)) == model.timed_out(now)
        assert list(core.grace_expired_tasks(now)) == model.grace_expired(now)
        assert (core.next_deadline() or (None,))[0] == model.next_deadline()
        assert sum(core.dropped.values()) == self.drops

    @invariant()
    def numbers_agree(self) -> None:
        counts, live = self.core.counts(self.now), self.model.live.values()
        assert counts.allocated == sum(task["state"] == "ALLOCATED" for task in live)
        assert counts.running == sum(task["state"] == "RUNNING" for task in live)
        assert counts.retained_results == len(self.model.ended)
        assert (
            counts.retained_bytes // MEGABYTE == sum(task["bytes"] for task in self.model.ended) // MEGABYTE
        )
        active = [task["id"] for task in self.model.by_place() if task["phase"] is not None]
        assert list(self.core.active_tasks()) == active
        assert self.core.drained == (self.model.draining and not active)

    @invariant()
    def versions_rise_with_what_clients_see(self) -> None:
        newest = self.newest_version
        for task_id in TASK_IDS:
            snapshot = self.core.snapshot(task_id, self.now)
            version = self.core.version_of(task_id)
            look = snapshot and (snapshot.state, snapshot.phase, snapshot.slot_id)
            assert (version > 0) == (snapshot is not None)
            old_look, old_version = self.seen.get(task_id, (None, 0))
            if look is not None and look != old_look:
                assert version > self.newest_version
            elif look is not None:
                assert version >= old_version
            self.seen[task_id] = (look, version)
            newest = max(newest, version)
            if snapshot and snapshot.slot_id not in self.slot_ids:
                self.slot_ids.append(snapshot.slot_id)
        self.newest_version = newest


TestWorkerCore = WorkerCoreMachine.TestCase
TestWorkerCore.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the machine that runs this may be busy
)
