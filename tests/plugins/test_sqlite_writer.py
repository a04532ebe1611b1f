"""What is particular to SQLite: files, locks, types of existing tables, errors for people."""

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from blockx_worker.plugins.sqlite_errors import explain
from blockx_worker.ports import StepFailed, WriteStopped
from tests.plugins.helpers import Gate, Outputs, config, context, execute, plugin, select


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


async def write(
    path: Path, outputs: list[Any], *, gate=None, blocks=None, settings=None, task_id="task-1", **fields
):
    writer = plugin(path, **(settings or {}))
    result = await writer.write(
        context(gate, blocks=blocks, task_id=task_id), config(**fields), Outputs(outputs)
    )
    return json.loads(result)


async def refused(path: Path, outputs: list[Any], **more: Any) -> str:
    with pytest.raises(StepFailed) as caught:
        await write(path, outputs, **more)
    return caught.value.message


# --- files ------------------------------------------------------------------------------------------------------


async def test_a_new_file_gets_the_write_ahead_log_and_an_old_one_keeps_its_mode(tmp_path) -> None:
    old = tmp_path / "old.db"
    execute(old, "CREATE TABLE x (a)")
    for path, mode in ((old, "delete"), (tmp_path / "new.db", "wal")):
        await write(path, [{"a": 1}])
        assert select(path, "PRAGMA journal_mode") == [(mode,)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.db", "old.db"]


async def test_the_result_says_where_the_rows_are(path) -> None:
    result = await write(path, [{"a": 1}])
    assert result == {
        "table": "t",
        "target": "main",
        "mode": "append",
        "rowsWritten": 1,
        "database": str(path),
        "outputsSkippedByLedger": 0,
    }


async def test_columns_have_no_type_and_blocks_an_index(path) -> None:
    await write(path, [{"block_number": 1, "v": 2}], blocks=(1, 1))
    assert select(path, "SELECT sql FROM sqlite_master ORDER BY type DESC, name") == [
        ('CREATE TABLE "t" ("block_number", "v")',),
        ('CREATE INDEX "blockx_t_block_number" ON "t" ("block_number")',),
    ]


async def test_the_ledger_notes_when_it_was_written(path) -> None:
    await write(path, [{"a": 1}, None])
    assert select(path, "SELECT * FROM blockx_write_ledger") == [("task-1", "t", 2, 2, 1_700_000_000_000)]


async def test_a_file_that_is_no_database_is_named(path) -> None:
    path.write_bytes(b"this is no database, and is long enough to look like one" * 100)
    assert await refused(path, [{"a": 1}]) == (
        f"database {path} is not an SQLite database; choose another file, or move this one away "
        "(SQLite: file is not a database)"
    )


async def test_a_missing_folder_and_a_folder_as_file_are_named(tmp_path) -> None:
    assert f"the folder {tmp_path}/none does not exist" in await refused(
        tmp_path / "none" / "x.db", [{"a": 1}]
    )
    assert "is a folder; name a file in it" in await refused(tmp_path, [{"a": 1}])


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_READONLY, "is read-only for the worker; make the file and its folder writable"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "is read-only for the worker"),
        (sqlite3.SQLITE_PERM, "may not be used by the worker"),
        (sqlite3.SQLITE_FULL, "cannot grow: the disk or quota is full; make room"),
        (sqlite3.SQLITE_IOERR_WRITE, "cannot be read or written: the disk reports an error"),
        (sqlite3.SQLITE_CORRUPT, "is damaged; restore it from a copy"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "is locked by another program for longer than 70 ms"),
        (sqlite3.SQLITE_CANTOPEN, "cannot be opened; check the permissions"),
        (sqlite3.SQLITE_ERROR, "refused the work (SQLite: detail)"),
    ],
)
def test_errors_say_what_happened_and_what_to_do(path, code, sentence) -> None:
    error = sqlite3.OperationalError("detail")
    error.sqlite_errorcode = code
    message = explain(error, str(path), 70).message
    assert message.startswith(f"database {path} {sentence}")
    assert message.endswith("(SQLite: detail)")


# --- tables that somebody else made -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "value", "kept"),
    [
        ("INTEGER", 2**63 - 1, True),
        ("INTEGER", -(2**63), True),
        ("BIGINT", 2**63, False),
        ("NUMERIC", 2**64, False),
        ("NUMERIC", str(2**64), False),
        ("NUMERIC", "9" * 5000, False),
        ("NUMERIC", "abc", True),
        ("DECIMAL(78,0)", 2**255, False),
        ("REAL", 2**53, True),
        ("DOUBLE", 2**53 + 1, False),
        ("TEXT", 2**256, True),
        ("VARCHAR(80)", 2**256, True),
        ("BLOB", 2**256, True),
        ("", 2**256, True),
    ],
)
async def test_an_integer_that_a_declared_type_would_round_is_a_bad_row(
    path, declaration, value, kept
) -> None:
    execute(path, f"CREATE TABLE t (v {declaration})")
    if not kept:
        message = await refused(path, [{"v": 1}, {"v": value}])
        assert message.startswith('bad row: output 1, column "v": ')
        assert (
            "does not fit the numeric type of this column, which would round it; declare it TEXT" in message
        )
        return
    await write(path, [{"v": value}])
    assert [str(v).removesuffix(".0") for (v,) in select(path, "SELECT v FROM t")] == [str(value)]


async def test_columns_match_without_regard_to_ascii_case(path) -> None:
    execute(path, "CREATE TABLE T (Hash, Block_Number INTEGER)")
    await write(path, [{"hash": "a", "block_number": 1}], blocks=(1, 1))
    await write(path, [{"HASH": "b", "block_number": 1}], blocks=(1, 1))
    assert select(path, "SELECT hash, block_number FROM t") == [("b", 1)]


@pytest.mark.parametrize("outputs", [[{"a": 1, "A": 2}], [{"a": 1}, {"A": 2}]])
@pytest.mark.parametrize("blocks", [None, (1, 1)])
async def test_names_that_differ_only_in_case_are_refused(path, outputs, blocks) -> None:
    rows = [{**row, "block_number": 1} for row in outputs]
    message = await refused(path, rows, blocks=blocks)
    assert "SQLite does not tell" in message
    assert select(path, "SELECT name FROM sqlite_master") == [] if path.exists() else True


async def test_missing_keys_take_the_defaults_of_the_table(path) -> None:
    execute(path, "CREATE TABLE t (a, b DEFAULT 'none')")
    await write(path, [{"a": 1}, {"a": 2, "b": None}])
    assert select(path, "SELECT a, b FROM t") == [(1, "none"), (2, None)]


@pytest.mark.parametrize(
    ("table", "outputs", "message"),
    [
        (
            "(a UNIQUE)",
            [{"a": 1}, [{"a": 2}, {"a": 1}]],
            'output 1, row 1: table "t" refused it: UNIQUE constraint',
        ),
        (
            "(a, b NOT NULL)",
            [{"a": 1, "b": 2}, {"a": 1}],
            'output 1: table "t" refused it: NOT NULL constraint',
        ),
        (
            "(a INTEGER) STRICT",
            [{"a": 1}, {"a": "x"}],
            'output 1: table "t" refused it: cannot store TEXT value',
        ),
    ],
)
async def test_a_row_that_the_table_refuses_is_named_and_its_transaction_leaves_nothing(
    path, table, outputs, message
) -> None:
    execute(path, f"CREATE TABLE t {table}")
    assert f"bad row: {message}" in await refused(path, outputs)
    assert select(path, "SELECT * FROM t") == []


async def test_selected_columns_have_to_be_in_the_table(path) -> None:
    execute(path, "CREATE TABLE t (a)")
    message = await refused(path, [{"a": 1}], columns=["a", "z"])
    assert message == f'resultHandler.columns: table "t" in {path} has no column "z"; it has a'


async def test_replacing_in_a_table_without_blocks_is_refused_and_deletes_nothing(path) -> None:
    execute(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES ('block_number')")
    message = await refused(path, [], blocks=(1, 2))
    assert f'table "t" in {path} has no column "block_number", which replace_block needs' in message
    assert select(path, "SELECT count(*) FROM t") == [(1,)]


async def test_a_view_is_no_table(path) -> None:
    execute(path, "CREATE TABLE x (a)", "CREATE VIEW t AS SELECT a FROM x")
    assert "cannot modify t because it is a view" in await refused(path, [{"a": 1}])


async def test_more_columns_than_sqlite_takes_are_refused(path) -> None:
    wide = {f"c{i}": i for i in range(2001)}
    message = await refused(path, [wide])
    assert message.startswith('table "t" would have 2001 columns, and SQLite takes 2000; name those to write')
    await write(path, [wide], columns=["c5"])
    assert select(path, "SELECT * FROM t") == [(5,)]


async def test_a_table_changed_by_others_between_transactions_is_seen(path) -> None:
    class Altering(Gate):
        def ended(self, *, written: str = "") -> None:
            execute(path, "ALTER TABLE t ADD COLUMN b")

    await write(path, [{"a": 1}, {"a": 2, "b": 3}], gate=Altering(), settings={"batch_rows": 1})
    assert select(path, "SELECT a, b FROM t") == [(1, None), (2, 3)]


# --- locks, lanes and stops -------------------------------------------------------------------------------------


async def test_a_lock_of_another_program_is_waited_for(path) -> None:
    execute(path, "CREATE TABLE t (a)")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: write(path, [{"a": 1}]))
            await trio.testing.wait_all_tasks_blocked()
            other.execute("ROLLBACK")
    assert select(path, "SELECT a FROM t") == [(1,)]


async def test_a_lock_that_stays_is_a_sentence_with_the_file(path) -> None:
    execute(path, "CREATE TABLE t (a)")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        message = await refused(path, [{"a": 1}], settings={"busy_timeout_ms": 0})
    assert message.startswith(f"database {path} is locked by another program for longer than 0 ms; end that")


async def test_a_reader_holds_up_no_commit(path) -> None:
    await write(path, [{"a": 1}])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
        await write(path, [{"a": 2}], task_id="task-2", settings={"busy_timeout_ms": 0})
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
    assert select(path, "SELECT a FROM t") == [(1,), (2,)]


async def test_a_commit_that_a_reader_blocks_is_tried_again(path) -> None:
    execute(path, "CREATE TABLE t (a)")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()

        class Releasing(Gate):
            def start(self, *, final: bool, written: str = "") -> bool:
                threading.Timer(0.01, reader.execute, ["ROLLBACK"]).start()
                return super().start(final=final)

        await write(path, [{"a": 1}], gate=Releasing())
    assert select(path, "SELECT a FROM t") == [(1,)]


async def test_a_cancelled_wait_for_a_lock_ends_and_leaves_nothing(path) -> None:
    execute(path, "CREATE TABLE t (a)")
    gate = Gate()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: write(path, [{"a": 1}], gate=gate, settings={"busy_timeout_ms": 600_000})
            )
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert gate.asked == []
    assert select(path, "SELECT * FROM t") == []


class Reached(Outputs):
    """Outputs that tell when the writer reads the one with index ``at``, and wait there for the test."""

    def __init__(self, values: list[Any], at: int) -> None:
        super().__init__(values)
        self.at, self.reached, self.go_on = at, threading.Event(), threading.Event()

    def lines(self, start: int = 0):
        for index, line in enumerate(super().lines(start), start=start):
            if index == self.at:
                self.reached.set()
                self.go_on.wait(10)
            yield line


async def test_a_cancelled_transaction_is_rolled_back_before_the_cancellation_goes_on(path) -> None:
    gate, outputs = Gate(), Reached([{"a": i} for i in range(5000)], at=4500)
    writer = plugin(path, batch_rows=3000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: writer.write(context(gate), config(), outputs))
        await trio.to_thread.run_sync(outputs.reached.wait)
        nursery.cancel_scope.cancel()
        outputs.go_on.set()
    assert gate.asked == [False]
    assert select(path, "SELECT count(*), max(a) FROM t") == [(3000, 2999)]
    assert select(path, "SELECT next_output FROM blockx_write_ledger") == [(3000,)]


async def test_small_tasks_get_in_between_the_transactions_of_a_large_one(path) -> None:
    writer = plugin(path, batch_rows=1)
    first_commit = threading.Event()

    class Telling(Gate):
        def start(self, *, final: bool, written: str = "") -> bool:
            first_commit.set()
            return super().start(final=final)

    async def small() -> None:
        await trio.to_thread.run_sync(first_commit.wait)
        await writer.write(context(task_id="small"), config(), Outputs([{"a": "small"}]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(small)
        await writer.write(context(Telling()), config(), Outputs([{"a": i} for i in range(60)]))
    ((position,),) = select(path, "SELECT rowid FROM t WHERE a = 'small'")
    assert 1 < position < 61


async def test_two_names_of_one_file_share_a_lane(tmp_path) -> None:
    writer = plugin(tmp_path / "out.db")
    (tmp_path / "link").symlink_to(tmp_path)
    lane = writer._lane(str(tmp_path / "out.db"))
    assert writer._lane(str(tmp_path / "link" / "out.db")) is lane
    del lane
    assert not writer._lanes


async def test_a_refused_commit_stops_quietly_and_leaves_a_usable_file(path) -> None:
    with pytest.raises(WriteStopped):
        await write(path, [{"a": 1}], gate=Gate(refuse_at=0))
    await write(path, [{"a": 2}])
    assert select(path, "SELECT a FROM t") == [(2,)]
