"""Keeps the executor processes of the pool running and connected.

The pool machine decides when a slot gets a process; one task here accompanies each process from its spawn to its last
byte of output: listen, spawn, accept, attach, move frames, kill, reap. Whatever ends first ends the rest, and the
outcome is reported as facts: the dispatcher hears that an executor is lost, the pool that a process is gone.

Until the first executor has attached, a failure is a matter for whoever started the worker (an interpreter that is not
there, or lacks what executors need): when the first process of every slot has failed, `run` raises instead of trying on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from blockx_executor.wire.blackbox import BlackBoxReading, read_blackbox
from blockx_executor.wire.exit_codes import describe_exit_code
from blockx_executor.wire.messages import HeartbeatPayload
from blockx_executor.wire.version import VERSION
from blockx_worker.dispatch.events import DispatchEvent, ExecutorAttached, ExecutorLost, ExecutorObserved
from blockx_worker.executors.connection import ExecutorConnection, FrameSink, LinkConfig
from blockx_worker.executors.userlog import UserLog
from blockx_worker.pool.commands import PoolCommand, PoolDropped, ReportSlot, SpawnExecutor, StopExecutor
from blockx_worker.pool.events import (
    PoolEvent,
    PoolStarted,
    PoolStopped,
    PoolTicked,
    ProcessExited,
    ProcessSpawned,
    SpawnFailed,
)
from blockx_worker.ports import (
    ExecutorPlace,
    ExecutorPlaces,
    ExecutorProcess,
    ExecutorSpawner,
    LinkListener,
    SpawnRequest,
)
from blockx_worker.telemetry.log import get_logger

__all__ = ["ExecutorSupervisor", "PoolDoor", "SupervisorConfig"]

log = get_logger(__name__)

_OUTPUT_LINGER_S = 1.0  # a grandchild may hold the pipes open after the executor's end


@attrs.frozen(kw_only=True)
class SupervisorConfig:
    """Time limits in ms; the two maxima are passed on to each executor."""

    executor_max_inflight: int = 128
    executor_max_runnable: int = 128
    start_timeout_ms: int = 30_000
    stop_timeout_ms: int = 2_000
    link: LinkConfig = attrs.field(factory=LinkConfig)


class PoolDoor(FrameSink, Protocol):
    """What the supervisor tells the rest of the worker."""

    def pool_event(self, event: PoolEvent) -> list[PoolCommand]:
        """Let the pool machine decide."""

    def post(self, event: DispatchEvent) -> None:
        """Queue a fact for the dispatcher, behind the frames that were read before it."""

    def pool_deadline_ms(self) -> int | None:
        """When the pool machine wants to be ticked, in core time."""


@attrs.define(eq=False)
class _Aboard:
    """A process and what belongs to it while it lives."""

    executor_id: str
    slot: int
    generation: int
    place: ExecutorPlace
    process: ExecutorProcess
    scope: trio.CancelScope
    connection: ExecutorConnection | None = None
    killed_by_us: bool = False
    attached: bool = False
    stopping: bool = False
    reason: str = ""


class ExecutorSupervisor:
    """Runs the processes; `run` is its one task."""

    def __init__(
        self,
        config: SupervisorConfig,
        door: PoolDoor,
        spawner: ExecutorSpawner,
        places: ExecutorPlaces,
        user_log: UserLog,
    ) -> None:
        self._config = config
        self._door = door
        self._spawner = spawner
        self._places = places
        self._user_log = user_log
        self._aboard: dict[str, _Aboard] = {}
        self._nursery: trio.Nursery
        self._start_decided = trio.Event()
        self._attached_once = False
        self._failed_starts: dict[int, str] = {}
        self._spawned: set[int] = set()
        self._due_changed = trio.Event()
        self._empty = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the pool until cancelled, then stop every process; started when the first executor has attached.

        OSError when none could be started.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._decide(PoolStarted())
                nursery.start_soon(self._tick)
                await self._start_decided.wait()
                if not self._attached_once:
                    raise OSError(f"no executor could be started: {next(iter(self._failed_starts.values()))}")
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._decide(PoolStopped())
                with trio.CancelScope(shield=True):
                    await self._reap_all()

    def connection(self, executor_id: str) -> ExecutorConnection | None:
        """The live connection of an executor."""
        aboard = self._aboard.get(executor_id)
        return aboard.connection if aboard else None

    def kill(self, executor_id: str, reason: str) -> None:
        """Kill an executor's process; its calls are reported as lost once it is dead."""
        if aboard := self._aboard.get(executor_id):
            self._kill(aboard, reason)

    def recycle(self, executor_id: str, reason: str) -> None:
        """End an executor's process, on which nothing runs; its slot gets another one."""
        if aboard := self._aboard.get(executor_id):
            aboard.reason = reason
            aboard.killed_by_us = True
            aboard.process.terminate()

    def observe(self) -> list[ExecutorObserved]:
        """What the black boxes of the attached executors say now."""
        return [_observed(aboard) for aboard in self._aboard.values() if aboard.attached]

    def pid_of(self, executor_id: str) -> int:
        """The process id of an executor, 0 when it has none."""
        aboard = self._aboard.get(executor_id)
        return aboard.process.pid if aboard else 0

    # --- carrying out what the pool machine orders ---------------------------------------------------------------

    def _decide(self, event: PoolEvent) -> None:
        for command in self._door.pool_event(event):
            match command:
                case SpawnExecutor():
                    self._spawned.add(command.slot)
                    self._nursery.start_soon(self._accompany, command.slot, command.generation)
                case StopExecutor():
                    self._stop(command.slot)
                case ReportSlot():
                    log.info(
                        "executor_slot",
                        executor_id=f"exec-{command.slot}",
                        state=command.state,
                        reason=command.reason,
                    )
                case PoolDropped():
                    log.debug("pool_event_dropped", dropped=command.event, reason=command.reason)
        self._due_changed.set()

    async def _tick(self) -> None:
        while True:
            self._due_changed = trio.Event()
            deadline = self._door.pool_deadline_ms()
            with trio.CancelScope(deadline=float("inf") if deadline is None else deadline / 1000):
                await self._due_changed.wait()
            deadline = self._door.pool_deadline_ms()
            if deadline is not None and deadline / 1000 <= trio.current_time():
                self._decide(PoolTicked())

    async def _accompany(self, slot: int, generation: int) -> None:
        executor_id = f"exec-{slot}"
        place: ExecutorPlace | None = None
        try:
            place = self._places.make(f"{executor_id}-{generation}")
            listener = place.listen()
            process = self._spawner.spawn(self._request(executor_id, place))
        except OSError as error:
            if place is not None:
                place.remove()
            log.error("executor_spawn_failed", executor_id=executor_id, error=str(error))  # noqa: TRY400 - the sentence is enough
            self._decide(SpawnFailed(slot=slot, generation=generation, message=str(error)))
            self._start_failed(slot, f"{executor_id}: {error}")
            return
        place.expect_pid(process.pid)
        aboard = _Aboard(executor_id, slot, generation, place, process, trio.CancelScope())
        self._aboard[executor_id] = aboard
        self._decide(ProcessSpawned(slot=slot, generation=generation, pid=process.pid))
        await self._live(aboard, listener)

    def _request(self, executor_id: str, place: ExecutorPlace) -> SpawnRequest:
        return SpawnRequest(
            executor_id=executor_id,
            socket_path=place.socket_path,
            blackbox_path=place.blackbox_path,
            max_inflight=self._config.executor_max_inflight,
            max_runnable=self._config.executor_max_runnable,
        )

    async def _live(self, aboard: _Aboard, listener: LinkListener) -> None:
        with trio.CancelScope(shield=True):  # a process is never left unreaped, also when the worker stops
            async with trio.open_nursery() as nursery:
                output = trio.CancelScope()
                nursery.start_soon(self._drain_output, aboard, output)
                nursery.start_soon(self._link, aboard, listener)
                exit_code = await aboard.process.wait()
                aboard.scope.cancel()
                output.deadline = trio.current_time() + _OUTPUT_LINGER_S
        self._gone(aboard, exit_code)

    async def _drain_output(self, aboard: _Aboard, scope: trio.CancelScope) -> None:
        with scope:
            await aboard.process.output_lines(
                lambda name, line: self._user_log.line(aboard.executor_id, name, line)
            )

    async def _link(self, aboard: _Aboard, listener: LinkListener) -> None:
        """Accept, attach and move frames; however that ends, the process has no further use."""
        with aboard.scope:
            try:
                with trio.fail_after(self._config.start_timeout_ms / 1000):
                    stream = await listener.accept()
            except trio.TooSlowError:
                self._kill(aboard, f"it did not connect within {self._config.start_timeout_ms} ms")
                return
            finally:
                listener.close()
            connection = ExecutorConnection(aboard.executor_id, stream, self._config.link, self._door)
            aboard.connection = connection
            async with stream:
                reason = await connection.run(self._attacher(aboard))
            if aboard.reason == "":
                aboard.reason = reason
            with trio.move_on_after(
                _OUTPUT_LINGER_S
            ):  # a dying executor closes its end first: let its exit code speak
                await trio.sleep_forever()
            self._kill(aboard, reason)

    def _attacher(self, aboard: _Aboard) -> Callable[[HeartbeatPayload], str]:
        def attach(heartbeat: HeartbeatPayload) -> str:
            if heartbeat.executor_id != aboard.executor_id:
                return f"it calls itself {heartbeat.executor_id!r}, expected {aboard.executor_id!r}"
            if heartbeat.version != VERSION:
                return (
                    f"it runs blockx-executor {heartbeat.version}, this worker needs {VERSION}: "
                    "install that version beside the functions' libraries"
                )
            aboard.attached = True
            contexts = heartbeat.available_contexts + heartbeat.inflight_count
            self._door.post(ExecutorAttached(executor_id=aboard.executor_id, usable_contexts=contexts))
            self._attached_once = True
            self._start_decided.set()
            log.info("executor_attached", executor_id=aboard.executor_id, pid=heartbeat.pid)
            return ""

        return attach

    # --- ends ----------------------------------------------------------------------------------------------------

    def _kill(self, aboard: _Aboard, reason: str) -> None:
        aboard.reason = reason
        aboard.killed_by_us = True
        aboard.process.kill()

    def _stop(self, slot: int) -> None:
        if aboard := self._aboard.get(f"exec-{slot}"):
            aboard.killed_by_us = aboard.stopping = True
            aboard.reason = "the worker stops"
            aboard.process.terminate()

    def _gone(self, aboard: _Aboard, exit_code: int) -> None:
        del self._aboard[aboard.executor_id]
        if not self._aboard:
            self._empty.set()
        message = (
            f"executor {aboard.executor_id} (pid {aboard.process.pid}) ended with {_in_words(exit_code)}"
        )
        if aboard.killed_by_us:
            message = f"{message} because {aboard.reason}"
        log_gone = log.info if aboard.stopping else log.warning
        log_gone("executor_gone", executor_id=aboard.executor_id, pid=aboard.process.pid, message=message)
        if aboard.attached:
            self._door.post(
                ExecutorLost(
                    executor_id=aboard.executor_id,
                    message=message,
                    exit_code=exit_code,
                    killed_by_us=aboard.killed_by_us,
                    running_call_no=_observed(aboard).call_no,
                )
            )
        aboard.place.remove()
        self._decide(
            ProcessExited(
                slot=aboard.slot,
                generation=aboard.generation,
                deliberate=aboard.killed_by_us,
                message=message,
            )
        )
        if not aboard.attached:
            self._start_failed(aboard.slot, f"{message}; its last words are in the log")

    def _start_failed(self, slot: int, message: str) -> None:
        """A process was gone before it attached: while none ever has, that may be the end."""
        self._failed_starts.setdefault(slot, message)
        if self._failed_starts.keys() >= self._spawned:
            self._start_decided.set()

    async def _reap_all(self) -> None:
        """After SIGTERM to all: give them their time, then SIGKILL."""
        if self._aboard:
            self._empty = trio.Event()
            with trio.move_on_after(self._config.stop_timeout_ms / 1000):
                await self._empty.wait()
        for aboard in self._aboard.values():
            aboard.process.kill()
        self._nursery.cancel_scope.cancel()


def _observed(aboard: _Aboard) -> ExecutorObserved:
    """What the page says; nothing when user code has overwritten it."""
    try:
        reading = read_blackbox(aboard.place.read_blackbox())
    except ValueError:
        reading = BlackBoxReading(0, 0, 0, loading=False)
    return ExecutorObserved(
        executor_id=aboard.executor_id, call_no=reading.call_no, since=reading.since, loading=reading.loading
    )


def _in_words(exit_code: int) -> str:
    if exit_code < 0:
        return f"signal {-exit_code}"
    meaning = describe_exit_code(exit_code)
    return f"exit code {exit_code}" + (f": {meaning}" if meaning else "")
