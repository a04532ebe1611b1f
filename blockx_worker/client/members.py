"""The workers under a prefix of etcd, followed: listed, watched from that revision, listed again after each break.

Between a break and the next list the last known workers stay: most of them are alive, and those that are not are found
out when they are asked. In asyncio; nothing here may import the bridge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

from blockx_worker.registry.etcd import EtcdAccess, EtcdClient, EtcdError
from blockx_worker.registry.value import WorkerValue, decode_value

__all__ = ["Members"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class Members:
    """What etcd says, as far as it is known; `follow` keeps it up to date.

    ``listed``: there was a list at least once. ``failures``: broken or failed
    connections so far. ``problem``: why there is no connection to etcd now, if there is none.
    """

    def __init__(
        self, endpoints: Sequence[str], prefix: str, access: EtcdAccess, call_timeout_s: float
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._prefix = prefix.encode()
        self._access = access
        self._call_timeout_s = call_timeout_s
        self._workers: dict[bytes, WorkerValue] = {}
        self._news = asyncio.Event()
        self._fresh = False
        self.listed = False
        self.failures = 0
        self.problem: str | None = None

    @property
    def workers(self) -> tuple[WorkerValue, ...]:
        """All of them, by key."""
        return tuple(self._workers[key] for key in sorted(self._workers))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at after each change and each problem."""
        while not condition():
            await self._news.wait()

    async def follow(self) -> None:
        """Keep up until cancelled; no error ends it."""
        pause_s = FIRST_PAUSE_S
        for endpoint in cycle(self._endpoints):
            self._fresh = False
            try:
                await self._session(endpoint)
            except EtcdError as error:
                self.failures += 1
                self.problem = str(error)
                self._tell()
            pause_s = FIRST_PAUSE_S if self._fresh else min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _session(self, endpoint: str) -> None:
        client = await EtcdClient.open(endpoint, self._access, self._call_timeout_s)
        try:
            listing = await client.list(self._prefix)
            self._replace(listing.values)
            async with contextlib.aclosing(client.watch(self._prefix, listing.revision)) as changes:
                async for change in changes:
                    self._set(change.key, change.value)
                    self._tell()
        finally:
            await client.close()

    def _replace(self, values: Mapping[bytes, bytes]) -> None:
        self._workers.clear()
        for key, value in values.items():
            self._set(key, value)
        self.listed = self._fresh = True
        self.problem = None
        self._tell()

    def _set(self, key: bytes, value: bytes | None) -> None:
        """What is no worker's value stands under the prefix by mistake, and is passed over."""
        worker = None if value is None else decode_value(value)
        if worker is None:
            self._workers.pop(key, None)
        else:
            self._workers[key] = worker

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
