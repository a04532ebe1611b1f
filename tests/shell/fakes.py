"""A worker's surroundings without threads, processes, sockets or a wall clock.

`FakeExecutors` is spawner and places in one: each spawned "process" is a Trio task that speaks the wire protocol over
an in-memory stream. What a call does is a Python function of the test: it returns a value, raises, or waits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import attrs
import msgspec
import trio
import trio.testing

from blockx_executor.wire.blackbox import BLACKBOX_BYTES, BlackBoxWriter
from blockx_executor.wire.framing import FrameDecoder, join_frames
from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    CallFailed,
    CallFailedPayload,
    CallWaiting,
    CallWaitingPayload,
    CancelCall,
    ExecuteCall,
    Heartbeat,
    HeartbeatPayload,
    ResumeCall,
    ToExecutor,
)
from blockx_executor.wire.version import VERSION
from blockx_worker.ports import IoAnswer, IoRequest, SpawnRequest

_decode = msgspec.json.Decoder(ToExecutor).decode
_encode = msgspec.json.Encoder().encode

Behaviour = Callable[..., Any]

_running: ContextVar[tuple[FakeExecutor, ExecuteCall]] = ContextVar("_running")


async def wait_for(kind: str, **fields: Any) -> Any:
    """From a behaviour: wait for a back end or a subcall, as the SDK does; returns its value or raises `WaitFailed`."""
    executor, call = _running.get()
    return await executor.wait(call, kind, **fields)


class WaitFailed(Exception):
    """The answer to a wait was an error; its kind is the first argument."""


class FakeIo:
    """Back ends that are functions of a test: ``await handler(op, request)`` gives an `IoAnswer`."""

    def __init__(
        self, backends: dict[str, Callable[[str, bytes], Awaitable[IoAnswer]]] | None = None
    ) -> None:
        self._backends = backends or {}
        self.opened: list[str] = []
        self.closed: list[str] = []

    def open_task(self, task_id: str) -> FakeTaskIo:
        self.opened.append(task_id)
        return FakeTaskIo(self, task_id)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


@attrs.define
class FakeTaskIo:
    io: FakeIo
    task_id: str
    requests: int = 0

    async def request(self, request: IoRequest) -> IoAnswer:
        self.requests += 1
        return await self.io._backends[request.backend](request.op, request.request)

    async def aclose(self) -> None:
        self.io.closed.append(self.task_id)


class FakeClock:
    """Wall time that stands still."""

    def wall_ms(self):
        return 1_700_000_000_000


class FakeThreads:
    """Runs blocking work on the spot; `before_work` lets a test do something in the middle."""

    async def run(self, work, *args, interrupt=None):
        await trio.lowlevel.checkpoint()
        return work(*args)

    def call_back(self, function, *args):
        return function(*args)


class FakeProcess:
    """A process that ends when it is told to."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        self.over = trio.Event()
        self.output: list[tuple[str, bytes]] = []

    async def wait(self) -> int:
        await self.over.wait()
        assert self.exit_code is not None
        return self.exit_code

    def exit(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code = code
            self.over.set()

    def terminate(self) -> None:
        self.exit(0)

    def kill(self) -> None:
        self.exit(-9)

    async def output_lines(self, handle) -> None:
        for name, line in self.output:
            handle(name, line)
        await self.over.wait()


class FakePlace:
    """A socket path that leads to a memory stream."""

    def __init__(self, name: str) -> None:
        self.socket_path = f"/{name}/socket"
        self.blackbox_path = f"/{name}/blackbox"
        self.worker_side, self.executor_side = trio.testing.memory_stream_pair()
        self.page = bytes(BLACKBOX_BYTES)
        self.connected = trio.Event()

    def listen(self) -> FakePlace:
        return self

    def expect_pid(self, pid: int) -> None:
        pass

    async def accept(self):
        await self.connected.wait()
        return self.worker_side

    def close(self) -> None:
        pass

    def read_blackbox(self) -> bytes:
        return self.page

    def remove(self) -> None:
        pass


@attrs.define(eq=False, slots=False)
class FakeExecutor:
    """One executor; `calls` are those that it has and has not answered."""

    executor_id: str
    process: FakeProcess
    place: FakePlace
    max_inflight: int
    behaviours: dict[str, Behaviour]
    calls: dict[str, ExecuteCall] = attrs.field(factory=dict)
    cancelled: list[str] = attrs.field(factory=list)
    waits: dict[int, tuple[trio.Event, list[ResumeCall]]] = attrs.field(factory=dict)
    requests: int = 0
    beats: int = 0
    sending: trio.Lock = attrs.field(factory=trio.Lock)

    async def run(self) -> None:
        self.place.connected.set()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    await self.process.over.wait()
                    scope.cancel()

                nursery.start_soon(end)
                nursery.start_soon(self._beat)
                await self._read(nursery)
        await trio.aclose_forcefully(self.place.executor_side)

    def die_running(self, call: ExecuteCall, code: int) -> None:
        """End the process while, by its black box, ``call`` owns the main thread."""
        page = bytearray(BLACKBOX_BYTES)
        BlackBoxWriter(memoryview(page)).running(call.payload.call_no, 1, 0)
        self.place.page = bytes(page)
        self.process.exit(code)

    async def _beat(self) -> None:
        while True:
            self.beats += 1
            await self.send(
                Heartbeat(
                    HeartbeatPayload(
                        executor_id=self.executor_id,
                        heartbeat_seq=self.beats,
                        pid=self.process.pid,
                        version=VERSION,
                        runnable_count=len(self.calls),
                        inflight_count=len(self.calls),
                        available_contexts=self.max_inflight - len(self.calls),
                        memory_bytes=1,
                    )
                )
            )
            await trio.sleep(0.5)

    async def _read(self, nursery: trio.Nursery) -> None:
        decoder = FrameDecoder()
        while data := await self.place.executor_side.receive_some(65536):
            for body in decoder.feed(bytes(data)):
                frame = _decode(body)
                if isinstance(frame, ExecuteCall):
                    self.calls[frame.call_id] = frame
                    nursery.start_soon(self._execute, frame)
                elif isinstance(frame, CancelCall):
                    await self._cancel(frame)
                elif isinstance(frame, ResumeCall) and frame.request_id in self.waits:
                    resumed, answers = self.waits.pop(frame.request_id)
                    answers.append(frame)
                    resumed.set()

    async def _execute(self, call: ExecuteCall) -> None:
        function = self.behaviours[call.payload.function_id]
        _running.set((self, call))
        try:
            value = function(*json.loads(bytes(call.payload.args)))
            if isinstance(value, Awaitable):
                value = await value
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            await self.answer(call, error=error)
        else:
            await self.answer(call, value=value)

    async def wait(self, call: ExecuteCall, kind: str, **fields: Any) -> Any:
        """Send `CallWaiting`, wait for `ResumeCall`, and return its value."""
        self.requests += 1
        request_id = self.requests
        answers: list[ResumeCall] = []
        self.waits[request_id] = (trio.Event(), answers)
        resumed = self.waits[request_id][0]
        raw: dict[str, Any] = {
            name: msgspec.Raw(_encode(fields.pop(name))) for name in ("args", "request") if name in fields
        }
        payload = CallWaitingPayload(
            task_id=call.payload.task_id,
            attempt_seq=call.payload.attempt_seq,
            wait_kind=kind,
            **raw,
            **fields,
        )
        await self.send(CallWaiting(call.call_id, request_id, payload))
        await resumed.wait()
        answer = answers[0].payload
        if answer.error is not None:
            raise WaitFailed(answer.error.kind, answer.error.message)
        return json.loads(bytes(answer.result))

    async def _cancel(self, frame: CancelCall) -> None:
        self.cancelled.append(frame.call_id)
        call = self.calls.pop(frame.call_id, None)
        if call is not None:
            payload = CallFailedPayload(
                task_id=call.payload.task_id,
                attempt_seq=call.payload.attempt_seq,
                error_kind="CANCELLED",
                error_message=frame.payload.reason,
            )
            await self.send(CallFailed(call.call_id, payload))

    async def answer(self, call: ExecuteCall, *, value: Any = None, error: Exception | None = None) -> None:
        """Send the terminal frame of a call that was not cancelled meanwhile."""
        if self.calls.pop(call.call_id, None) is None:
            return
        ids: dict[str, Any] = {"task_id": call.payload.task_id, "attempt_seq": call.payload.attempt_seq}
        if error is None:
            await self.send(
                CallCompleted(
                    call.call_id, CallCompletedPayload(output=msgspec.Raw(_encode(value)), run_us=1000, **ids)
                )
            )
        else:
            payload = CallFailedPayload(
                error_kind="USER_ERROR", error_message=str(error), error_type=type(error).__name__, **ids
            )
            await self.send(CallFailed(call.call_id, payload))

    async def send(self, message) -> None:
        try:
            async with self.sending:
                await self.place.executor_side.send_all(bytes(join_frames([_encode(message)])))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.process.exit(1)


class FakeExecutors:
    """Spawner and places of a worker; keeps every executor that was ever started."""

    def __init__(self, nursery: trio.Nursery, behaviours: dict[str, Behaviour]) -> None:
        self._nursery = nursery
        self._behaviours = behaviours
        self._places: dict[str, FakePlace] = {}
        self.started: list[FakeExecutor] = []
        self.refuse: deque[OSError] = deque()

    def make(self, name: str) -> FakePlace:
        place = FakePlace(name)
        self._places[place.socket_path] = place
        return place

    def spawn(self, request: SpawnRequest) -> FakeProcess:
        if self.refuse:
            raise self.refuse.popleft()
        process = FakeProcess(1000 + len(self.started))
        place = self._places[request.socket_path]
        executor = FakeExecutor(request.executor_id, process, place, request.max_inflight, self._behaviours)
        self.started.append(executor)
        self._nursery.start_soon(executor.run)
        return process

    def living(self) -> list[FakeExecutor]:
        return [executor for executor in self.started if executor.process.exit_code is None]
