"""The actor's bounded inbox: connections that find it full wait, and all of them go on."""

from __future__ import annotations

import trio

from blockx_executor.wire.messages import Heartbeat, HeartbeatPayload
from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.plugins.return_value import ReturnValuePlugin
from tests.shell.harness import running_worker


async def test_all_connections_that_wait_for_room_go_on(autojump_clock) -> None:
    """None is forgotten when several of them find the inbox full at the same time."""
    dispatcher = {"inbox_frames": 1, "actor_slice_calls": 1}
    async with running_worker([CallListBuilder()], [ReturnValuePlugin()], dispatcher=dispatcher) as harness:
        actor = harness.worker.orchestrator.actor
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(actor.frames, f"exec-{number}", [_heartbeat(f"exec-{number}")] * 3)


def _heartbeat(executor_id: str) -> Heartbeat:
    payload = HeartbeatPayload(
        executor_id=executor_id,
        heartbeat_seq=1,
        pid=1,
        version="",
        runnable_count=0,
        inflight_count=0,
        available_contexts=1,
        memory_bytes=0,
    )
    return Heartbeat(payload)
