"""Copies of accepted tasks: what is sent, what is not, and that nobody waits for a target."""

from __future__ import annotations

import attrs
import pytest
import structlog
import trio

from blockx_worker import bridge
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskRequest, TypedConfig
from blockx_worker.rpc.config import RpcConfig
from blockx_worker.rpc.server import serve
from blockx_worker.shadow import ShadowConfig, ShadowForwarder
from tests.registry.cluster import Member
from tests.support.etcd import free_port
from tests.support.proxy import SilentProxy


def request(number: int = 0, size: int = 10, **fields) -> TaskRequest:
    config = TypedConfig("CallListCallConfig", b'{"functionId": "f.g", "argsList": []}'.ljust(size))
    return TaskRequest(task_id=f"t{number}", function_call_config=config, timeout_ms=1000, **fields)


def forwarder(target: str, *, sample=lambda: 0.0, **config) -> ShadowForwarder:
    return ShadowForwarder(ShadowConfig(target=target, sample_rate=0.5, **config), sample=sample)


@pytest.fixture
async def target(nursery):
    member = Member("target")
    member.address = await nursery.start(serve, member, RpcConfig(host="127.0.0.1", port=0))
    return member


@pytest.fixture
async def nursery():
    """With the loop that a worker has around everything."""
    with trio.fail_after(20):
        async with bridge.open_loop(), trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()


async def until_settled(shadow: ShadowForwarder, count: int) -> None:
    while shadow.sent + shadow.dropped.total() < count:  # noqa: ASYNC110 - what is sent has no event for tests
        await trio.sleep(0.01)


async def test_a_copy_is_the_task_without_its_handler_and_marked(nursery, target):
    shadow = forwarder(target.address)
    await nursery.start(shadow.run)
    original = request(
        result_handler=TypedConfig("BlockWriteHandler", b'{"target": "postgresql://u:geheim@h/d"}'),
        slot_id="slot-7",
        instance_id="team",
        call_failure_policy=CallFailurePolicy.COLLECT_ALL,
        call_retry_policy=CallRetryPolicy(max_attempts=7, base_backoff_ms=9),
        call_budget_ms=77,
        labels={"a": "b"},
    )
    shadow.offer(original)
    await until_settled(shadow, 1)
    expected = attrs.evolve(original, result_handler=None, slot_id=None, is_shadow=True)
    assert target.tasks["t0"].request == expected


async def test_only_the_sample_is_copied_and_a_shadow_never(nursery, target):
    chances = iter([0.49, 0.5, 0.0, 0.99])
    shadow = forwarder(target.address, sample=lambda: next(chances))
    await nursery.start(shadow.run)
    for number in range(4):
        shadow.offer(request(number))
    shadow.offer(request(9, is_shadow=True))
    await until_settled(shadow, 2)
    assert list(target.tasks) == ["t0", "t2"]


async def test_the_queue_has_a_limit_by_number_and_one_by_size(target):
    by_number = forwarder(target.address, queue_tasks=3)
    by_size = forwarder(target.address, queue_bytes=2500)
    for number in range(5):
        by_number.offer(request(number))
        by_size.offer(request(number, 1000))
    assert by_number.dropped == {"shadow copy: queue_tasks reached": 2}
    assert by_size.dropped == {"shadow copy: queue_bytes reached": 3}


async def test_a_dead_target_is_left_alone_for_a_while_and_copies_are_dropped_at_once(nursery):
    shadow = forwarder(f"127.0.0.1:{free_port()}", backoff_ms=60_000)
    await nursery.start(shadow.run)
    with structlog.testing.capture_logs() as lines:
        shadow.offer(request())
        await until_settled(shadow, 1)
        for number in range(1000):
            shadow.offer(request(number))
    assert shadow.dropped == {"shadow copy: target unreachable": 1001}
    assert not shadow._queue
    assert [line["event"] for line in lines] == ["shadow_target_unreachable"]


async def test_a_target_that_comes_back_gets_copies_again(nursery):
    port = free_port()
    shadow = forwarder(f"127.0.0.1:{port}", backoff_ms=100)
    await nursery.start(shadow.run)
    shadow.offer(request())
    await until_settled(shadow, 1)
    assert shadow.dropped == {"shadow copy: target unreachable": 1}
    target = Member("target")
    await nursery.start(serve, target, RpcConfig(host="127.0.0.1", port=port))
    while not shadow.sent:
        shadow.offer(request(1))
        await trio.sleep(0.01)
    assert list(target.tasks) == ["t1"]


async def test_a_target_that_falls_silent_is_left_alone_after_the_time_out(nursery, target):
    with SilentProxy(target.address) as proxy:
        shadow = forwarder(proxy.address, timeout_ms=200)
        await nursery.start(shadow.run)
        proxy.fall_silent()
        shadow.offer(request())
        await until_settled(shadow, 1)
    assert shadow.dropped == {"shadow copy: target unreachable": 1}


async def test_a_copy_that_the_target_refuses_is_counted_and_the_next_is_sent(nursery, target):
    shadow = forwarder(target.address)
    await nursery.start(shadow.run)
    target.is_full()
    shadow.offer(request(1))
    await until_settled(shadow, 1)
    target.refuse_with = None
    shadow.offer(request(2))
    await until_settled(shadow, 2)
    assert list(target.tasks) == ["t2"]
    assert shadow.dropped == {"shadow copy: refused, NO_SLOT": 1}


async def test_a_target_that_is_silent_holds_up_nothing(nursery, target):
    """What waits for it is bounded, and offering returns at once."""
    with SilentProxy(target.address) as proxy:
        shadow = forwarder(proxy.address, timeout_ms=60_000, queue_tasks=8, max_inflight=2)
        await nursery.start(shadow.run)
        proxy.fall_silent()
        for number in range(100):
            shadow.offer(request(number))
            await trio.lowlevel.checkpoint()
        assert len(shadow._queue) <= 8
        assert shadow.dropped["shadow copy: queue_tasks reached"] >= 90
