"""The Python client of a worker, for Trio, asyncio and plain blocking programs.

async with WorkerClient.connect("127.0.0.1:7420") as client:  # under Trio or asyncio, found out by itself
    result, outputs = await client.run(Task(CallListCallConfig("demo.double", [[1], [2]])))

with WorkerClient.connect("127.0.0.1:7420") as client:  # blocking
    result, outputs = client.run(Task(CallListCallConfig("demo.double", [[1], [2]])))

A worker with TLS and tokens: WorkerClient.connect(address, tls=tls_context(ca="ca.pem"), token=token).
"""

from __future__ import annotations

from blockx_worker.client.blocking import BlockingWatch, BlockingWorkerClient
from blockx_worker.client.client import Connection, Watch, WorkerClient
from blockx_worker.client.errors import RequestFailed, TlsFailed, WorkerUnreachable
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
from blockx_worker.security.tls import client_context as tls_context

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
    "TlsFailed",
    "Watch",
    "WorkerClient",
    "WorkerError",
    "WorkerUnreachable",
    "tls_context",
]
