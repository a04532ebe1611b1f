"""The standard health service: SERVING while the worker can take work. It asks for no token.

The worker has no event for that, so a watcher's handler looks at it every ``health_poll_s``. Since anybody may watch,
there is a limit to how many do.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from blockx_worker import bridge
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.rpc.boundary import Requests, Send, Service, streaming, unary
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.handlers import WORKER_SERVICE
from blockx_worker.rpc.pb.grpc.health import v1 as pb

__all__ = ["HEALTH_SERVICE", "health_service"]

HEALTH_SERVICE = "grpc.health.v1.Health"

_KNOWN = frozenset({"", WORKER_SERVICE})


def health_service(is_serving: Callable[[], bool], config: RpcConfig, running: Requests) -> Service:
    """Check and Watch over ``is_serving``."""
    handlers = _Health(is_serving, config)
    most = config.max_request_bytes
    return Service(
        HEALTH_SERVICE,
        {
            "Check": unary(
                handlers.check, running, most, pb.HealthCheckRequest, pb.HealthCheckResponse, scope=None
            ),
            "Watch": streaming(
                handlers.watch, running, most, pb.HealthCheckRequest, pb.HealthCheckResponse, scope=None
            ),
        },
    )


@attrs.define
class _Health:
    _is_serving: Callable[[], bool]
    _config: RpcConfig
    _watchers: int = 0

    async def check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        if request.service not in _KNOWN:
            raise WorkerError(
                ErrorCode.NOT_FOUND,
                f"no service {request.service[:100]!r} here; ask for '' or {WORKER_SERVICE!r}",
            )
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def watch(self, request: pb.HealthCheckRequest, send: Send) -> None:
        if self._watchers >= self._config.max_health_watchers:
            raise WorkerError(
                ErrorCode.UNAVAILABLE,
                f"{self._watchers} clients watch the health of this worker, which is the limit (max_health_watchers); "
                "use Check",
            )
        self._watchers += 1
        try:
            await bridge.call_trio(self._follow, request.service, send)
        finally:
            self._watchers -= 1

    async def _follow(self, service: str, send: Send) -> None:
        sent = None
        while True:
            status = self._status(service)
            if status != sent:
                await bridge.run_asyncio(send, pb.HealthCheckResponse(status=status))
                sent = status
            await trio.sleep(self._config.health_poll_s)

    def _status(self, service: str) -> pb.HealthCheckResponseServingStatus:
        known = pb.HealthCheckResponseServingStatus.from_string
        if service not in _KNOWN:
            return known("SERVICE_UNKNOWN")
        return known("SERVING" if self._is_serving() else "NOT_SERVING")
