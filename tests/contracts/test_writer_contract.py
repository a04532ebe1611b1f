"""What every writer of `BlockWriteHandler` does, whatever database it writes to.

A database is added by a `Database` with its own way to make a target and to read rows back.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pytest
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.plugins.block_write import BlockWritePlugin
from blockx_worker.ports import StepFailed, WriteStopped
from tests.plugins.helpers import Gate, Outputs, config, context, plugin, select
from tests.support.postgres import PostgresDatabase

NAMES = 'select, "quoted", Ünïcode, with space'


class Database(Protocol):
    """A place to write to. ``rows`` gives the rows of a table as lists in the order of insertion, None without table."""

    longest_name: int

    def plugin(self, **settings: Any) -> BlockWritePlugin: ...

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None: ...

    def stored(self, value: Any) -> Any:
        """How a JSON value is found in the database."""


class Sqlite:
    longest_name = 200

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.db"

    def plugin(self, **settings: Any) -> BlockWritePlugin:
        return plugin(self.path, **settings)

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None:
        if not self.path.exists():
            return None
        there = {name for (name,) in select(self.path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
        if table not in there:
            return None
        wanted = ", ".join(map(quote, columns))
        return [list(row) for row in select(self.path, f"SELECT {wanted} FROM {quote(table)} ORDER BY rowid")]

    def stored(self, value: Any) -> Any:
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, list | dict):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


class _JsonText(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class Postgres:
    longest_name = 63

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database

    def plugin(self, **settings: Any) -> BlockWritePlugin:
        return plugin(self.database.url, **settings)

    def rows(self, table: str, *columns: str) -> list[list[Any]] | None:
        with self.database.connect() as connection:
            connection.adapters.register_loader("jsonb", _JsonText)
            if connection.execute("SELECT to_regclass(%s)", (quote(table),)).fetchone() == (None,):
                return None
            wanted = ", ".join(map(quote, columns))
            found = connection.execute(
                f"SELECT {wanted} FROM {quote(table)} ORDER BY ctid".encode()
            ).fetchall()
        return [
            [int(v) if isinstance(v, Decimal) and v == v.to_integral() else v for v in row] for row in found
        ]

    def stored(self, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(params=[Sqlite, Postgres])
def database(request, tmp_path) -> Database:
    if request.param is Sqlite:
        return Sqlite(tmp_path)
    return Postgres(request.getfixturevalue("postgres"))


async def write(
    database: Database, outputs: list[Any], *, gate=None, task_id="task-1", blocks=None, **fields
):
    """Write with one row a transaction unless a test says otherwise; returns the result."""
    rows = fields.pop("batch_rows", 1)
    writer = database.plugin(batch_rows=rows)
    writer.check(config(**fields), blocks)
    result = await writer.write(
        context(gate, task_id=task_id, blocks=blocks), config(**fields), Outputs(outputs)
    )
    return json.loads(result)


def row(block: Any, v: Any) -> dict[str, Any]:
    return {"block_number": block, "v": v}


def in_blocks(database: Database, table: str = "t") -> list[list[Any]] | None:
    rows = database.rows(table, "block_number", "v")
    return rows if rows is None else sorted(rows)


# --- append -----------------------------------------------------------------------------------------------------


async def test_rows_lists_of_rows_and_null_are_appended_in_order(database) -> None:
    outputs = [{"a": 1, "b": "x"}, None, [{"a": 2, "b": "y"}, {"a": 3, "b": "z"}], []]
    result = await write(database, outputs)
    assert database.rows("t", "a", "b") == [[1, "x"], [2, "y"], [3, "z"]]
    assert (result["mode"], result["rowsWritten"], result["outputsSkippedByLedger"]) == ("append", 3, 0)
    assert (result["table"], result["target"]) == ("t", "main")


@pytest.mark.parametrize("outputs", [[], [None, []]])
async def test_nothing_to_append_succeeds(database, outputs) -> None:
    assert (await write(database, outputs))["rowsWritten"] == 0
    assert database.rows("t", "a") is None


async def test_the_last_commit_is_final_and_the_others_are_not(database) -> None:
    gate = Gate()
    await write(database, [{"a": i} for i in range(5)], gate=gate, batch_rows=2)
    assert gate.asked == [False, False, True]
    assert gate.ends == 2


async def test_a_rerun_under_the_same_task_id_doubles_nothing(database) -> None:
    outputs = [{"a": i} for i in range(5)]
    await write(database, outputs)
    result = await write(database, outputs)
    assert (result["rowsWritten"], result["outputsSkippedByLedger"]) == (0, 5)
    assert database.rows("t", "a") == [[i] for i in range(5)]


async def test_a_rerun_goes_on_where_the_last_commit_stood(database) -> None:
    outputs = [{"a": i} for i in range(5)]
    with pytest.raises(WriteStopped):
        await write(database, outputs, gate=Gate(refuse_at=3))
    assert database.rows("t", "a") == [[0], [1], [2]]
    result = await write(database, outputs)
    assert (result["rowsWritten"], result["outputsSkippedByLedger"]) == (2, 3)
    assert database.rows("t", "a") == [[i] for i in range(5)]


async def test_the_ledger_is_kept_for_each_task_and_table(database) -> None:
    await write(database, [{"a": 1}])
    await write(database, [{"a": 1}], task_id="task-2")
    await write(database, [{"a": 1}], table="u")
    assert (database.rows("t", "a"), database.rows("u", "a")) == ([[1], [1]], [[1]])


async def test_a_task_id_that_another_task_has_used_is_refused(database) -> None:
    await write(database, [{"a": 1}])
    with pytest.raises(
        StepFailed, match=r'"task-1" has already appended .* from 1 outputs where there are 2 now'
    ):
        await write(database, [{"a": 1}, {"a": 2}])
    assert database.rows("t", "a") == [[1]]


async def test_a_refused_commit_leaves_nothing(database) -> None:
    gate = Gate(refuse_at=0)
    with pytest.raises(WriteStopped):
        await write(database, [{"a": 1}], gate=gate)
    assert database.rows("t", "a") is None
    assert (gate.asked, gate.ends) == ([True], 0)


async def test_a_bad_row_leaves_nothing_of_its_transaction_and_names_what_is_written(database) -> None:
    outputs = [{"a": 0}, {"a": 1}, {"a": 2}, [{"a": 3}, 5], {"a": 4}]
    with pytest.raises(StepFailed) as caught:
        await write(database, outputs, batch_rows=2)
    assert caught.value.code is TaskFailureCode.PLUGIN_FAILED
    assert "bad row: output 3, row 1: expected an object, got 5" in caught.value.message
    assert "outputs up to 1 (2 rows) are written and stay" in caught.value.message
    assert database.rows("t", "a") == [[0], [1]]


async def test_the_table_has_the_columns_of_all_rows_of_the_first_transaction(database) -> None:
    await write(database, [{"a": 1}, {"b": 2, "a": 3}, {}, {"c": None}][:2], batch_rows=10)
    assert database.rows("t", "a", "b") == [[1, None], [3, 2]]


async def test_the_task_that_made_the_table_adds_columns_that_come_later_also_in_a_rerun(database) -> None:
    outputs = [{"a": 1}, {"a": 2, "b": "x"}, {"c": [3], "b": None}, {"a": 4}]
    with pytest.raises(WriteStopped):
        await write(database, outputs, gate=Gate(refuse_at=2))
    assert database.rows("t", "a", "b") == [[1, None], [2, "x"]]
    await write(database, outputs)
    stored = [[1, None, None], [2, "x", None], [None, None, database.stored([3])], [4, None, None]]
    assert database.rows("t", "a", "b", "c") == stored


async def test_another_task_does_not_add_columns(database) -> None:
    await write(database, [{"a": 1}])
    with pytest.raises(StepFailed) as caught:
        await write(database, [{"a": 2}, {"a": 3, "more": 1}], task_id="task-2", batch_rows=10)
    assert 'bad row: output 1, column "more": table "t" has no such column, it has a' in caught.value.message
    assert database.rows("t", "a") == [[1]]


async def test_columns_select(database) -> None:
    await write(database, [{"a": 1, "x": 5}, {"b": 2, "a": 3}, {"b": 4}], columns=["b", "a"])
    assert database.rows("t", "b", "a") == [[None, 1], [2, 3], [4, None]]
    with pytest.raises(StepFailed, match="output 0: the row has none of the columns b, a"):
        await write(database, [{"x": 1}], columns=["b", "a"], task_id="task-2")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (5, "bad row: output 1: expected a row (an object), a list of rows or null, got 5"),
        ("x" * 1000, "(1002 characters)"),
        ([{"a": 1}, None], "bad row: output 1, row 1: expected an object, got null"),
        ([[{"a": 1}]], 'bad row: output 1, row 0: expected an object, got [{"a":1}]'),
        ({}, "bad row: output 1: the row has no columns; return null for no row"),
        ({"": 1}, 'bad row: output 1, column "": a column name cannot be empty'),
        ({"a\0b": 1}, "a column name cannot be empty or hold the character NUL"),
        (b'{"a": "\\ud800"}', "bad row: output 1: its JSON cannot be read: "),
        (b'{"a": 1e999}', "bad row: output 1: its JSON cannot be read: "),
        (b'{"a": -%b, "b": "\\ud800"}' % (b"9" * 4300), "bad row: output 1: its JSON cannot be read: "),
        (b'{"a": %b}' % (b"9" * 4301), "bad row: output 1: its JSON cannot be read: "),
        (b"[" * 100_000, "bad row: output 1: its JSON cannot be read: "),
    ],
)
@pytest.mark.parametrize("blocks", [None, (1, 1)])
async def test_what_is_no_row_is_named(database, output, message, blocks) -> None:
    with pytest.raises(StepFailed) as caught:
        await write(
            database, [{"a": 1, "block_number": 1}, output], batch_rows=10, blocks=blocks, mode="append"
        )
    assert message in caught.value.message
    assert len(caught.value.message) < 400
    assert database.rows("t", "a") is None


# --- replace_block ----------------------------------------------------------------------------------------------


async def test_replacing_twice_under_different_ids_leaves_the_same_rows(database) -> None:
    outputs = [row(1, "a"), [row(1, "b"), row(3, "c")], None]
    for task_id in ("task-1", "task-2"):
        result = await write(database, outputs, task_id=task_id, blocks=(1, 3))
        assert in_blocks(database) == [[1, "a"], [1, "b"], [3, "c"]]
        assert (result["mode"], result["rowsWritten"], result["blocksReplaced"]) == ("replace_block", 3, 3)


async def test_other_blocks_keep_their_rows(database) -> None:
    await write(database, [row(i, "old") for i in range(1, 6)], blocks=(1, 5))
    await write(database, [row(3, "new")], task_id="task-2", blocks=(3, 4))
    assert in_blocks(database) == [[1, "old"], [2, "old"], [3, "new"], [5, "old"]]


async def test_a_block_that_yields_nothing_loses_its_old_rows(database) -> None:
    await write(database, [row(1, "old"), row(2, "old")], blocks=(1, 2))
    result = await write(database, [None], task_id="task-2", blocks=(1, 2))
    assert in_blocks(database) == []
    assert (result["rowsWritten"], result["blocksReplaced"]) == (0, 2)


async def test_nothing_to_insert_and_no_table_succeeds(database) -> None:
    result = await write(database, [None, []], blocks=(1, 2))
    assert (result["rowsWritten"], result["blocksReplaced"]) == (0, 2)
    assert database.rows("t", "v") is None


async def test_rows_need_not_come_in_order_of_block(database) -> None:
    outputs = [[row(3, "a"), row(1, "b")], row(2, "c"), row(3, "d"), [row(1, "e"), row(1, "f")]]
    await write(database, outputs, blocks=(1, 3))
    assert database.rows("t", "block_number", "v") == [
        [1, "b"],
        [1, "e"],
        [1, "f"],
        [2, "c"],
        [3, "a"],
        [3, "d"],
    ]


@pytest.mark.parametrize(
    ("batch_rows", "commits"),
    [
        (1, 3),  # 1-5, 6-8, 9-12
        (2, 2),  # 1-8, 9-12
        (10, 1),
    ],
)
async def test_blocks_share_a_transaction_while_their_rows_are_few(database, batch_rows, commits) -> None:
    gate, outputs = Gate(), [row(5, 1), row(6, 1), row(9, 1)]
    await write(database, outputs, gate=gate, blocks=(1, 12), batch_rows=batch_rows)
    assert gate.asked == [False] * (commits - 1) + [True]
    assert gate.ends == commits - 1
    assert in_blocks(database) == [[5, 1], [6, 1], [9, 1]]


async def test_the_gate_can_stop_between_blocks(database) -> None:
    await write(database, [row(i, "old") for i in (1, 2, 3)], blocks=(1, 3))
    with pytest.raises(WriteStopped):
        await write(
            database, [row(i, "new") for i in (1, 2, 3)], task_id="t2", blocks=(1, 3), gate=Gate(refuse_at=1)
        )
    assert in_blocks(database) == [[1, "new"], [2, "old"], [3, "old"]]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"v": 1}, 'output 1, column "block_number": is missing; replace_block needs the block of each row'),
        (row("2", 1), 'output 1, column "block_number": expected an integer, got "2"'),
        (row(2.0, 1), 'output 1, column "block_number": expected an integer, got 2.0'),
        (row(True, 1), 'output 1, column "block_number": expected an integer, got true'),
        (row(None, 1), 'output 1, column "block_number": expected an integer, got null'),
        (
            [row(2, 1), row(9, 1)],
            'output 1, row 1, column "block_number": expected a block of the task (1 to 3), got 9',
        ),
        (5, "output 1: expected a row (an object), a list of rows or null, got 5"),
    ],
)
async def test_a_bad_row_is_found_before_any_block_is_written(database, output, message) -> None:
    await write(database, [row(1, "old")], blocks=(1, 3))
    with pytest.raises(StepFailed) as caught:
        await write(database, [row(1, "new"), output], task_id="task-2", blocks=(1, 3))
    assert f"bad row: {message}" in caught.value.message
    assert in_blocks(database) == [[1, "old"]]


async def test_a_transaction_that_fails_names_the_blocks_that_are_written(database) -> None:
    await write(database, [row(1, 1)], blocks=(1, 1))
    outputs = [row(1, 2), row(2, 2), {**row(3, 3), "more": 1}]
    with pytest.raises(
        StepFailed, match=r'"more": table "t" has no such column.*; blocks 1 to 2 \(2 rows\) are writ'
    ):
        await write(database, outputs, task_id="task-2", blocks=(1, 3))
    assert in_blocks(database) == [[1, 2], [2, 2]]


async def test_a_new_table_has_the_columns_of_all_rows(database) -> None:
    await write(database, [row(1, 1), {**row(2, 2), "w": 3}], blocks=(1, 2))
    assert database.rows("t", "v", "w") == [[1, None], [2, 3]]


# --- values and names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        2**63 - 1,
        -(2**63),
        2**63,
        2**256 - 1,
        -(2**200),
        10**4300 - 1,
        1 - 10**4300,
        [1 - 10**4300],
        True,
        False,
        None,
        1.1,
        1e300,
        5e-324,
        -0.0,
        "",
        "0123",
        "12345678901234567890123",
        "\\N \\. \t tab \r\n line \b \v \f",
        "Ünïcode 🦀 \U0010ffff \u2028",
        "x" * 1_000_000,
        [],
        {},
        {"a": [1, 2.5, None, True, 2**256 - 1, "é \\ \n"]},
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_values_survive(database, value) -> None:
    await write(database, [b'{"v": %b}' % json.dumps(value).encode()])
    ((found,),) = database.rows("t", "v")
    stored = database.stored(value)
    assert (found, str(found), type(found)) == (stored, str(stored), type(stored))


@pytest.mark.parametrize("depth", range(800, 1000, 20))
async def test_deep_nesting_is_stored_or_a_bad_row(database, depth) -> None:
    text = b"[" * depth + b"]" * depth
    expected: list[list[Any]] | None = [[text.decode()]]
    try:
        await write(database, [b'{"v": %b}' % text])
    except StepFailed as failed:
        expected = None
        if not failed.message.startswith("bad row: output 0"):
            raise
    assert database.rows("t", "v") == expected


@pytest.mark.parametrize("name", [*NAMES.split(", "), "a;b--", "x" * 200, "Ÿ", "123", "100%s", "it's"])
async def test_any_name_can_be_a_table_and_a_column(database, name) -> None:
    name = name[: database.longest_name]
    await write(database, [{name: 1, "block_number": 5}], table=name)
    assert database.rows(name, name) == [[1]]
    await write(database, [{name: 2, "block_number": 5}], table=name, task_id="t2", blocks=(5, 5))
    assert database.rows(name, name) == [[2]]
