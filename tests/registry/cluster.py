"""A cluster of scripted workers: real gRPC servers, and keys in a real etcd that a test writes as it likes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from blockx_worker.client.directory import WorkerDirectory
from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import TaskSnapshot
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.server import serve
from tests.cli.worker_thread import ScriptedWorker
from tests.support.etcd import EtcdServer

__all__ = ["Cluster", "Member", "cluster"]


class Member(ScriptedWorker):
    """One worker. ``asked``: the slots and tasks that it was asked for, in order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.address = ""
        self.asked: list[str] = []
        self.was_asked = trio.Event()
        self.stop = trio.CancelScope()
        self.refuse_uploads_with: list[Exception] = []

    def request_task_slot(self, task_id: str, ttl_ms: int) -> TaskSnapshot:
        self._note(f"slot {task_id}")
        return super().request_task_slot(task_id, ttl_ms)

    async def submit_task(self, request: Any, wait_ms: int = 0) -> Any:
        self._note(f"task {request.task_id}")
        if self.refuse_uploads_with:
            raise self.refuse_uploads_with.pop(0)
        return await super().submit_task(request, wait_ms)

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.was_asked.set()

    def is_full(self) -> None:
        self.refuse_with = WorkerError(ErrorCode.NO_SLOT, "all 8 slots are taken; try again later")

    def is_draining(self) -> None:
        self.refuse_with = WorkerError(ErrorCode.UNAVAILABLE, "the worker is shutting down; ask another one")


@attrs.define
class Cluster:
    """Its members by name, and their keys."""

    etcd: EtcdServer
    prefix: str
    nursery: trio.Nursery
    members: dict[str, Member] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    async def start(self, name: str, **value: Any) -> Member:
        """Start a worker and write its key."""
        member = self.members[name] = Member(name)
        member.address = await self.nursery.start(self._serve, member)
        await self.announce(name, **value)
        return member

    async def announce(self, name: str, *, free: int = 8, draining: bool = False, instance: str = "") -> None:
        """Write the key of a worker, started or not."""
        member = self.members[name]
        value = {
            "address": member.address,
            "instance": instance or name,
            "taskSlots": free,
            "draining": draining,
        }
        await self.put(name, json.dumps(value))

    async def put(self, name: str, text: str) -> None:
        await trio.to_thread.run_sync(self.etcd.ctl, "put", f"{self.prefix}{name}", text)

    async def remove(self, name: str) -> None:
        await trio.to_thread.run_sync(self.etcd.ctl, "del", f"{self.prefix}{name}")

    def directory(self, **options: Any) -> Any:
        return WorkerDirectory.connect(self.etcd.address, self.prefix, **options)

    async def _serve(self, member: Member, *, task_status: trio.TaskStatus[str]) -> None:
        with member.stop:
            await serve(
                member,
                RpcConfig(host="127.0.0.1", port=0, close_timeout_s=0.1),
                task_status=task_status,
            )


@asynccontextmanager
async def cluster(etcd: EtcdServer, prefix: str, **free: int) -> AsyncIterator[Cluster]:
    """Workers with so many free slots, by name; the prefix is the test's own."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            made = Cluster(etcd, prefix, nursery)
            for name, slots in free.items():
                await made.start(name, free=slots)
            yield made
            nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(partial(etcd.ctl, "del", "--prefix", prefix))
