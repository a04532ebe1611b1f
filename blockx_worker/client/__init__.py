"""The Python client of a worker, for Trio, asyncio and plain blocking programs.

async with WorkerClient.connect("127.0.0.1:7420") as client:  # under Trio or asyncio, found out by itself
    result, outputs = await client.run(Task(CallListCallConfig("demo.double", [[1], [2]])))

with WorkerClient.connect("127.0.0.1:7420") as client:  # blocking
    result, outputs = client.run(Task(CallListCallConfig("demo.double", [[1], [2]])))
"""

from __future__ import annotations

from blockx_worker.client.blocking import BlockingWatch, BlockingWorkerClient
from blockx_worker.client.client import Connection, Watch, WorkerClient
from blockx_worker.client.errors import RequestFailed, WorkerUnreachable
from blockx_worker.client.outputs import Outputs
from blockx_worker.client.task import (
    BlockTableCallConfig,
    BlockWriteHandler,
    CallListCallConfig,
    Function,
    ReturnValueResultHandler,
    Task,
    TaskBuilder,
)
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import TaskResult

__all__ = [
    "BlockTableCallConfig",
    "BlockWriteHandler",
    "BlockingWatch",
    "BlockingWorkerClient",
    "CallListCallConfig",
    "Connection",
    "ErrorCode",
    "Function",
    "Outputs",
    "RequestFailed",
    "ReturnValueResultHandler",
    "Task",
    "TaskBuilder",
    "TaskResult",
    "Watch",
    "WorkerClient",
    "WorkerError",
    "WorkerUnreachable",
]
