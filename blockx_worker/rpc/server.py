"""The gRPC server: WorkerService, health and reflection on one TCP port.

Stop order on cancellation: stop listening, end the running requests (they answer UNAVAILABLE), wait for them within
``close_timeout_s``, then send GOAWAY and close the connections. Health says NOT_SERVING as soon as ``api.serving``
does, which is when draining begins, long before.
"""

from __future__ import annotations

import trio

from blockx_worker import bridge
from blockx_worker.ports import WorkerApi
from blockx_worker.rpc.boundary import Requests
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.connections import WorkerServer
from blockx_worker.rpc.front_door import FrontDoor
from blockx_worker.rpc.handlers import worker_service
from blockx_worker.rpc.health import health_service
from blockx_worker.rpc.reflection import REFLECTION_SERVICES, reflection_services

__all__ = ["serve"]


async def serve(
    api: WorkerApi, config: RpcConfig, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve ``api`` until cancelled; started with the bound address, ``host:port``.

    Uses the asyncio loop around it, or opens one. OSError if the address cannot be bound.
    """
    running = Requests(config.gate)
    listeners = await _listen(config.host, config.port)
    async with bridge.open_loop(), trio.open_nursery() as connections:
        server = _server(api, config, running)
        door = FrontDoor(server.connection, config)
        try:
            task_status.started(_format(*listeners[0].socket.getsockname()[:2]))
            await trio.serve_listeners(door.admit, listeners, handler_nursery=connections)
        finally:
            await _stop(server, running, config.close_timeout_s)


def _server(api: WorkerApi, config: RpcConfig, running: Requests) -> WorkerServer:
    worker = worker_service(api, config, running)
    health = health_service(lambda: api.serving, config, running)
    names = [worker.name, health.name, *REFLECTION_SERVICES]
    return WorkerServer(
        [worker, health, *reflection_services(names, config.max_request_bytes, running)], config
    )


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"cannot listen on {_format(host, port)}: {reason}") from None


async def _stop(server: WorkerServer, running: Requests, timeout_s: float) -> None:
    running.closing = True
    server.cancel_requests()
    with trio.CancelScope(shield=True):
        with trio.move_on_after(timeout_s):
            await running.wait_ended()
        await server.close_connections()


def _format(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
