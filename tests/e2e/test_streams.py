"""Tables that are read, computed and written at the same time: nothing piles up, nothing is lost, nothing doubled.

``BLOCKX_LONG=1`` runs the stream of a million calls, else it has a hundred thousand.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, messages, state_name, typed
from tests.support.worker_process import WorkerProcess, eventually, peak_memory, reset_peak_memory

CALLS = 1_000_000 if os.environ.get("BLOCKX_LONG") else 100_000
WRITTEN = 30_000
ROWS_PER_BLOCK = 100
MEMORY_BYTES = 200 * 2**20
CONFIG = """
tick_ms = 50
executor_restart_delay_ms = 20
[dispatcher]
heartbeat_interval_ms = 100
[stream_build]
batch_max_rows = 1000
[writers]
batch_rows = 1000
"""
FUNCTIONS = """
import time

def value(row):
    return 3 * row["i"] + 1

def row(row):
    return {"block_number": row["block_number"], "i": row["i"], "value": str(7 ** 80 + row["i"])}

def some_rows(row):
    return [{"block_number": row["block_number"], "i": row["i"], "copy": copy} for copy in range(row["i"] % 3)]

def bad_late(row):
    if row["i"] == 20_000:
        raise ValueError("no more")
    return {"block_number": row["block_number"], "i": row["i"]}

def slow(row):
    time.sleep(0.001)
    return {"block_number": row["block_number"], "i": row["i"]}
"""


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers from 0, a hundred in each block from 1 on; the tables differ in length."""
    folder = tmp_path_factory.mktemp("blocks")
    write_numbers(folder / "numbers.jsonl", CALLS)
    write_numbers(folder / "written.jsonl", WRITTEN)
    return folder


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, blocks: Path) -> WorkerProcess:
    return start_worker({"numbers": FUNCTIONS}, blocks=blocks, config=CONFIG)


@pytest.fixture(scope="module")
def plain(start_worker: StartWorker, blocks: Path) -> Iterator[tuple[WorkerProcess, OfficialClient]]:
    """A worker with the batches that it has unless it is told otherwise."""
    worker = start_worker({"numbers": FUNCTIONS}, blocks=blocks)
    with OfficialClient(worker.address) as client:
        yield worker, client


def test_a_long_stream_needs_little_memory(plain: tuple[WorkerProcess, OfficialClient]) -> None:
    """Each row becomes a call, each value comes back in its place."""
    worker, client = plain
    warm_up(client)
    reset_peak_memory(worker.pid)
    idle = peak_memory(worker.pid)
    started = time.monotonic()
    submit_values(client, "long", CALLS)
    expected = 0
    for event in client.WatchTasks(task_ids=["long"], rpc_timeout=300):
        kind = event.WhichOneof("event")
        if kind == "outputs":
            values = msgspec.json.decode(
                b"[" + event.outputs.json_lines.rstrip(b"\n").replace(b"\n", b",") + b"]"
            )
            assert event.outputs.first_index == expected
            expected += len(values)
            assert values == list(range(3 * (expected - len(values)) + 1, 3 * expected + 1, 3))
        elif kind == "result":
            result = event.result
    seconds = time.monotonic() - started
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert expected == CALLS
    assert (result.statistic.calls_total, result.statistic.calls_succeeded) == (CALLS, CALLS)
    grown = peak_memory(worker.pid) - idle
    print(f"{CALLS / seconds:,.0f} calls/s, {grown / 2**20:.0f} MiB above idle")
    assert grown < MEMORY_BYTES


def test_rows_are_written_as_their_batches_settle(client: OfficialClient, tmp_path: Path) -> None:
    """All of them, in order, in transactions while calls still run."""
    path = tmp_path / "rows.db"
    submit_rows(client, "rows", "numbers.row", path, mode="append")
    eventually(lambda: count(path) > 0, what="rows appear")
    assert state_name(client.GetTaskResult(task_id="rows").task.state) == "RUNNING"
    result = client.wait("rows")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert rows(path, "i", "block_number", "value") == [
        (i, 1 + i // ROWS_PER_BLOCK, str(7**80 + i)) for i in range(WRITTEN)
    ]
    assert msgspec.json.decode(result.plugin_results)["rowsWritten"] == WRITTEN


@pytest.mark.parametrize(("mode", "kills"), [("append", 2), ("replace_block", 1)])
def test_a_task_goes_on_where_a_killed_worker_stood(
    start_worker: StartWorker, blocks: Path, tmp_path: Path, mode: str, kills: int
) -> None:
    """Each time a worker is killed between two batches, the same task is submitted to the next one."""
    path = tmp_path / "rows.db"
    worker = start_worker({"numbers": FUNCTIONS}, blocks=blocks, config=CONFIG)
    for part in range(1, kills + 1):
        with OfficialClient(worker.address) as client:
            submit_rows(client, "killed", "numbers.some_rows", path, mode=mode)
            eventually(partial(has_rows, path, part * WRITTEN // 4), what="rows are written")
            worker.kill()
        written = count(path)
        assert written < WRITTEN - 1, "it was killed too late"
        worker.start()
    with OfficialClient(worker.address) as client:
        submit_rows(client, "killed", "numbers.some_rows", path, mode=mode)
        result = client.wait("killed")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    expected = [(i, copy) for i in range(WRITTEN) for copy in range(i % 3)]
    assert rows(path, "i", "copy") == expected
    written_now = msgspec.json.decode(result.plugin_results)["rowsWritten"]
    assert written_now == len(expected) - (written if mode == "append" else 0)


def test_a_failed_task_says_what_is_written_already(client: OfficialClient, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    submit_rows(client, "bad-late", "numbers.bad_late", path, mode="append")
    result = client.wait("bad-late")
    assert (state_name(result.state), result.failure.code) == ("FAILED", "CALLS_FAILED")
    assert (result.failure.call_id, result.failure.error_kind) == ("bad-late/20000", "USER_ERROR")
    written = count(path)
    assert written <= 20_000
    assert rows(path, "i") == [(i,) for i in range(written)]
    if written:
        assert f"({written} rows) are written and stay" in result.failure.message


def test_with_collect_all_no_row_is_written_unless_all_calls_succeed(
    client: OfficialClient, tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    submit_rows(client, "collect", "numbers.bad_late", path, mode="append", call_failure_policy=2)
    result = client.wait("collect")
    assert [call.index for call in result.failed_calls] == [20_000]
    assert result.statistic.calls_succeeded == WRITTEN - 1
    assert count(path) == 0


def test_a_cancelled_stream_leaves_whole_batches(client: OfficialClient, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    submit_rows(client, "cancelled", "numbers.slow", path, mode="append")
    eventually(lambda: count(path) > 0, what="rows are written")
    client.CancelTask(task_id="cancelled")
    result = client.wait("cancelled", timeout=10)
    assert state_name(result.state) == "CANCELLED"
    written = count(path)
    assert 0 < written < WRITTEN
    assert rows(path, "i") == [(i,) for i in range(written)]
    statistic = result.statistic
    assert statistic.calls_total == (
        statistic.calls_succeeded + statistic.calls_failed + statistic.calls_cancelled
    )


def write_numbers(path: Path, how_many: int) -> None:
    with path.open("w") as file:
        for first in range(0, how_many, ROWS_PER_BLOCK):
            block = 1 + first // ROWS_PER_BLOCK
            file.write(
                "".join(
                    [f'{{"block_number":{block},"i":{i}}}\n' for i in range(first, first + ROWS_PER_BLOCK)]
                )
            )


def submit_values(client: OfficialClient, task_id: str, calls: int) -> None:
    """A call for each of the first numbers."""
    config = {
        "functionId": "numbers.value",
        "block": {"from": 1, "to": calls // ROWS_PER_BLOCK},
        "triggerSources": ["numbers"],
    }
    client.SubmitTask(
        task_id=task_id,
        function_call_config=typed("BlockTableCallConfig", config),
        result_handler=messages["TypedConfig"](type="ReturnValueResultHandler", config=b"{}"),
    )


def warm_up(client: OfficialClient) -> None:
    submit_values(client, "warm", 20_000)
    assert state_name(client.wait("warm").state) == "SUCCEEDED"


def submit_rows(
    client: OfficialClient, task_id: str, function: str, path: Path, *, mode: str, **fields: Any
) -> None:
    handler = {"target": f"sqlite:///{path}", "table": "numbers", "mode": mode}
    block = {"from": 1, "to": WRITTEN // ROWS_PER_BLOCK}
    client.submit_table(task_id, function, block, ["written"], handler, **fields)


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """All rows in the order in which they were written."""
    return select(path, f"SELECT {', '.join(columns)} FROM numbers ORDER BY rowid")


def count(path: Path) -> int:
    """Rows that are there; none while there is no table."""
    try:
        [(found,)] = select(path, "SELECT count(*) FROM numbers")
    except sqlite3.OperationalError:
        return 0
    return int(found)


def has_rows(path: Path, at_least: int) -> bool:
    return count(path) >= at_least


def select(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()
