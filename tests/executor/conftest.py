"""One executor per test module; tests that end their executor start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executor.driver import ExecutorDriver, running_executor


@pytest.fixture(scope="module")
def shared_executor() -> Iterator[ExecutorDriver]:
    with running_executor("--heartbeat-interval-ms", "50") as driver:
        yield driver


@pytest.fixture
def executor(shared_executor: ExecutorDriver) -> Iterator[ExecutorDriver]:
    """The module's executor; after the test it must be alive, idle and run a call."""
    yield shared_executor
    shared_executor.resends = True
    shared_executor.returned.clear()
    probe = shared_executor.define("def probe(x):\n    return x\n")
    assert shared_executor.call(probe, "probe", "well") == "well"
    assert shared_executor.others == []
    shared_executor.wait_for(lambda: shared_executor.heartbeats[-1].payload.inflight_count == 0)
