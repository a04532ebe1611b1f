"""Tasks that read block tables from PostgreSQL and write rows to it: a real server, real workers that are killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import StartWorker
from tests.e2e.test_mainnet import FIRST, LAST, TRANSFERS, in_order
from tests.support.official import OfficialClient, state_name
from tests.support.postgres import PASSWORD, PostgresDatabase, PostgresServer
from tests.support.worker_process import WorkerProcess, eventually

WRITTEN = 10_000
FUNCTIONS = """
import time

def identity(row):
    return row

def some_rows(row):
    time.sleep(0.0002)
    n = row["number"]
    return [{"block_number": row["block_number"], "n": n, "copy": copy, "value": 7 ** 80 + n} for copy in range(n % 3)]

def tagged_a(row):
    return {**row, "task": "a"}

def tagged_b(row):
    return [{**row, "task": "b"}] * 2

def bad_row(row):
    out = {"block_number": row["block_number"], "n": row["number"], "amount": row["number"]}
    if row["number"] == 77:
        out["amount"] = "seventy-seven"
    return out

def slow(row):
    time.sleep(0.002)
    return {"block_number": row["block_number"], "n": row["number"]}
"""
CONFIG = """
tick_ms = 50
blocks_target = "chain"
[targets]
chain = "{url}"
[dispatcher]
heartbeat_interval_ms = 100
[stream_build]
batch_max_rows = 500
[writers]
batch_rows = 500
"""


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """One database for the tables that are read and those that are written."""
    database = postgres_server.database()
    yield database
    postgres_server.take_back(database)


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, database: PostgresDatabase) -> Callable[[], WorkerProcess]:
    """Start a worker whose store and target is the database."""
    config = CONFIG.format(url=database.tcp_url)
    return lambda: start_worker({"f": FUNCTIONS, "transfers": TRANSFERS}, config=config)


@pytest.fixture(scope="module")
def worker(start: Callable[[], WorkerProcess], database: PostgresDatabase) -> WorkerProcess:
    """There are numbers in the database, fifty in each block."""
    database.execute(
        "CREATE TABLE numbers AS SELECT i / 50 AS block_number, i AS number FROM generate_series(0, 9999) AS i"
    )
    return start()


@pytest.fixture(scope="module")
def chain(client: OfficialClient, ethereum_blocks: Path, database: PostgresDatabase) -> None:
    """The real blocks and their logs, written by the worker itself."""
    for table in ("blocks", "logs"):
        lines = (ethereum_blocks / f"{table}.jsonl").read_text().splitlines()
        handler = {"target": "chain", "table": table, "mode": "append"}
        client.submit_rows(f"load-{table}", "f.identity", [[json.loads(line)] for line in lines], handler)
        assert succeeded(client, f"load-{table}")["rowsWritten"] == len(lines)
    # From here on the table knows which blocks there are; those of the numbers are among them.
    database.execute("INSERT INTO blocks (number) SELECT * FROM generate_series(0, 199)")


@pytest.fixture(scope="module")
def truth(ethereum_blocks: Path) -> list[dict[str, Any]]:
    lines = (ethereum_blocks / "token_transfers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_transfers_of_the_real_blocks_are_the_ground_truth(
    client: OfficialClient, chain: None, database: PostgresDatabase, truth: list[dict[str, Any]]
) -> None:
    """291 rows with all their digits, from a table to a table; also after a second run, and by groups."""
    for task_id, function, rows_per_call in (
        ("range", "transfers.transfer", None),
        ("again", "transfers.transfer", None),
        ("groups", "transfers.transfers", 100),
    ):
        handler = {"target": "chain", "table": "transfers"}
        span = {"from": FIRST, "to": LAST}
        client.submit_table(task_id, function, span, ["logs"], handler, rows_per_call=rows_per_call)
        written = succeeded(client, task_id)
        assert (written["rowsWritten"], written["blocksReplaced"]) == (291, 2)
        assert in_order(table(database, "transfers")) == in_order(truth)


def test_a_bad_row_names_row_and_column_and_leaves_no_row(
    client: OfficialClient, database: PostgresDatabase
) -> None:
    database.execute("CREATE TABLE bad (block_number bigint, n bigint, amount numeric)")
    for mode, block, output in (("append", {"from": 0, "to": 1}, 77), ("replace_block", 1, 27)):
        handler = {"target": "chain", "table": "bad", "mode": mode}
        client.submit_table(f"bad-{mode}", "f.bad_row", block, ["numbers"], handler)
        message = failed(client, f"bad-{mode}", "PLUGIN_FAILED").message
        assert f'output {output}, column "amount"' in message
        assert "seventy-seven" in message
        assert database.select("SELECT count(*) FROM bad") == [(0,)]
    handler = {"target": "chain", "table": "bad"}
    client.submit_table("bad-range", "f.bad_row", {"from": 0, "to": 1}, ["numbers"], handler)
    message = failed(client, "bad-range", "PLUGIN_FAILED").message
    assert "blocks 0 to 0 (50 rows) are written and stay" in message
    assert database.select("SELECT DISTINCT block_number FROM bad") == [(0,)]


@pytest.mark.parametrize(("mode", "kills"), [("append", 2), ("replace_block", 1)])
def test_a_task_goes_on_where_a_killed_worker_stood(
    worker: WorkerProcess,
    start: Callable[[], WorkerProcess],
    database: PostgresDatabase,
    mode: str,
    kills: int,
) -> None:
    """A worker is killed between two transactions; the same task on the next one doubles nothing and loses nothing."""
    name = f"killed_{mode}"
    handler = {"target": "chain", "table": name, "mode": mode}
    killed = start()

    def written() -> int:
        exists = database.select(f"SELECT to_regclass('{name}') IS NOT NULL")
        return int(database.select(f"SELECT count(*) FROM {name}")[0][0]) if exists == [(True,)] else 0

    def submit(client: OfficialClient) -> None:
        client.submit_table(name, "f.some_rows", {"from": 0, "to": 199}, ["numbers"], handler)

    before = 0
    for _ in range(kills):
        with OfficialClient(killed.address) as client:
            submit(client)
            eventually(lambda before=before: written() > before, what="rows are written")  # type: ignore[misc]
            killed.kill()
        before = written()
        assert before < WRITTEN - 1, "it was killed too late"
        killed.start()
    with OfficialClient(killed.address) as client:
        submit(client)
        written_now = succeeded(client, name)["rowsWritten"]
    expected = [(i, copy, 7**80 + i) for i in range(WRITTEN) for copy in range(i % 3)]
    assert sorted(database.select(f"SELECT n, copy, value FROM {name}")) == expected
    assert written_now == len(expected) - (before if mode == "append" else 0)


def test_tasks_that_replace_one_block_at_once_leave_the_rows_of_one(
    client: OfficialClient, database: PostgresDatabase
) -> None:
    """Eight tasks over ten blocks; the one kind makes a row where the other makes two."""
    handler = {"target": "chain", "table": "contended"}
    ids = [f"contended-{kind}-{n}" for n in range(4) for kind in ("a", "b")]
    for task_id in ids:
        span = {"from": 0, "to": 9}
        client.submit_table(task_id, f"f.tagged_{task_id[10]}", span, ["numbers"], handler)
    for task_id in ids:
        assert succeeded(client, task_id)["blocksReplaced"] == 10
    rows = Counter(database.select("SELECT block_number, task FROM contended"))
    assert sorted(block for block, _ in rows) == list(range(10)), "each block has rows of one kind"
    assert all(count == (50 if kind == "a" else 100) for (_, kind), count in rows.items())


def test_a_task_whose_connection_is_cut_fails_and_a_rerun_completes_it(
    start: Callable[[], WorkerProcess], client: OfficialClient, database: PostgresDatabase
) -> None:
    handler = {"target": "chain", "table": "cut", "mode": "append"}
    span = {"from": 0, "to": 39}
    client.submit_table("cut", "f.slow", span, ["numbers"], handler)

    def written() -> bool:
        try:
            return database.select("SELECT count(*) FROM cut") > [(0,)]
        except psycopg.errors.UndefinedTable:
            return False

    eventually(written, what="rows are written")
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    result = client.wait("cut", timeout=60)
    assert state_name(result.state) == "FAILED"
    assert result.failure.code in ("PLUGIN_FAILED", "BUILDER_FAILED")
    assert "are written and stay" in result.failure.message
    with OfficialClient(start().address) as other:
        other.submit_table("cut", "f.slow", span, ["numbers"], handler)
        assert succeeded(other, "cut")["rowsWritten"] < 2000
    assert sorted(database.select("SELECT n FROM cut")) == [(n,) for n in range(2000)]


def test_no_password_is_seen_anywhere(worker: WorkerProcess, client: OfficialClient) -> None:
    client.submit_rows("masked", "f.identity", [[{"a": 1}]], {"target": "nowhere", "table": "t"})
    message = failed(client, "masked", "PLUGIN_FAILED").message
    assert "nowhere" in message
    assert PASSWORD not in message + worker.log()
    assert "s3cret" not in message + worker.log()


def succeeded(client: OfficialClient, task_id: str) -> dict[str, Any]:
    """Wait for a task to succeed; what its writer reports."""
    result = client.wait(task_id)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    report: dict[str, Any] = json.loads(result.plugin_results)
    return report


def failed(client: OfficialClient, task_id: str, code: str) -> Any:
    """Wait for a task to fail like that; its failure."""
    result = client.wait(task_id)
    assert (state_name(result.state), result.failure.code) == ("FAILED", code)
    return result.failure


def table(database: PostgresDatabase, name: str) -> list[dict[str, Any]]:
    """All rows, by column; numerics are whole numbers here."""
    with database.connect(row_factory=psycopg.rows.dict_row) as connection:
        rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
    return [{**row, "value": int(row["value"])} for row in rows]
