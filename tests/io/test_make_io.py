"""The back ends that a worker has by its settings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from blockx_worker.config.io_settings import BlockDbSettings, IoSettings, JsonRpcSettings
from blockx_worker.config.settings import Settings
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.io.make import make_io
from blockx_worker.io.port import BackendPort
from blockx_worker.surroundings import WorkerThreads
from tests.io.io_fakes import FakeBackend, ask, problem


def make(folder=None, extra=(), **io: Any):
    stores = {} if folder is None else {"blockdb": FolderBlockStore(folder)}
    return make_io(Settings(io=IoSettings(**io)), WorkerThreads(), stores, extra, jitter=lambda: 0.0)


def test_a_worker_has_the_back_ends_that_its_settings_give_it(tmp_path):
    assert make().names == []
    rpc = JsonRpcSettings(endpoints=["http://127.0.0.1:1"])
    assert make(tmp_path, [FakeBackend("prices")], rpc=rpc).names == ["blockdb", "prices", "rpc"]


async def test_a_well_known_back_end_that_is_not_there_says_what_gives_it(nursery):
    io = make()
    await nursery.start(io.run)
    task = io.open_task("t")
    message = problem(await task.request(ask(backend="rpc"))).message
    assert (
        message
        == 'this worker has no back end "rpc"; it has none; for rpc it needs io.rpc.endpoints in its configuration'
    )
    assert "needs a block store (--blocks DIR)" in problem(await task.request(ask(backend="blockdb"))).message


async def test_the_limits_of_the_settings_reach_the_back_end(nursery, tmp_path):
    (tmp_path / "logs.jsonl").write_text('{"block_number": 1}\n{"block_number": 2}\n')
    io = make(tmp_path, max_answer_bytes=1024, blockdb=BlockDbSettings(max_blocks=1, sidecar_bytes=0))
    await nursery.start(io.run)
    task = io.open_task("t")
    good = await task.request(ask(backend="blockdb", op="rows", raw=b'{"table":"logs","block":1}'))
    assert good.sidecar == b'[{"block_number": 1}]'
    bad = await task.request(ask(backend="blockdb", op="rows", raw=b'{"table":"logs","from":1,"to":2}'))
    assert "2 blocks are more than the 1 of one request" in problem(bad).message


def test_each_back_end_has_the_places_and_times_of_its_section(tmp_path):
    io = make(
        tmp_path,
        [FakeBackend("prices")],
        max_inflight=3,
        timeout_ms=30,
        max_queue=7,
        rpc=JsonRpcSettings(endpoints=["http://127.0.0.1:1"], max_inflight=5, timeout_ms=50),
        blockdb=BlockDbSettings(max_inflight=4, timeout_ms=40),
    )
    ports = {name: port for name in io.names if isinstance(port := io.find(name), BackendPort)}
    assert {name: port.admission._free for name, port in ports.items()} == {
        "prices": 3,
        "rpc": 5,
        "blockdb": 4,
    }
    assert {name: port.timeout_ms for name, port in ports.items()} == {
        "prices": 30,
        "rpc": 1050,
        "blockdb": 40,
    }
    assert {port.admission._limits.requests for port in ports.values()} == {7}


def test_two_back_ends_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two back ends with the name blockdb"):
        make(tmp_path, [FakeBackend("blockdb")])


def test_a_worker_without_endpoints_does_not_import_the_http_client():
    """It takes a fifth of a second, and a worker is to be ready in one."""
    code = "import sys, blockx_worker.io.make; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
