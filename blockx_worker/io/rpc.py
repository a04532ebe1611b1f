"""The back end for JSON-RPC 2.0 over HTTP: requests in batches, over several endpoints, tried again when that may help.

Requests wait in one queue. A free connection takes the next batch of them to the endpoint whose turn it is; requests that
come while all connections are busy share the next batch, so batches grow with the load. What failed goes back to the head of
the queue, and so to another endpoint if there is one that is healthy.

``call`` is for reads: its answers may be shared and kept, and it is tried again. ``call_once`` is for requests that do
something, or whose answer must be fresh: it goes alone, and a second time only if no server can have the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never

import attrs
import httpx
import trio

from blockx_worker.io.attempts import (
    Answered,
    BatchRefused,
    EndpointFailed,
    Outcome,
    RequestRefused,
    ResponseTooLarge,
    read_reply,
)
from blockx_worker.io.endpoints import Endpoint, EndpointConfig, Endpoints
from blockx_worker.io.errors import failed, unknown_op
from blockx_worker.io.http_post import HttpConfig, HttpPoster, HttpTooLarge, TransportFailed, open_http
from blockx_worker.io.jsonrpc import RpcCall, encode_calls, read_call
from blockx_worker.io.rpc_queue import Batch, Pending, RpcQueue
from blockx_worker.model.errors import IoErrorKind
from blockx_worker.model.fields import FieldError
from blockx_worker.ports import IoAnswer
from blockx_worker.telemetry.log import get_logger

__all__ = ["RpcBackend", "RpcConfig"]

log = get_logger(__name__)

CALL = "call"
CALL_ONCE = "call_once"
OPERATIONS = (CALL, CALL_ONCE)


@attrs.frozen(kw_only=True)
class RpcConfig:
    """Limits of the back end; times in ms. See the settings of the same names."""

    timeout_ms: int
    max_attempts: int
    linger_ms: int
    max_batch_bytes: int
    endpoints: EndpointConfig
    http: HttpConfig


class RpcBackend:
    """JSON-RPC servers that answer alike, as one back end.

    ``jitter`` yields numbers from 0 to 1; ``transport`` replaces the network in tests.
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        config: RpcConfig,
        *,
        jitter: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = name
        self._config = config
        self._endpoints = Endpoints(urls, config.endpoints, jitter)
        self._transport = transport
        self._queue = RpcQueue(config.max_batch_bytes)
        self._numbers = count(1)
        self._trouble = ""

    async def request(self, op: str, request: bytes) -> IoAnswer:
        """The ``result`` of one call as JSON text; ``request`` is ``{"method", "params"?}``."""
        if op not in OPERATIONS:
            return unknown_op(self.name, op, OPERATIONS)
        try:
            call = read_call(self.name, request)
        except FieldError as error:
            return failed(IoErrorKind.IO_BAD_REQUEST, str(error))
        pending = Pending(next(self._numbers), call, once=op == CALL_ONCE)
        self._queue.add(pending)
        try:
            with trio.move_on_after(self._config.timeout_ms / 1000):
                await pending.over.wait()
        finally:
            self._queue.withdraw(pending)
        return self._timed_out(pending) if pending.answer is None else pending.answer

    def cacheable(self, op: str) -> bool:
        """Reads may be shared."""
        return op == CALL

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections and send what is asked for, until cancelled."""
        connections = trio.Semaphore(self._config.http.max_connections)
        async with open_http(self._config.http, self._transport) as http, trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._gather()
                await connections.acquire()
                endpoint = await self._choose()
                batch = self._queue.take(endpoint.max_batch)
                nursery.start_soon(self._send, _Trip(http, nursery, endpoint, batch), connections)

    async def _gather(self) -> None:
        """Wait for a request, then a moment for others to share its batch."""
        while not self._queue:
            await self._queue.changed.wait()
        if len(self._queue) < self._config.endpoints.max_batch:
            await trio.sleep(self._config.linger_ms / 1000)

    async def _choose(self) -> Endpoint:
        """Wait for an endpoint that may be asked."""
        while (endpoint := self._endpoints.choose(trio.current_time())) is None:
            rest_ends = self._endpoints.next_end_s(trio.current_time())
            with trio.CancelScope() as scope:
                if rest_ends is not None:
                    scope.deadline = rest_ends
                await self._queue.changed.wait()
        return endpoint

    async def _send(self, trip: _Trip, connections: trio.Semaphore) -> None:
        outcome: Outcome | None = None
        try:
            with trip.batch.scope:
                if trip.calls:
                    outcome = await _ask(trip)
        finally:
            connections.release()
        self._conclude(trip, outcome)
        self._queue.notify()

    # --- what follows -------------------------------------------------------------------------------------------

    def _conclude(self, trip: _Trip, outcome: Outcome | None) -> None:
        """Answer the requests that are still waited for, or put them back."""
        endpoint, waiting = trip.endpoint, list(trip.batch.members.values())
        match outcome:
            case None:
                self._endpoints.given_up(endpoint, trip.rest_number)
                return
            case EndpointFailed():
                self._endpoint_failed(trip, outcome, waiting)
                return
            case Answered():
                self._answer(trip, outcome, waiting)
            case RequestRefused():
                for pending in waiting:
                    self._failed(pending, endpoint, EndpointFailed(reason=outcome.reason, lasting=True))
            case BatchRefused():
                self._endpoints.refused_batch(endpoint, len(trip.calls), trio.current_time())
                self._queue.put_back(waiting)
            case ResponseTooLarge():
                self._too_large(trip, waiting)
            case _:
                assert_never(outcome)
        self._trouble = ""
        if self._endpoints.answered(endpoint, trip.rest_number):
            log.info("rpc_endpoint_back", endpoint=endpoint.name)

    def _answer(self, trip: _Trip, outcome: Answered, waiting: Sequence[Pending]) -> None:
        for pending in waiting:
            answer = outcome.answers[pending.number]
            pending.attempts += 1
            if answer.error is None or not answer.error.retryable or self._spent(pending):
                pending.settle(answer)
            else:
                pending.trouble = answer.error.message
                trip.nursery.start_soon(self._later, pending)

    async def _later(self, pending: Pending) -> None:
        """The server asks for patience, for this request alone."""
        config = self._config.endpoints
        await trio.sleep(min(config.backoff_ms << min(pending.attempts, 20), config.max_backoff_ms) / 1000)
        self._queue.put_back([pending])

    def _endpoint_failed(self, trip: _Trip, outcome: EndpointFailed, waiting: Sequence[Pending]) -> None:
        endpoint = trip.endpoint
        self._trouble = f"{endpoint.name}: {outcome.reason}"
        if self._endpoints.failed(endpoint, trip.rest_number, trio.current_time(), outcome.rest_ms):
            log.warning("rpc_endpoint_failed", endpoint=endpoint.name, reason=outcome.reason)
        for pending in reversed(waiting):
            self._failed(pending, endpoint, outcome)

    def _failed(self, pending: Pending, endpoint: Endpoint, outcome: EndpointFailed) -> None:
        """Put a request back to be tried again, or give it up."""
        pending.attempts += 1
        pending.suspect += outcome.sent
        pending.trouble = f"{endpoint.name}: {outcome.reason}"
        if outcome.lasting:
            pending.refused_by.add(endpoint.url)
        refused = len(pending.refused_by) == len(self._endpoints)
        if refused or (pending.once and outcome.sent) or self._spent(pending):
            message = f"{pending.call.name}: {_attempts(pending)} failed; the last: {pending.trouble}"
            pending.settle(failed(outcome.kind, message, retryable=not refused))
        else:
            self._queue.put_back([pending])

    def _too_large(self, trip: _Trip, waiting: Sequence[Pending]) -> None:
        for pending in waiting:
            pending.suspect += 1
            if len(trip.calls) == 1:
                limit = self._config.http.max_response_bytes
                message = (
                    f"{pending.call.name}: the response has more than {limit} bytes (io.rpc.max_response_bytes); ask for "
                    "less at a time"
                )
                pending.settle(failed(IoErrorKind.IO_ANSWER_TOO_LARGE, message))
        self._queue.put_back([pending for pending in waiting if pending.answer is None])

    def _spent(self, pending: Pending) -> bool:
        return pending.attempts >= self._config.max_attempts

    def _timed_out(self, pending: Pending) -> IoAnswer:
        trouble = pending.trouble or self._trouble
        after = f"; the last trouble: {trouble}" if trouble else ""
        message = f"{pending.call.name}: no answer within {self._config.timeout_ms} ms{after}"
        return failed(IoErrorKind.IO_TIMEOUT, message)


@attrs.define(eq=False)
class _Trip:
    """One HTTP request: a batch on its way to an endpoint."""

    http: HttpPoster
    nursery: trio.Nursery
    endpoint: Endpoint
    batch: Batch
    rest_number: int = attrs.field(init=False)
    calls: dict[int, RpcCall] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rest_number = self.endpoint.rest_number
        self.calls = self.batch.calls


async def _ask(trip: _Trip) -> Outcome:
    try:
        reply = await trip.http.post(trip.endpoint.url, encode_calls(trip.calls))
    except HttpTooLarge:
        return ResponseTooLarge()
    except TransportFailed as error:
        return EndpointFailed(reason=str(error), sent=error.sent)
    return read_reply(reply, trip.calls)


def _attempts(pending: Pending) -> str:
    return f"{pending.attempts} attempts" if pending.attempts > 1 else "the attempt"
