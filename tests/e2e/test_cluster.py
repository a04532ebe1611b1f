"""Workers among others: real workers, a real etcd, real clients, and everything that can happen to each of them."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from blockx_worker.cli import main
from blockx_worker.client import BlockTableCallConfig, BlockWriteHandler, Task
from blockx_worker.client.directory import WorkerDirectory
from blockx_worker.model.tasks import TaskResult, TaskState
from tests.e2e.conftest import StartWorker
from tests.support.etcd import EtcdServer, etcd
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

__all__ = ["etcd"]

TTL_S = 2
PREFIX = "/blockx/workers/block/"

FUNCTIONS = """
import time

def slow_row(row):
    time.sleep(0.01)
    return {"block_number": row["block_number"], "n": row["n"], "value": row["n"] * 10}

def wait_for(path):
    import os
    while not os.path.exists(path):
        time.sleep(0.01)
    return path

def double(n):
    return 2 * n
"""

BLOCKS = 200
ROWS = 4


def registered(etcd: EtcdServer, **more: object) -> str:
    """The configuration of a worker of this cluster."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    return "\n".join([*lines, "[etcd]", f'endpoints = ["{etcd.address}"]', f"lease_ttl_s = {TTL_S}"])


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> Iterator[Any]:
    """Starts workers that a test may kill: nothing of them is judged."""
    workers: list[WorkerProcess] = []

    def start(name: str, **options: Any) -> WorkerProcess:
        folder = tmp_path_factory.mktemp(name)  # short: sockets are there
        options.setdefault("config", registered(etcd))
        env = {"BLOCKX_RUNTIME_DIR": str(folder / "run")}
        worker = WorkerProcess(folder, {"f": FUNCTIONS}, env=env, **{"executors": 1, **options})
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    rows = ({"block_number": b, "n": ROWS * b + i} for b in range(BLOCKS) for i in range(ROWS))
    (folder / "logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def blockx(*arguments: str) -> Result:
    """Run a command as a user does."""
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# --- one worker and its key -------------------------------------------------------------------------------------


def test_a_worker_is_seen_with_etcdctl_marked_while_it_drains_and_gone_when_it_has_ended(
    start_worker: StartWorker, etcd: EtcdServer, tmp_path: Path
) -> None:
    worker = start_worker({"f": FUNCTIONS}, executors=1, config=registered(etcd, task_slots=7))
    [(key, value)] = eventually(lambda: etcd.values(PREFIX), what="the key").items()
    assert key == PREFIX + worker.address
    told = (
        value["address"],
        value["deployment"],
        value["taskSlots"],
        value["runningTasks"],
        value["draining"],
    )
    assert told == (worker.address, "block", 7, 0, False)
    gate = tmp_path / "gate"
    with OfficialClient(worker.address) as client:
        client.submit_calls("runs", "f.wait_for", [[str(gate)]], call_budget_ms=0)
        client.RequestTaskSlot(task_id="leased", ttl_ms=60_000)
        eventually(lambda: etcd.values(PREFIX)[key]["runningTasks"] == 1, what="the task in the key")
        eventually(lambda: etcd.values(PREFIX)[key]["reservedSlots"] == 1, what="the lease in the key")
        worker.terminate()
        eventually(lambda: etcd.values(PREFIX)[key]["draining"], what="the mark of draining")
        gate.touch()
    assert worker.wait() == 0
    assert etcd.values(PREFIX) == {}


def test_the_key_of_a_killed_worker_is_gone_after_the_ttl_and_its_successor_replaces_it(
    fleet: Any, etcd: EtcdServer
) -> None:
    worker = fleet("a")
    [(key, before)] = eventually(lambda: etcd.values(PREFIX), what="the key").items()
    worker.kill()
    successor = fleet("b", listen=worker.address)
    eventually(lambda: etcd.values(PREFIX)[key]["instance"] != before["instance"], what="the successor")
    successor.kill()
    assert key in etcd.values(PREFIX)
    eventually(lambda: not etcd.values(PREFIX), timeout_s=TTL_S + 5, what="the end of the lease")


def test_tasks_run_on_while_etcd_is_killed_emptied_and_paused_and_the_key_comes_back(
    start_worker: StartWorker, etcd: EtcdServer, tmp_path: Path
) -> None:
    """Meanwhile every request is answered as ever."""
    worker = start_worker({"f": FUNCTIONS}, executors=1, config=registered(etcd))
    key = PREFIX + worker.address
    gate = tmp_path / "gate"
    eventually(lambda: key in etcd.values(PREFIX), what="the key")
    with OfficialClient(worker.address) as client:

        def answers(task_id: str) -> None:
            client.submit_calls(task_id, "f.double", [[4]], rpc_timeout=2)
            assert client.GetWorkerStatus(rpc_timeout=2).status.running_tasks >= 1

        client.submit_calls("runs", "f.wait_for", [[str(gate)]], call_budget_ms=0)
        etcd.kill()
        etcd.forget()
        answers("while etcd is dead")
        etcd.start()
        eventually(lambda: key in etcd.values(PREFIX), timeout_s=TTL_S + 5, what="the key in the empty etcd")
        etcd.pause()
        eventually(lambda: len(worker.log_events("registration_lost")) == 2, what="the loss")
        answers("while etcd is paused")
        etcd.resume()
        eventually(lambda: len(worker.log_events("registered")) == 3, timeout_s=TTL_S + 5, what="the return")
        assert key in etcd.values(PREFIX)
        gate.touch()
        assert state_name(client.wait("runs").state) == "SUCCEEDED"
        assert client.outputs("runs") == [str(gate)]


def test_a_worker_starts_serves_and_ends_without_its_etcd(
    start_worker: StartWorker, etcd: EtcdServer
) -> None:
    etcd.kill()
    worker = start_worker({"f": FUNCTIONS}, executors=1, config=registered(etcd))
    with OfficialClient(worker.address) as client:
        client.submit_calls("t", "f.double", [[4]], wait_ms=10_000)
        assert client.outputs("t") == [8]
    worker.terminate()
    assert worker.wait(10) == 0
    etcd.start()


# --- the command line -------------------------------------------------------------------------------------------


def test_submit_finds_a_worker_through_etcd_and_passes_over_the_draining_one(
    fleet: Any, etcd: EtcdServer, tmp_path: Path
) -> None:
    """Exit code 0 with the outputs; the one that drains has more room and gets nothing."""
    gate = tmp_path / "gate"
    draining = fleet("a", config=registered(etcd, task_slots=100, drain_timeout_ms=60_000))
    other = fleet("b", config=registered(etcd, task_slots=2))
    with OfficialClient(draining.address) as client:
        client.submit_calls("holds", "f.wait_for", [[str(gate)]], call_budget_ms=0)
    draining.terminate()
    eventually(lambda: sum(v["draining"] for v in etcd.values(PREFIX).values()) == 1, what="draining")
    eventually(lambda: len(etcd.values(PREFIX)) == 2, what="both keys")
    done = blockx(
        *("submit", "--etcd", etcd.address, "--prefix", PREFIX, "--json", "--task-id", "t"),
        *("calls", "--function", "f.double", "--args", "[4]"),
    )
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "8"), done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "SUCCEEDED"
    assert other.log_events("task_finished", task_id="t")
    handed = blockx(
        *("submit", "--etcd", f"127.0.0.1:1,{etcd.address}", "--no-wait", "--task-id", "u"),
        *("calls", "--function", "f.double", "--args", "[4]"),
    )
    assert handed.exit_code == 0, handed.stderr
    assert f"blockx watch --to {other.address} u" in handed.stderr
    gate.touch()
    assert draining.wait() == 0


def test_exit_codes_tell_no_worker_from_a_refusal_and_from_wrong_usage(fleet: Any, etcd: EtcdServer) -> None:
    calls = ("calls", "--function", "f.double", "--args", "[4]")
    nobody = blockx("submit", "--etcd", etcd.address, *calls)
    assert nobody.exit_code == 3
    assert f"etcd {etcd.address} under {PREFIX}: no worker is registered" in nobody.stderr
    no_etcd = blockx("submit", "--etcd", "127.0.0.1:1", *calls)
    assert no_etcd.exit_code == 3
    assert "refused" in no_etcd.stderr
    for wrong in (
        ("--etcd", etcd.address, "--to", "127.0.0.1:1"),
        ("--prefix", PREFIX, "--to", "127.0.0.1:1"),
        ("--etcd", "no address"),
        ("--etcd", etcd.address, "--prefix", "no prefix"),
    ):
        assert blockx("submit", *wrong, *calls).exit_code == 2
    fleet("a", config=registered(etcd, task_slots=1))
    eventually(lambda: etcd.values(PREFIX), what="the key")
    held = ("--no-wait", "--task-id", "holds", "calls", "--function", "f.wait_for", "--args", '["/no/such"]')
    assert blockx("submit", "--etcd", etcd.address, "--budget", "0s", *held).exit_code == 0
    full = blockx("submit", "--etcd", etcd.address, *calls)
    assert (full.exit_code, "NO_SLOT" in full.stderr) == (2, True), full.stderr
    conflict = blockx("submit", "--etcd", etcd.address, "--task-id", "holds", *calls)
    assert (conflict.exit_code, "TASK_ID_CONFLICT" in conflict.stderr) == (2, True), conflict.stderr


# --- mirroring --------------------------------------------------------------------------------------------------


def test_a_shadow_runs_copies_and_writes_nothing(fleet: Any, etcd: EtcdServer, blocks: Path) -> None:
    shadow = fleet("shadow", blocks=blocks)
    main = fleet("main", blocks=blocks, config=f'[shadow]\ntarget = "{shadow.address}"\nsample_rate = 1.0')
    with OfficialClient(main.address) as client:
        handler = {"target": f"sqlite:///{main.folder}/rows.db", "table": "t"}
        client.submit_table("copied", "f.slow_row", 3, ["logs"], handler)
        assert state_name(client.wait("copied").state) == "SUCCEEDED"
        client.submit_table("copied", "f.slow_row", 3, ["logs"], handler)
    [finished] = eventually(lambda: shadow.log_events("task_finished", task_id="copied"), what="the copy")
    assert finished["state"] == "SUCCEEDED"
    with sqlite3.connect(main.folder / "rows.db") as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)
    with OfficialClient(shadow.address) as client:
        result = client.GetTaskResult(task_id="copied").task.result
        assert (result.plugin_results, result.output_count) == (b"", 0)
        assert result.statistic.calls_total == ROWS
        assert client.outputs("copied") == []


# --- everything at once -----------------------------------------------------------------------------------------


def until_busy(worker: WorkerProcess) -> None:
    """Until it has more tasks than it can finish in no time."""
    with OfficialClient(worker.address) as client:
        eventually(lambda: client.GetWorkerStatus().status.running_tasks >= 4, what="running tasks")


async def test_no_row_is_missing_or_doubled_while_a_worker_is_killed_and_another_drained(
    fleet: Any, etcd: EtcdServer, blocks: Path, tmp_path: Path
) -> None:
    """200 table tasks by four clients; the drained worker has to cut tasks off, and another runs them."""
    target = f"sqlite:///{tmp_path}/rows.db"
    config = registered(etcd, drain_timeout_ms=20)
    workers: dict[str, WorkerProcess] = {}

    async def start(name: str) -> None:
        workers[name] = await trio.to_thread.run_sync(
            partial(fleet, name, executors=2, blocks=blocks, config=config)
        )

    results: dict[str, TaskResult] = {}
    enough = trio.Event()

    async def submit(directory: WorkerDirectory, limit: trio.CapacityLimiter, block: int) -> None:
        mode = "append" if block % 2 else "replace_block"
        task = Task(
            BlockTableCallConfig("f.slow_row", block, ["logs"]),
            BlockWriteHandler(target, mode, mode),
            task_id=f"block-{block}",
        )
        async with limit:
            result, _ = await directory.run(task)
        results[task.task_id] = result
        if len(results) == BLOCKS // 5:
            enough.set()

    async def client(number: int) -> None:
        limit = trio.CapacityLimiter(12)
        async with WorkerDirectory.connect(etcd.address, PREFIX) as directory:
            await directory.wait_for(lambda workers: len(workers) == 3)
            async with trio.open_nursery() as nursery:
                for block in range(number, BLOCKS, 4):
                    nursery.start_soon(submit, directory, limit, block)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for name in ("killed", "drained", "survivor"):
                nursery.start_soon(start, name)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(client, number)
            await enough.wait()
            await trio.to_thread.run_sync(until_busy, workers["drained"])
            workers["killed"].process.send_signal(signal.SIGKILL)
            workers["drained"].terminate()
    assert len(results) == BLOCKS
    assert Counter(result.state for result in results.values()) == {TaskState.SUCCEEDED: BLOCKS}
    for worker in workers.values():
        assert worker.log_events("task_finished"), "each had its share"
    cut_off = workers["drained"].log_events("task_finished", code="WORKER_SHUTDOWN")
    assert cut_off, "the drained one had tasks that others had to run"
    with sqlite3.connect(tmp_path / "rows.db") as database:
        for mode, parity in (("append", 1), ("replace_block", 0)):
            rows = database.execute(f"SELECT block_number, n, value FROM {mode} ORDER BY n").fetchall()
            expected = [n for n in range(ROWS * BLOCKS) if n // ROWS % 2 == parity]
            assert rows == [(n // ROWS, n, 10 * n) for n in expected]
