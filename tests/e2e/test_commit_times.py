"""Deadlines, cancels and crashes around a commit: the rows that are there and what the task reports always agree.

Some tests hold SQLite's locks to stop the writer at a chosen place; others sweep the time-out of many tasks across
the time that the writing takes, and judge each of them.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

BUSY_TIMEOUT_MS = 1500
BATCH_ROWS = 10
BLOCKS, ROWS_A_BLOCK = 40, 20

FUNCTIONS = '''
import os


def rows(first, count, size):
    """So many rows, each of that many characters."""
    return [{"n": n, "text": "x" * size} for n in range(first, first + count)]


def same(row):
    return row


def unless(flag, n):
    """A row; a bad one for 25, unless the file is there."""
    if n == 25 and not os.path.exists(flag):
        return "not a row"
    return {"n": n}
'''


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many small blocks."""
    folder = tmp_path_factory.mktemp("blocks")
    with (folder / "logs.jsonl").open("w") as file:
        for block in range(BLOCKS):
            for line in range(ROWS_A_BLOCK):
                print(json.dumps({"block_number": block, "line": line}), file=file)
    return folder


CONFIG = f"""
tick_ms = 50
[writers]
sqlite_busy_timeout_ms = {BUSY_TIMEOUT_MS}
batch_rows = {BATCH_ROWS}
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, blocks: Path) -> WorkerProcess:
    """Appends commit every few rows; locks are waited for briefly."""
    return start_worker({"f": FUNCTIONS}, config=CONFIG, blocks=blocks)


@pytest.fixture(scope="module")
def forgetful(start_worker: StartWorker) -> Iterator[OfficialClient]:
    """A client of a worker that soon forgets its results."""
    worker = start_worker({"f": FUNCTIONS}, config="result_retention_ms = 100" + CONFIG)
    with OfficialClient(worker.address) as client:
        yield client


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2].split(";"):
    connection.execute(statement).fetchall()
print("held", flush=True)
sys.stdin.read()
"""


class Database:
    """An SQLite file that tasks write to, and a table in it."""

    def __init__(self, path: Path, table: str = "t") -> None:
        self.path = path
        self.table = table
        self.handler = {"target": f"sqlite:///{path}", "table": table}

    def select(self, columns: str, *, timeout_s: float = 10) -> list[tuple[Any, ...]]:
        """All rows in order; none when there is no table."""
        with closing(sqlite3.connect(self.path, timeout=timeout_s)) as connection:
            try:
                return connection.execute(f"SELECT {columns} FROM {self.table} ORDER BY rowid").fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    @contextmanager
    def held(self, script: str) -> Iterator[None]:
        """Another program holds the lock that these statements take; another, since SQLite's locks are a process's."""
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, self.path, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            try:
                yield
            finally:
                holder.stdin.close()

    def commit_waits(self) -> bool:
        """Whether a commit waits for readers to leave: it lets no new ones in."""
        try:
            self.select("1", timeout_s=0)
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        return False


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A database that is there already, with a rollback journal: a commit waits for readers."""
    database = Database(tmp_path / "out.db")
    with closing(sqlite3.connect(database.path)) as connection:
        connection.execute("CREATE TABLE t (n, text)")
        connection.execute("CREATE TABLE other (a)")
        connection.commit()
    return database


READING = "BEGIN; SELECT * FROM other"
WRITING = "BEGIN IMMEDIATE"


# --- held at a chosen place ---------------------------------------------------------------------------------------


def test_a_deadline_during_the_commit_waits_for_the_commit(client, database):
    """The commit has begun, so its outcome is the task's outcome: rows and SUCCEEDED, later than the deadline."""
    with database.held(READING):
        started = time.monotonic()
        submit_rows(client, "during", database, 5, timeout_ms=600)
        eventually(database.commit_waits)
        eventually(lambda: time.monotonic() > started + 0.8)
        snapshot = client.GetTaskResult(task_id="during").task
        assert state_name(snapshot.state) == "RUNNING"
    result = client.wait("during")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert len(database.select("n")) == 5


def test_a_cancel_during_the_commit_waits_for_the_commit(client, database):
    """The answer says that the task still runs, and then it succeeds."""
    with database.held(READING):
        submit_rows(client, "cancel-during", database, 5)
        eventually(database.commit_waits)
        assert state_name(client.CancelTask(task_id="cancel-during").task.state) == "RUNNING"
        assert state_name(client.CancelTask(task_id="cancel-during").task.state) == "RUNNING"
    assert state_name(client.wait("cancel-during").state) == "SUCCEEDED"
    assert len(database.select("n")) == 5


def test_a_deadline_during_a_commit_that_others_follow_lets_it_through_and_no_other(client, database):
    """The first batch is there, the failure says so, and a rerun would go on after it."""
    with database.held(READING):
        started = time.monotonic()
        client.submit_rows(
            "between", "f.same", [[{"n": n}] for n in range(35)], database.handler, timeout_ms=600
        )
        eventually(database.commit_waits)
        eventually(lambda: time.monotonic() > started + 0.8)
    result = client.wait("between")
    assert (state_name(result.state), result.failure.code) == ("TIMED_OUT", "TASK_TIMED_OUT")
    assert "the commit then under way was waited for" in result.failure.message
    assert f"outputs up to 9 ({BATCH_ROWS} rows) are written and stay" in result.failure.message
    assert database.select("n") == [(n,) for n in range(BATCH_ROWS)]


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_an_end_while_the_writer_waits_for_its_turn_leaves_nothing(client, database, end):
    """Before the commit the end strikes at once, while the other program still holds its lock."""
    with database.held(WRITING):
        task_id = f"before-{end}"
        submit_rows(client, task_id, database, 5, timeout_ms=400 if end == "deadline" else 60_000)
        if end == "cancel":
            eventually(lambda: in_writer(client, task_id))
            client.CancelTask(task_id=task_id)
        result = client.wait(task_id)
        assert state_name(result.state) == {"deadline": "TIMED_OUT", "cancel": "CANCELLED"}[end]
    assert database.select("n") == []
    submit_rows(client, f"{task_id}-next", database, 3)
    assert state_name(client.wait(f"{task_id}-next").state) == "SUCCEEDED"
    assert len(database.select("n")) == 3


def test_a_lock_that_stays_fails_the_task_by_the_file_and_leaves_nothing(client, database):
    """After the busy time-out, with what to do about it."""
    with database.held(WRITING):
        submit_rows(client, "busy", database, 5)
        failure = client.wait("busy").failure
    assert failure.code == "PLUGIN_FAILED"
    assert (
        f"database {database.path} is locked by another program for longer than {BUSY_TIMEOUT_MS} ms"
        in failure.message
    )
    assert database.select("n") == []


def test_a_reader_that_stays_fails_the_commit_and_leaves_nothing(client, database):
    """The commit itself gives up after the busy time-out; its rows are rolled back."""
    with database.held(READING):
        submit_rows(client, "busy-commit", database, 5)
        failure = client.wait("busy-commit").failure
    assert failure.code == "PLUGIN_FAILED"
    assert "is locked by another program" in failure.message
    assert database.select("n") == []


def test_a_commit_that_does_not_return_in_time_fails_the_task_and_says_that_nobody_knows(
    start_worker, database
):
    """The rows may come later, and the message says so; the next task has its turn after that."""
    worker = start_worker({"f": FUNCTIONS}, config="writer_commit_timeout_ms = 300")
    with OfficialClient(worker.address) as client:
        with database.held(READING):
            failure = submit_rows(client, "stuck", database, 5, wait_ms=30_000).task.result.failure
            assert failure.code == "PLUGIN_FAILED"
            assert (
                "the commit did not return within 300 ms: its rows may or may not be there" in failure.message
            )
            submit_rows(client, "next", database, 3)
        assert state_name(client.wait("next").state) == "SUCCEEDED"
    assert len(database.select("n")) == 5 + 3


def test_deadlines_staggered_around_the_end_of_another_programs_lock(client, tmp_path):
    """Sixty tasks want the file while another program holds it; each has its rows or a reason, whoever came through."""
    path = tmp_path / "contended.db"
    tables = {f"staggered-{number}": Database(path, f"t{number}") for number in range(60)}
    holder = Database(path)

    def submit(number: int) -> Any:
        table = tables[f"staggered-{number}"]
        return submit_rows(
            client, f"staggered-{number}", table, 50, timeout_ms=200 + 25 * number, wait_ms=60_000
        ).task.result

    with ThreadPoolExecutor(60) as threads:
        with holder.held(WRITING):
            results = [threads.submit(submit, number) for number in range(60)]
            next(as_completed(results)).result()
        states = []
        for result in (future.result() for future in results):
            states.append(state_name(result.state))
            expected = 50 if states[-1] == "SUCCEEDED" else 0
            assert len(tables[result.task_id].select("n")) == expected, result
    assert set(states) == {"SUCCEEDED", "TIMED_OUT"}


# --- swept across the writing -------------------------------------------------------------------------------------


def test_deadlines_swept_across_one_commit(client, tmp_path):
    """SUCCEEDED: all rows. Anything else: none."""

    def submit(task_id: str, table: Database, timeout_ms: int) -> Any:
        args = [[0, 4000, 500]]
        return client.submit_rows(
            task_id, "f.rows", args, table.handler, timeout_ms=timeout_ms, wait_ms=60_000
        ).task.result

    def judge(result: Any, table: Database) -> None:
        succeeded = state_name(result.state) == "SUCCEEDED"
        assert len(table.select("n")) == (4000 if succeeded else 0), result

    sweep(tmp_path / "one.db", 40, submit, judge)


def test_deadlines_swept_across_the_commits_of_many_blocks(client, tmp_path):
    """SUCCEEDED: all blocks. Anything else: exactly the blocks that the failure names, each whole."""

    def submit(task_id: str, table: Database, timeout_ms: int) -> Any:
        span = {"from": 0, "to": BLOCKS - 1}
        return client.submit_table(
            task_id, "f.same", span, ["logs"], table.handler, timeout_ms=timeout_ms, wait_ms=60_000
        ).task.result

    def judge(result: Any, table: Database) -> None:
        if state_name(result.state) == "SUCCEEDED":
            last, rows = BLOCKS - 1, BLOCKS * ROWS_A_BLOCK
        else:
            named = re.search(
                r"; blocks 0 to (\d+) \((\d+) rows\) are written and stay", result.failure.message
            )
            last, rows = map(int, named.groups()) if named else (-1, 0)
        written = table.select("block_number, line")
        assert written == [(b, i) for b in range(last + 1) for i in range(ROWS_A_BLOCK)], result
        assert len(written) == rows

    sweep(tmp_path / "many.db", 40, submit, judge)


def test_deadlines_swept_across_the_batches_of_an_append_and_then_run_again(forgetful, tmp_path):
    """A task that was cut off left what its failure names; under the same id it goes on there and doubles nothing."""
    everything = [(n,) for n in range(400)]
    args = [[{"n": n}] for n in range(400)]

    def submit(task_id: str, table: Database, timeout_ms: int) -> Any:
        return forgetful.submit_rows(
            task_id, "f.same", args, table.handler, timeout_ms=timeout_ms, wait_ms=60_000
        ).task.result

    cut_off: list[tuple[str, Database]] = []

    def judge(result: Any, table: Database) -> None:
        written = len(everything)
        if state_name(result.state) != "SUCCEEDED":
            named = re.search(
                r"; outputs up to (\d+) \((\d+) rows\) are written and stay", result.failure.message
            )
            written = int(named[1]) + 1 if named else 0
            assert not named or int(named[2]) == written
            cut_off.append((result.task_id, table))
        assert table.select("n") == everything[:written], result

    sweep(tmp_path / "append.db", 40, submit, judge)
    for task_id, table in cut_off:
        there = len(table.select("n"))
        eventually(lambda task_id=task_id: forgotten(forgetful, task_id))  # type: ignore[misc]
        again = submit(task_id, table, 60_000)
        assert state_name(again.state) == "SUCCEEDED", again.failure
        report = json.loads(again.plugin_results)
        assert (report["outputsSkippedByLedger"], report["rowsWritten"]) == (there, len(everything) - there)
        assert table.select("n") == everything


def sweep(path: Path, count: int, submit: Any, judge: Any) -> None:
    """Run tasks with time-outs from nothing to more than they need, each into a table of its own, and judge each."""
    takes = 0.0
    for number in range(2):  # the first makes the file and loads the code
        table = Database(path, f"calibrate_{number}")
        started = time.monotonic()
        judge(submit(f"{path.stem}-calibrate-{number}", table, 60_000), table)
        takes = time.monotonic() - started
    states = set()
    for number in range(count):
        table = Database(path, f"t{number}")
        timeout_ms = max(1, round(takes * 1000 * (0.1 + 1.4 * number / count)))
        result = submit(f"{path.stem}-{number}", table, timeout_ms)
        states.add(state_name(result.state))
        judge(result, table)
    assert "TIMED_OUT" in states, "no time-out struck: the sweep has shown nothing"


# --- run again ----------------------------------------------------------------------------------------------------


def test_an_append_run_again_under_its_id_doubles_nothing(forgetful, tmp_path):
    """Also after its result was forgotten: the ledger in the database knows."""
    database = Database(tmp_path / "ledger.db")
    args = [[{"n": n}] for n in range(25)]
    for skipped in (0, 25, 25):
        result = forgetful.submit_rows("ledger", "f.same", args, database.handler, wait_ms=30_000).task.result
        assert state_name(result.state) == "SUCCEEDED"
        report = json.loads(result.plugin_results)
        assert (report["outputsSkippedByLedger"], report["rowsWritten"]) == (skipped, 25 - skipped)
        assert database.select("n") == [(n,) for n in range(25)]
        eventually(lambda: forgotten(forgetful, "ledger"))
    forgetful.submit_rows("ledger-2", "f.same", args, database.handler, wait_ms=30_000)
    assert len(database.select("n")) == 50


def test_a_task_that_failed_on_a_bad_row_goes_on_once_that_is_mended(forgetful, tmp_path):
    """Whole batches before the bad row stay; the rerun writes the rest."""
    database = Database(tmp_path / "mended.db")
    flag = tmp_path / "mended"
    args = [[str(flag), n] for n in range(40)]
    failure = forgetful.submit_rows(
        "mended", "f.unless", args, database.handler, wait_ms=30_000
    ).task.result.failure
    assert failure.code == "PLUGIN_FAILED"
    assert (
        'bad row: output 25: expected a row (an object), a list of rows or null, got "not a row"'
        in failure.message
    )
    assert "outputs up to 19 (20 rows) are written and stay" in failure.message
    assert database.select("n") == [(n,) for n in range(20)]
    flag.touch()
    eventually(lambda: forgotten(forgetful, "mended"))
    result = forgetful.submit_rows("mended", "f.unless", args, database.handler, wait_ms=30_000).task.result
    assert json.loads(result.plugin_results)["outputsSkippedByLedger"] == 20
    assert database.select("n") == [(n,) for n in range(40)]


def test_another_task_under_the_id_of_an_append_is_refused_by_the_ledger(forgetful, tmp_path):
    """Once the worker has forgotten the id only the number of outputs tells; then the task fails and writes nothing."""
    database = Database(tmp_path / "other.db")
    forgetful.submit_rows("other", "f.same", [[{"n": 1}]], database.handler, wait_ms=30_000)
    eventually(lambda: forgotten(forgetful, "other"))
    args = [[{"n": 1}], [{"n": 2}]]
    failure = forgetful.submit_rows(
        "other", "f.same", args, database.handler, wait_ms=30_000
    ).task.result.failure
    assert failure.code == "PLUGIN_FAILED"
    assert "submit this one under a new task id" in failure.message
    assert database.select("n") == [(1,)]


@pytest.mark.parametrize("mode", ["append", "replace_block"])
def test_a_worker_killed_while_it_writes_and_the_task_run_again_elsewhere(client, blocks, tmp_path, mode):
    """``kill -9`` between two commits: the next worker brings the table to what it should be, each row once."""
    database = Database(tmp_path / "killed.db")
    span = {"from": 0, "to": BLOCKS - 1}
    handler = {**database.handler, "mode": mode}
    first = WorkerProcess(folder(tmp_path, "first"), {"f": FUNCTIONS}, config=CONFIG, blocks=blocks)
    with first, OfficialClient(first.address) as doomed:
        doomed.submit_table(f"killed-{mode}", "f.same", span, ["logs"], handler)
        eventually(lambda: database.path.exists() and database.select("1"))
        first.kill()
    assert 0 < len(database.select("1")) <= BLOCKS * ROWS_A_BLOCK
    reply = client.submit_table(f"killed-{mode}", "f.same", span, ["logs"], handler, wait_ms=30_000)
    assert state_name(reply.task.state) == "SUCCEEDED"
    assert sorted(database.select("block_number, line")) == [
        (block, line) for block in range(BLOCKS) for line in range(ROWS_A_BLOCK)
    ]


# --- helpers ------------------------------------------------------------------------------------------------------


def submit_rows(client: OfficialClient, task_id: str, database: Database, count: int, **fields: Any) -> Any:
    """One transaction of so many rows."""
    return client.submit_rows(task_id, "f.rows", [[0, count, 10]], database.handler, **fields)


def in_writer(client: OfficialClient, task_id: str) -> bool:
    """Whether the task has come to its writer."""
    phase = client.GetTaskResult(task_id=task_id).task.phase
    return bool(phase == 4)


def forgotten(client: OfficialClient, task_id: str) -> bool:
    """Whether the worker no longer keeps the result."""
    stream = client.WatchTasks(task_ids=[task_id], observe=True)
    first = next(stream)
    stream.cancel()
    return bool(first.WhichOneof("event") == "not_found")


def folder(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir()
    return path
