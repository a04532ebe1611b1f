"""The six methods of WorkerService, each a few lines over `WorkerApi`.

Synchronous methods of the API are called straight from the asyncio handler, on the same thread. What awaits runs as
one Trio function, so that a client's cancellation, deadline or death arrives there as a Trio cancellation.
"""

from __future__ import annotations

from typing import Any

import attrs

from blockx_worker import bridge
from blockx_worker.ports import WorkerApi
from blockx_worker.rpc import replies, requests
from blockx_worker.rpc.boundary import Requests, Send, Service, streaming, unary
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.pb.blockx.worker import v1 as pb
from blockx_worker.security.tokens import Scope

__all__ = ["WORKER_SERVICE", "worker_service"]

WORKER_SERVICE = "blockx.worker.v1.WorkerService"


def worker_service(api: WorkerApi, config: RpcConfig, running: Requests) -> Service:
    """WorkerService over ``api``."""
    handlers = _Handlers(api, config)
    most = config.max_request_bytes

    def one(scope: Scope, function: Any, request: type, reply: type) -> Any:
        return unary(function, running, most, request, reply, scope=scope)

    return Service(
        WORKER_SERVICE,
        {
            "RequestTaskSlot": one(
                Scope.SUBMIT,
                handlers.request_task_slot,
                pb.RequestTaskSlotRequest,
                pb.RequestTaskSlotResponse,
            ),
            "SubmitTask": one(
                Scope.SUBMIT, handlers.submit_task, pb.SubmitTaskRequest, pb.SubmitTaskResponse
            ),
            "GetTaskResult": one(
                Scope.READ, handlers.get_task_result, pb.GetTaskResultRequest, pb.GetTaskResultResponse
            ),
            "WatchTasks": streaming(
                handlers.watch_tasks,
                running,
                most,
                pb.WatchTasksRequest,
                pb.TaskEvent,
                scope=_watch_scope,
            ),
            "CancelTask": one(
                Scope.SUBMIT, handlers.cancel_task, pb.CancelTaskRequest, pb.CancelTaskResponse
            ),
            "GetWorkerStatus": one(
                Scope.READ, handlers.get_worker_status, pb.GetWorkerStatusRequest, pb.GetWorkerStatusResponse
            ),
        },
    )


def _watch_scope(request: pb.WatchTasksRequest) -> Scope:
    """An owner decides over the life of the task; who observes only reads."""
    return Scope.READ if request.observe else Scope.SUBMIT


@attrs.frozen
class _Handlers:
    _api: WorkerApi
    _config: RpcConfig

    async def request_task_slot(self, request: pb.RequestTaskSlotRequest) -> Any:
        limits = self._config.limits
        task_id = requests.to_task_id(request.task_id, limits)
        snapshot = self._api.request_task_slot(task_id, requests.to_ttl_ms(request.ttl_ms, limits))
        return replies.from_slot(snapshot)

    async def submit_task(self, request: pb.SubmitTaskRequest) -> Any:
        limits = self._config.limits
        task = requests.to_task_request(request, limits)
        wait_ms = requests.to_wait_ms(request.wait_ms, limits)
        return replies.from_submit_reply(await bridge.call_trio(self._api.submit_task, task, wait_ms))

    async def get_task_result(self, request: pb.GetTaskResultRequest) -> Any:
        task_id = requests.to_task_id(request.task_id, self._config.limits)
        offset = requests.to_count("output_offset", request.output_offset)
        return replies.from_page(self._api.get_task_result(task_id, offset))

    async def watch_tasks(self, request: pb.WatchTasksRequest, send: Send) -> None:
        task_ids = requests.to_task_ids(request.task_ids, self._config.limits)
        await bridge.call_trio(self._watch, task_ids, bool(request.observe), send)

    async def cancel_task(self, request: pb.CancelTaskRequest) -> Any:
        limits = self._config.limits
        task_id = requests.to_task_id(request.task_id, limits)
        snapshot = self._api.cancel_task(task_id, requests.to_reason(request.reason, limits))
        return replies.from_cancel(snapshot)

    async def get_worker_status(self, _request: pb.GetWorkerStatusRequest) -> Any:
        return replies.from_status(self._api.worker_status())

    async def _watch(self, task_ids: list[str], observe: bool, send: Send) -> None:
        """On Trio. One event at a time: the next is fetched only when the client's window has taken the last."""
        async with self._api.watch(task_ids, observe=observe) as cursor:
            while (events := await cursor.next()) is not None:
                for event in events:
                    await bridge.run_asyncio(send, replies.from_event(event))
