"""A worker's registration on a real etcd, through everything that an etcd can do to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trustme

from blockx_worker.registry.etcd import EtcdAccess
from blockx_worker.registry.states import LeaseState
from tests.registry.registering import PREFIX, TTL_S, publishing, until
from tests.support.etcd import EtcdServer, etcd, free_port

__all__ = ["etcd"]


@pytest.fixture(scope="module")
def shared() -> Iterator[EtcdServer]:
    """An etcd for tests that leave it as it was."""
    server = EtcdServer()
    yield server
    server.stop()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def seen(server: EtcdServer, key: str, **fields: object) -> bool:
    value = server.values(PREFIX).get(key)
    return value is not None and fields.items() <= value.items()


async def test_a_registered_worker_is_seen_with_etcdctl_and_gone_once_it_ends(shared):
    fields: dict[str, Any] = {
        "deployment": "block",
        "version": "1.2",
        "started_at": "2024-02-29T10:15:30Z",
    }
    async with publishing(shared.address, reserved_slots=1, running_tasks=2, **fields) as worker:
        value = (await until(partial(shared.values, PREFIX)))[worker.key]
    assert value == {
        "address": "10.0.0.1:7420",
        "instance": "one",
        "deployment": "block",
        "version": "1.2",
        "taskSlots": 64,
        "reservedSlots": 1,
        "runningTasks": 2,
        "draining": False,
        "startedAt": "2024-02-29T10:15:30Z",
    }
    assert shared.values(PREFIX) == {}
    assert "found 0 leases" in shared.ctl("lease", "list")


async def test_the_key_lives_on_while_the_lease_is_refreshed(shared):
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key))
        lease = shared.lease_of(worker.key)
        await trio.sleep(1.2 * TTL_S)
        assert shared.lease_of(worker.key) == lease != 0


async def test_a_changed_value_is_put(shared):
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key, runningTasks=0))
        worker.change(running_tasks=5)
        await until(partial(seen, shared, worker.key, runningTasks=5))
        worker.change(draining=True)
        worker.publisher.announce()
        await until(partial(seen, shared, worker.key, runningTasks=5, draining=True))


async def test_an_emptied_etcd_gets_the_worker_again_within_one_ttl_and_five_seconds(etcd, logged):
    async with publishing(etcd.address) as worker:
        await until(partial(seen, etcd, worker.key))
        await trio.to_thread.run_sync(etcd.kill)
        await until(lambda: worker.publisher.state is not LeaseState.REGISTERED)
        etcd.forget()
        await trio.to_thread.run_sync(etcd.start)
        await until(partial(seen, etcd, worker.key), TTL_S + 5)
    events = [line["event"] for line in logged]
    assert events.count("registration_lost") == 1
    assert events.count("registered") == 2
    assert events.count("registration_failed") <= 2, "an outage is one warning, the rest is for debugging"


async def test_a_paused_etcd_hangs_nobody_and_gets_the_worker_again(etcd):
    """Three TTLs long; meanwhile the loop runs on, and the end of a worker does not wait for etcd."""
    async with publishing(etcd.address) as worker:
        await until(partial(seen, etcd, worker.key))
        etcd.pause()
        with trio.fail_after(3 * TTL_S + 1):  # nothing on this thread stands still
            for _ in range(30 * TTL_S):
                await trio.sleep(0.1)
        assert worker.publisher.state is not LeaseState.REGISTERED
        etcd.resume()
        await until(lambda: worker.publisher.state is LeaseState.REGISTERED, TTL_S + 5)
        await until(partial(seen, etcd, worker.key))
        await trio.sleep(
            1.5 * TTL_S
        )  # what was sent before and is carried out late must not take the key away
        await until(partial(seen, etcd, worker.key))
        etcd.pause()
        started = trio.current_time()
    assert trio.current_time() - started < TTL_S
    etcd.resume()


async def test_a_lease_that_is_gone_is_noticed_although_its_refresh_is_no_error(shared):
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key))
        lease = shared.lease_of(worker.key)
        shared.ctl("lease", "revoke", f"{lease:x}")
        await until(lambda: shared.lease_of(worker.key) not in (0, lease), TTL_S + 5)


async def test_a_key_deleted_by_hand_comes_back(shared, logged):
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key))
        shared.ctl("del", worker.key)
        await until(partial(seen, shared, worker.key))
    assert [line["key"] for line in logged if line["event"] == "registration_replaced"] == [worker.key]


async def test_the_key_of_a_stale_predecessor_is_replaced_and_does_not_end_with_its_lease(shared):
    lease = shared.ctl("lease", "grant", "2").split()[1]
    shared.ctl("put", f"--lease={lease}", f"{PREFIX}10.0.0.1:7420", '{"instance": "before"}')
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key, instance="one"))
        await until(lambda: "already expired" in shared.ctl("lease", "timetolive", lease))
        assert seen(shared, worker.key, instance="one")


async def test_a_worker_that_ends_leaves_the_key_of_its_successor(shared):
    async with publishing(shared.address) as worker:
        await until(partial(seen, shared, worker.key))
        shared.ctl("put", worker.key, '{"instance": "after"}')
        worker.publisher._look = lambda: worker.value
    assert seen(shared, worker.key, instance="after")
    shared.ctl("del", worker.key)


async def test_a_dead_endpoint_is_passed_over(shared):
    async with publishing(f"127.0.0.1:{free_port()}", shared.address) as worker:
        await until(partial(seen, shared, worker.key))


async def test_when_a_member_dies_the_worker_goes_to_another(etcd, shared):
    """Two clusters of one stand for two members: what counts is where the worker goes."""
    async with publishing(etcd.address, shared.address) as worker:
        await until(partial(seen, etcd, worker.key))
        await trio.to_thread.run_sync(etcd.kill)
        await until(partial(seen, shared, worker.key), TTL_S + 5)


async def test_without_any_etcd_the_worker_goes_on_trying_and_ends_at_once(logged):
    async with publishing(f"127.0.0.1:{free_port()}") as worker:
        await until(lambda: worker.publisher._machine.failures > 3)
        started = trio.current_time()
    assert trio.current_time() - started < 1
    warnings = [line for line in logged if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["registration_failed"]
    assert "Connection refused" in str(warnings[0]["error"])


async def test_user_and_password_are_used_and_not_logged(etcd, logged):
    etcd.lock("worker", "geheim-1")
    async with publishing(etcd.address, access=EtcdAccess(user="worker", password="geheim-1")) as worker:
        await until(partial(seen, etcd, worker.key))
    async with publishing(etcd.address, access=EtcdAccess(user="worker", password="geheim-2")):
        await until(lambda: [line for line in logged if line["event"] == "registration_failed"])
    assert "authentication failed" in str(logged[-1]["error"])
    assert "geheim" not in repr(logged)
    assert "geheim" not in repr(EtcdAccess(user="worker", password="geheim-1"))


async def test_a_token_that_is_no_longer_good_is_fetched_anew(etcd):
    """Tokens of etcd's simple kind are gone with the process that gave them."""
    etcd.lock("worker", "geheim")
    async with publishing(etcd.address, access=EtcdAccess(user="worker", password="geheim")) as worker:
        await until(partial(seen, etcd, worker.key))
        await trio.to_thread.run_sync(etcd.kill)
        await trio.to_thread.run_sync(etcd.start)
        await until(lambda: worker.publisher.state is LeaseState.REGISTERED, TTL_S + 5)
        await until(partial(seen, etcd, worker.key))


async def test_tls_with_certificates_on_both_sides(logged):
    server = EtcdServer(trustme.CA())
    try:
        async with publishing(server.address, access=EtcdAccess(**server.tls_files)) as worker:
            await until(partial(seen, server, worker.key))
        ca = server.tls_files["tls_ca"]
        stranger = Path(server.folder) / "stranger.pem"
        trustme.CA().cert_pem.write_to_path(stranger)
        wrong = [
            EtcdAccess(),
            EtcdAccess(tls_ca=ca),
            EtcdAccess(**server.tls_files | {"tls_ca": str(stranger)}),
            EtcdAccess(tls_ca=f"{ca}.gone"),
        ]
        for access in wrong:
            async with publishing(server.address, access=access) as worker:
                await until(lambda: worker.publisher._machine.failures > 1)
                assert server.values(PREFIX) == {}
        assert any("cannot use" in str(line.get("error")) for line in logged)
    finally:
        server.stop()


async def test_nothing_is_left_open(shared):
    """A channel that is not closed warns when it is collected, and warnings are errors."""
    for _ in range(5):
        async with publishing(shared.address) as worker:
            await until(partial(seen, shared, worker.key))
    gc.collect()
