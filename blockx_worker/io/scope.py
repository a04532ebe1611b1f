"""The back ends as tasks see them: each task has its cache and shares requests in flight, all share the places.

* Requests are equal when back end, operation and the raw bytes of the request are: nothing is decoded here.
* Where the back end allows it, equal requests of a task reach it once: the first goes, the others wait for the same
  answer, later ones find it in the cache. Failures are shared by those who wait, but never kept.
* A call pays (`IoAnswer.used_ms`) for the time that it really waited for the back end: nothing for the wait for a place,
  nothing for a cached answer.
* No state of calls is kept: whoever asks is cancelled when its call ends, and a request that nobody waits for any more
  is cancelled too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import trio

from blockx_worker.io.admission import Ticket
from blockx_worker.io.answers import AnswerCache, RequestKey
from blockx_worker.io.errors import failed
from blockx_worker.io.flights import Flight
from blockx_worker.io.port import BackendPort
from blockx_worker.model.errors import IoErrorKind, TaskFailureCode
from blockx_worker.model.fields import shorten
from blockx_worker.ports import IoAnswer, IoRequest, StepFailed

__all__ = ["IoScopes", "TaskIoScope"]


class IoScopes:
    """All back ends of a worker; an `IoProvider`.

    ``absent`` says of well-known back ends that this worker does not have what would give it one.
    """

    def __init__(
        self, ports: Iterable[BackendPort], *, cache_bytes: int, absent: Mapping[str, str] | None = None
    ) -> None:
        self._ports: dict[str, BackendPort] = {}
        for port in ports:
            if port.name in self._ports:
                raise ValueError(f"two back ends with the name {port.name}")
            self._ports[port.name] = port
        self._cache_bytes = cache_bytes
        self._absent = absent or {}
        self._nursery: trio.Nursery | None = None

    @property
    def names(self) -> list[str]:
        """The names of all back ends, sorted."""
        return sorted(self._ports)

    def open_task(self, task_id: str) -> TaskIoScope:
        """The back ends for one task; StepFailed(IO_SCOPE_FAILED) while they do not run."""
        if self._nursery is None:
            raise StepFailed(TaskFailureCode.IO_SCOPE_FAILED, "the back ends of this worker do not run")
        return TaskIoScope(task_id, self, AnswerCache(self._cache_bytes), self._nursery)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the back ends and all requests to them until cancelled."""
        async with trio.open_nursery() as nursery:
            for port in self._ports.values():
                await nursery.start(port.backend.run)
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    @property
    def running(self) -> bool:
        """Whether requests can be made."""
        return self._nursery is not None

    def find(self, name: str) -> BackendPort | IoAnswer:
        """The back end of that name, or the answer to those who ask for it."""
        if name in self._ports:
            return self._ports[name]
        known = ", ".join(self.names) or "none"
        hint = f"; {self._absent[name]}" if name in self._absent else ""
        message = f'this worker has no back end "{shorten(name)}"; it has {known}{hint}'
        return failed(IoErrorKind.IO_BACKEND_NOT_FOUND, message)


class TaskIoScope:
    """The IO of one task; a `TaskIo`. Made by `IoScopes.open_task`."""

    def __init__(self, task_id: str, scopes: IoScopes, cache: AnswerCache, nursery: trio.Nursery) -> None:
        self._task_id = task_id
        self._scopes = scopes
        self._cache = cache
        self._nursery = nursery
        self._flights: set[Flight] = set()
        self._shared: dict[RequestKey, Flight] = {}
        self._closed = False
        self._requests = 0

    @property
    def requests(self) -> int:
        """How many requests reached a back end."""
        return self._requests

    async def request(self, request: IoRequest) -> IoAnswer:
        """Answer one request of a call; whatever goes wrong is an error in the answer."""
        port = self._scopes.find(request.backend)
        if isinstance(port, IoAnswer):
            return port
        key = (request.backend, request.op, request.request) if port.may_share(request.op) else None
        cached = self._cache.get(key) if key is not None else None
        if cached is not None:
            await trio.lowlevel.checkpoint()
            return cached
        shared = self._shared.get(key) if key is not None else None
        flight = shared or self._launch(key, port, request)
        if flight is None:
            return _busy(port, request)
        try:
            answer = await flight.wait(request.budget_ms)
        finally:
            if flight.scope.cancel_called:  # the last to wait has left: nobody may join any more
                self._unshare(flight)
        return _over_budget(port, request) if answer is None else answer

    async def aclose(self) -> None:
        """Cancel what is pending and forget the cache; requests from now on are answered with IO_CLOSED."""
        self._closed = True
        self._cache.clear()
        for flight in self._flights:
            flight.scope.cancel()

    def _launch(self, key: RequestKey | None, port: BackendPort, request: IoRequest) -> Flight | None:
        """Send a request on its way; None when the task's queue at the back end is full."""
        flight = Flight(key)
        if self._closed or not self._scopes.running:
            flight.end(_closed(request))
            return flight
        ticket = port.admission.enter(self._task_id, len(request.request))
        if ticket is None:
            return None
        self._flights.add(flight)
        if key is not None:
            self._shared[key] = flight
        self._nursery.start_soon(self._fly, flight, port, request, ticket)
        return flight

    async def _fly(self, flight: Flight, port: BackendPort, request: IoRequest, ticket: Ticket) -> None:
        answer: IoAnswer | None = None
        try:
            with flight.scope:
                await ticket.admitted.wait()
                flight.begin()
                self._requests += 1
                answer = await port.ask(request.op, request.request)
        finally:
            port.admission.leave(ticket)
            self._land(flight, _closed(request) if answer is None else answer)

    def _land(self, flight: Flight, answer: IoAnswer) -> None:
        flight.end(answer)
        self._flights.discard(flight)
        if flight.key is not None and answer.error is None and not self._closed:
            self._cache.put(flight.key, answer)
        self._unshare(flight)

    def _unshare(self, flight: Flight) -> None:
        if flight.key is not None and self._shared.get(flight.key) is flight:
            del self._shared[flight.key]


def _closed(request: IoRequest) -> IoAnswer:
    message = f"{request.backend} {shorten(request.op)}: the task has ended"
    return failed(IoErrorKind.IO_CLOSED, message)


def _busy(port: BackendPort, request: IoRequest) -> IoAnswer:
    message = (
        f"{port.name} {shorten(request.op)}: too many requests of this task wait for it (io.max_queue, "
        "io.max_queue_bytes); ask for less at once, or try again"
    )
    return failed(IoErrorKind.IO_BUSY, message)


def _over_budget(port: BackendPort, request: IoRequest) -> IoAnswer:
    answer = port.timed_out(request.op, request.budget_ms, "what was left of the call's budget")
    return attrs.evolve(answer, used_ms=request.budget_ms)
