"""The only joiner: opens the nursery tree of a worker and knows the order of start and stop.

::

    run
    └─ services          started in this order, stopped in reverse
       ├─ functions      follows the function folder
       ├─ io             back ends that calls may ask
       ├─ orchestrator   dispatch actor · retry timer · one nursery for each task
       ├─ executors      one task for each process, with reader and writer of its link
       ├─ tick           leases, deadlines, purge, observations, sweeps
       ├─ tokens         follows the tokens file, where there is one
       ├─ shadow         copies of accepted tasks to another worker, if there is one
       ├─ rpc            gRPC server
       └─ registry       the worker's key in etcd, if there is one

Stop, on SIGTERM or SIGINT: draining on → tasks get ``drain_timeout_ms`` → the rest end as CANCELLED → watchers get
``drain_linger_ms`` → services stop. A second signal later than one second after the first skips the waits.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import trio

from blockx_worker import bridge
from blockx_worker.assembly import Worker, assemble, rpc_config
from blockx_worker.cluster import Registration, make_shadow
from blockx_worker.config.advice import security_advice
from blockx_worker.config.errors import ConfigError
from blockx_worker.config.load import LoadedSettings
from blockx_worker.config.settings import Settings
from blockx_worker.core.events import DrainExpired, DrainStarted
from blockx_worker.deployment import surroundings_of
from blockx_worker.executors.interpreter import check_executor_python
from blockx_worker.executors.places import RuntimeDirectory
from blockx_worker.rpc.access import OPEN_GATE, Gate
from blockx_worker.rpc.server import serve
from blockx_worker.rpc.token_file import TokenFile
from blockx_worker.services import ServiceStack
from blockx_worker.surroundings import SystemClock, WorkerThreads
from blockx_worker.telemetry.log import configure_logging, get_logger

__all__ = ["EXIT_CANNOT_START", "EXIT_CLEAN", "EXIT_CUT_OFF", "run"]

log = get_logger(__name__)

EXIT_CLEAN = 0
EXIT_CUT_OFF = 1
EXIT_CANNOT_START = 2

_SECOND_SIGNAL_S = 1.0  # an impatient double Ctrl-C, or one signal delivered twice, is one
_LAST_BYTES_S = 0.1  # what the last watcher was told is still on its way out
_SWITCH_INTERVAL_S = (
    0.0005  # writer and scan threads give the GIL back soon: the Trio thread serves everybody
)


def run(loaded: LoadedSettings) -> int:
    """Run a worker until a signal stops it; the exit code."""
    settings = loaded.settings
    configure_logging(settings.log.format, settings.log.level)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        _check_interpreter(settings)
        return trio.run(_main, settings)
    except* ConfigError as group:
        for error in _leaves(group):
            for problem in getattr(error, "problems", [str(error)]):
                log.error("cannot_start", error=problem)  # noqa: TRY400 - the sentence is enough
    except* OSError as group:  # an address in use, a folder that is not there: for whoever started us to mend
        for error in _leaves(group):
            log.error("cannot_start", error=str(error))  # noqa: TRY400 - the sentence is enough
    return EXIT_CANNOT_START


def _check_interpreter(settings: Settings) -> None:
    if settings.executor_python is not None:
        env = {name: os.environ[name] for name in settings.executor_env_allow if name in os.environ}
        check_executor_python(settings.executor_python, env)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _main(settings: Settings) -> int:
    _remove_ready_file(settings)  # one that a killed worker has left would be taken for ours
    with RuntimeDirectory(settings.runtime_dir) as places:
        for stale in places.removed:
            log.info("stale_directory_removed", path=str(stale))
        async with bridge.open_loop():
            worker = assemble(settings, surroundings_of(settings, places))
            try:
                async with trio.open_nursery() as nursery:
                    services = ServiceStack(nursery)
                    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                        stop = StopSignals()
                        nursery.start_soon(stop.listen, signals)
                        registration = Registration(settings, worker, SystemClock().wall_ms())
                        if await _start(worker, services, settings, registration, stop):
                            await stop.first.wait()
                        clean = await _drain(worker, settings, registration, stop)
                        await services.stop_all()
                        nursery.cancel_scope.cancel()
            finally:
                _remove_ready_file(settings)
    log.info("worker_stopped", clean=clean)
    return EXIT_CLEAN if clean else EXIT_CUT_OFF


class StopSignals:
    """The first signal asks to stop; a second one, later than a second after it, to stop now."""

    def __init__(self) -> None:
        self.first = trio.Event()
        self.second = trio.Event()

    async def listen(self, signals: AsyncIterator[int]) -> None:
        """Listen until cancelled."""
        first_at = 0.0
        async for number in signals:
            if not self.first.is_set():
                first_at = trio.current_time()
                log.info("stopping", signal=signal.Signals(number).name)
                self.first.set()
            elif trio.current_time() - first_at > _SECOND_SIGNAL_S:
                log.warning("stopping_now", signal=signal.Signals(number).name)
                self.second.set()


async def _start(
    worker: Worker, services: ServiceStack, settings: Settings, registration: Registration, stop: StopSignals
) -> bool:
    """Start all services; False when a signal came first."""
    started = False
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stop.first.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await services.start("functions", worker.functions.run)
        await services.start("io", worker.io.run)
        await services.start("orchestrator", worker.orchestrator.run)
        await services.start("executors", worker.supervisor.run)
        await services.start("tick", worker.tick)
        if (shadow := make_shadow(settings, worker)) is not None:
            await services.start("shadow", shadow.run)
            worker.api.on_accepted = shadow.offer
        gate = await _gate(services, settings)
        bound = await services.start("rpc", partial(serve, worker.api, rpc_config(settings, gate)))
        address = worker.api.address = settings.advertise or bound
        if registration.wanted:
            await services.start("registry", registration.run)
        gc.collect()
        gc.freeze()  # what lives now lives for ever: later collections need not look at it
        _write_ready_file(settings, address)
        log.info("worker_serving", address=address, executors=settings.executor_count, pid=os.getpid())
        started = True
        nursery.cancel_scope.cancel()
    return started


async def _gate(services: ServiceStack, settings: Settings) -> Gate:
    clock = SystemClock()
    for problem in security_advice(settings, clock.wall_ms() / 1000):
        log.warning("security_advice", problem=problem)
    if settings.tokens is None:
        return OPEN_GATE
    tokens = TokenFile(settings.tokens, WorkerThreads(limit=1), poll_interval_ms=settings.tokens_poll_ms)
    await services.start("tokens", tokens.run)
    return Gate(tokens.current, clock.wall_ms)


async def _drain(worker: Worker, settings: Settings, registration: Registration, stop: StopSignals) -> bool:
    """Let tasks finish, end those that do not, give watchers time to hear of it; True when none was cut off."""
    worker.orchestrator.decide(DrainStarted())
    registration.announce()
    with trio.move_on_after(settings.drain_timeout_ms / 1000):
        await _first_of(worker.orchestrator.drained.wait, stop.second.wait)
    clean = worker.orchestrator.drained.is_set()
    if not clean:
        worker.orchestrator.decide(DrainExpired())
        with trio.move_on_after(settings.writer_commit_timeout_ms / 1000):  # a commit under way has its say
            await worker.orchestrator.drained.wait()
    with trio.move_on_after(settings.drain_linger_ms / 1000):
        await _first_of(partial(_all_told, worker), stop.second.wait)
    return clean


async def _all_told(worker: Worker) -> None:
    await worker.orchestrator.hub.wait_idle()
    await trio.sleep(_LAST_BYTES_S)


async def _first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:

        async def run(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(run, wait)


def _write_ready_file(settings: Settings, address: str) -> None:
    """The file appears complete: written beside its place, then renamed."""
    if settings.ready_file is None:
        return
    path = Path(settings.ready_file)
    content = {"address": address, "pid": os.getpid(), "executors": settings.executor_count}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(content) + b"\n")
    temporary.replace(path)


def _remove_ready_file(settings: Settings) -> None:
    if settings.ready_file is not None:
        Path(settings.ready_file).unlink(missing_ok=True)
