"""Builds the parts of a worker from its settings and its surroundings; nothing runs yet."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import attrs
import trio

from blockx_worker.builders.registry import BuilderRegistry
from blockx_worker.config.addresses import parse_address
from blockx_worker.config.settings import Settings
from blockx_worker.core.events import (
    ResultRetentionElapsed,
    SlotLeaseExpired,
    TaskTimedOut,
    WatchGraceExpired,
)
from blockx_worker.core.limits import WorkerLimits
from blockx_worker.core.worker import WorkerCore
from blockx_worker.dispatch.config import DispatcherConfig
from blockx_worker.dispatch.dispatcher import DispatcherCore
from blockx_worker.dispatch.events import ExecutorsSwept
from blockx_worker.executors.connection import LinkConfig
from blockx_worker.executors.spawner import ProcessSpawner, SpawnerConfig
from blockx_worker.executors.supervisor import ExecutorSupervisor, SupervisorConfig
from blockx_worker.executors.userlog import UserLog
from blockx_worker.orchestrator.api import Api, ApiConfig
from blockx_worker.orchestrator.door import Door
from blockx_worker.orchestrator.orchestrator import Orchestrator, OrchestratorConfig
from blockx_worker.orchestrator.phases import Admission, PhaseConfig, Phases
from blockx_worker.orchestrator.timers import run_tick
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.pool.config import PoolConfig
from blockx_worker.pool.machine import PoolMachine
from blockx_worker.ports import Clock, ExecutorPlaces, ExecutorSpawner, FunctionProvider, IoProvider, Threads
from blockx_worker.rpc.access import Gate
from blockx_worker.rpc.config import RequestLimits, RpcConfig
from blockx_worker.security.tls import server_context

__all__ = ["Surroundings", "Worker", "assemble", "make_spawner", "rpc_config"]


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a worker needs from outside, and what its deployment offers; fakes in tests."""

    threads: Threads
    clock: Clock
    spawner: ExecutorSpawner
    places: ExecutorPlaces
    functions: FunctionProvider
    io: IoProvider
    builders: BuilderRegistry
    plugins: PluginRegistry
    jitter: Callable[[], float] = random.random


@attrs.frozen(kw_only=True)
class Worker:
    """The parts, joined."""

    settings: Settings
    functions: FunctionProvider
    io: IoProvider
    orchestrator: Orchestrator
    supervisor: ExecutorSupervisor
    api: Api

    async def tick(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tick; its steps in their order."""
        steps = [
            self._sweep_leases,
            self._sweep_deadlines,
            self._purge_results,
            self._observe_executors,
            self._sweep_executors,
        ]
        await run_tick(self.settings.tick_ms, steps, task_status=task_status)

    def _sweep_leases(self) -> None:
        door = self.orchestrator.door
        for slot_id in door.worker.expired_slots(door.now_ms()):
            self.orchestrator.decide(SlotLeaseExpired(slot_id=slot_id))

    def _sweep_deadlines(self) -> None:
        """A backstop behind the scopes of the tasks."""
        door = self.orchestrator.door
        for task_id in door.worker.timed_out_tasks(door.now_ms()):
            self.orchestrator.decide(TaskTimedOut(task_id=task_id))
        for task_id in door.worker.grace_expired_tasks(door.now_ms()):
            self.orchestrator.decide(WatchGraceExpired(task_id=task_id))

    def _purge_results(self) -> None:
        self.orchestrator.decide(ResultRetentionElapsed())

    def _observe_executors(self) -> None:
        for observed in self.supervisor.observe():
            self.orchestrator.actor.post(observed)

    def _sweep_executors(self) -> None:
        self.orchestrator.actor.post(ExecutorsSwept())


def assemble(settings: Settings, surroundings: Surroundings, *, check: bool = False) -> Worker:
    """Join the parts. ``check`` verifies the machines' invariants after every event (slow; for tests)."""
    door = _door(settings, surroundings.jitter, check=check)
    admission = Admission(
        builder=settings.admission.builder_task_slots,
        scan=settings.admission.scan_task_slots,
        executor=settings.admission.executor_task_slots,
        plugin=settings.admission.plugin_task_slots,
    )
    phases = Phases(
        _phase_config(settings),
        builders=surroundings.builders,
        plugins=surroundings.plugins,
        admission=admission,
        threads=surroundings.threads,
        clock=surroundings.clock,
    )
    orchestrator = Orchestrator(
        _orchestrator_config(settings),
        door,
        phases,
        functions=surroundings.functions,
        io=surroundings.io,
        threads=surroundings.threads,
    )
    supervisor = ExecutorSupervisor(
        _supervisor_config(settings),
        orchestrator,
        surroundings.spawner,
        surroundings.places,
        UserLog(settings.log.user_lines_per_s, trio.current_time),
    )
    orchestrator.links = supervisor
    api = Api(_api_config(settings), orchestrator, supervisor, surroundings.functions, admission)
    return Worker(
        settings=settings,
        functions=surroundings.functions,
        io=surroundings.io,
        orchestrator=orchestrator,
        supervisor=supervisor,
        api=api,
    )


def make_spawner(settings: Settings) -> ProcessSpawner:
    """The spawner of plain processes."""
    config = SpawnerConfig(
        python=settings.executor_python or SpawnerConfig().python,
        env_allow=settings.executor_env_allow,
        heartbeat_interval_ms=settings.dispatcher.heartbeat_interval_ms,
        function_load_timeout_ms=settings.function_load_timeout_ms,
        user_lines_per_s=settings.log.user_lines_per_s,
    )
    return ProcessSpawner(config, os.environ)


def rpc_config(settings: Settings, gate: Gate) -> RpcConfig:
    """Configuration of the gRPC server; OSError if its certificate cannot be used."""
    host, port = parse_address(settings.listen)
    limits = _pick(
        RequestLimits,
        settings,
        max_wait_ms=settings.rpc.max_wait_ms,
        max_watch_ids=settings.rpc.max_watch_ids,
        default_call_budget_ms=settings.dispatcher.call_deadline_ms,
        default_base_backoff_ms=settings.dispatcher.base_backoff_ms,
    )
    tls = settings.tls
    return RpcConfig(
        tls=server_context(tls.cert, tls.key, tls.client_ca) if tls.cert and tls.key else None,
        gate=gate,
        host=host,
        port=port,
        max_request_bytes=settings.rpc.max_request_bytes,
        keepalive_time_s=settings.rpc.keepalive_time_ms / 1000,
        keepalive_timeout_s=settings.rpc.keepalive_timeout_ms / 1000,
        max_connections=settings.rpc.max_connections,
        handshake_timeout_s=settings.rpc.handshake_timeout_ms / 1000,
        max_concurrent_streams=settings.rpc.max_concurrent_streams,
        max_header_bytes=settings.rpc.max_header_bytes,
        limits=limits,
    )


def _door(settings: Settings, jitter: Callable[[], float], *, check: bool) -> Door:
    return Door(
        worker=WorkerCore(_pick(WorkerLimits, settings)),
        dispatcher=DispatcherCore(_dispatcher_config(settings), jitter=jitter),
        pool=PoolMachine(
            PoolConfig(
                size=settings.executor_count,
                restart_delay_ms=settings.executor_restart_delay_ms,
                max_restarts=settings.executor_max_restarts,
                restart_window_ms=settings.executor_restart_window_ms,
                backoff_ms=settings.executor_backoff_ms,
            )
        ),
        check=check,
    )


def _dispatcher_config(settings: Settings) -> DispatcherConfig:
    dispatcher = settings.dispatcher
    config: DispatcherConfig = _pick(
        DispatcherConfig,
        dispatcher,
        selection_sample_size=dispatcher.executor_selection_sample_size,
        executor_share=settings.executor_share,
        function_load_timeout_ms=settings.function_load_timeout_ms,
        max_outstanding_batches=settings.stream_build.max_outstanding_batches,
    )
    return config


def _phase_config(settings: Settings) -> PhaseConfig:
    return PhaseConfig(
        output_segment_bytes=settings.rpc.output_segment_bytes,
        max_collected_output_bytes=settings.dispatcher.max_collected_output_bytes,
        batch_max_rows=settings.stream_build.batch_max_rows,
        batch_max_args_bytes=settings.stream_build.batch_max_args_bytes,
        max_outstanding_batches=settings.stream_build.max_outstanding_batches,
        streaming=settings.stream_build.enabled,
    )


def _orchestrator_config(settings: Settings) -> OrchestratorConfig:
    return OrchestratorConfig(
        actor_slice_calls=settings.dispatcher.actor_slice_calls,
        inbox_frames=settings.dispatcher.inbox_frames,
        writer_commit_timeout_ms=settings.writer_commit_timeout_ms,
    )


def _supervisor_config(settings: Settings) -> SupervisorConfig:
    dispatcher = settings.dispatcher
    return SupervisorConfig(
        executor_max_inflight=dispatcher.executor_max_inflight,
        executor_max_runnable=dispatcher.executor_max_runnable,
        start_timeout_ms=settings.executor_start_timeout_ms,
        stop_timeout_ms=settings.executor_stop_timeout_ms,
        link=LinkConfig(outbox_frames=dispatcher.outbox_frames, coalesce_frames=dispatcher.coalesce_frames),
    )


def _api_config(settings: Settings) -> ApiConfig:
    return ApiConfig(
        profile=settings.profile,
        progress_interval_ms=settings.rpc.progress_interval_ms,
        inline_output_bytes=settings.rpc.output_segment_bytes,
    )


def _pick(target: type[Any], source: object, **given: object) -> Any:
    """Make ``target`` from the attributes of the same name that ``source`` has; its defaults fill the rest."""
    names = [
        field.name
        for field in attrs.fields(target)
        if field.name not in given and hasattr(source, field.name)
    ]
    return target(**{name: getattr(source, name) for name in names}, **given)
