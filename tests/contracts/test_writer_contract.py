"""What every writer of `BlockWriteHandler` does, whatever database it writes to.

Each test runs for each database of `tests.support.databases`.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import BatchWriter, StepFailed, WriteStopped
from tests.plugins.helpers import Gate, Outputs, config, context
from tests.support.databases import Database, Postgres, Sqlite

NAMES = 'select, "quoted", Ünïcode, with space'


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


# --- batches as they settle -------------------------------------------------------------------------------------


def opened(
    database: Database, *, gate=None, task_id="task-1", blocks=None, settings=None, **fields
) -> BatchWriter:
    """A writer for batches, with many rows a transaction unless a test says otherwise."""
    writer = database.plugin(**{"batch_rows": 1000, **(settings or {})})
    return writer.open(context(gate, task_id=task_id, blocks=blocks), config(**fields))


async def stream(
    writer: BatchWriter, *batches: Sequence[Any], start: int = 0, done: Sequence[int | None] = ()
) -> None:
    """Write batches of outputs, the first with the index ``start``; ``done``: up to which block each is complete."""
    for index, batch in enumerate(batches):
        outputs = [None if output is None else json.dumps(output).encode() for output in batch]
        await writer.write(start, outputs, done[index] if done else None)
        start += len(batch)


async def cut_off(database: Database, *batches: Sequence[Any]) -> None:
    """Write batches of outputs, and no more: the process is gone."""
    writer = opened(database)
    await stream(writer, *batches)
    await writer.abort()


async def test_a_batch_is_written_when_it_comes(database) -> None:
    gate = Gate()
    writer = opened(database, gate=gate)
    await stream(writer, [{"a": 1}, None, [{"a": 2}, {"a": 3}]])
    assert database.rows("t", "a") == [[1], [2], [3]]
    await stream(writer, [{"a": 4}], start=3)
    assert database.rows("t", "a") == [[1], [2], [3], [4]]
    assert gate.asked == [False, False]
    result = json.loads(await writer.finish())
    assert (result["rowsWritten"], result["outputsSkippedByLedger"]) == (4, 0)
    assert (gate.asked, gate.ends) == ([False, False, True], 2)


async def test_a_large_batch_is_several_transactions(database) -> None:
    gate = Gate()
    writer = opened(database, gate=gate, settings={"batch_rows": 2})
    await stream(writer, [{"a": i} for i in range(5)])
    assert gate.asked == [False] * 3
    assert database.rows("t", "a") == [[i] for i in range(5)]
    await writer.finish()


@pytest.mark.parametrize("batches", [[], [[]], [[None], [[], None]]])
async def test_batches_without_rows_only_end_with_a_commit(database, batches) -> None:
    gate = Gate()
    writer = opened(database, gate=gate)
    await stream(writer, *batches)
    assert gate.asked == []
    assert json.loads(await writer.finish())["rowsWritten"] == 0
    assert gate.asked == [True]
    assert database.rows("t", "a") is None


async def test_a_rerun_after_a_crash_between_batches_doubles_nothing(database) -> None:
    outputs = [{"a": i} for i in range(7)]
    await cut_off(database, outputs[:2], outputs[2:4])
    writer = opened(database)
    await stream(writer, outputs[:3], outputs[3:7])
    result = json.loads(await writer.finish())
    assert (result["rowsWritten"], result["outputsSkippedByLedger"]) == (3, 4)
    assert database.rows("t", "a") == [[i] for i in range(7)]


async def test_a_rerun_of_a_finished_task_writes_nothing_in_batches_or_at_once(database) -> None:
    outputs = [{"a": i} for i in range(4)]
    for _ in range(2):
        writer = opened(database)
        await stream(writer, outputs[:3], outputs[3:])
        await writer.finish()
    result = await write(database, outputs)
    assert (result["rowsWritten"], result["outputsSkippedByLedger"]) == (0, 4)
    assert database.rows("t", "a") == [[i] for i in range(4)]


async def test_a_rerun_with_other_outputs_is_refused_as_soon_as_that_shows(database) -> None:
    first = opened(database)
    await stream(first, [{"a": 1}, {"a": 2}])
    await first.finish()
    longer, shorter = opened(database), opened(database)
    with pytest.raises(
        StepFailed, match=r"already appended .* from 2 outputs where there are at least 3 now"
    ):
        await stream(longer, [{"a": 1}, {"a": 2}, {"a": 3}])
    await longer.abort()
    await stream(shorter, [{"a": 1}])
    with pytest.raises(StepFailed, match=r"already appended .* from 2 outputs where there are 1 now"):
        await shorter.finish()
    assert database.rows("t", "a") == [[1], [2]]


async def test_a_rerun_that_is_shorter_than_what_is_written_is_refused(database) -> None:
    await cut_off(database, [{"a": 1}, {"a": 2}])
    with pytest.raises(StepFailed, match=r"from at least 2 outputs where there are 1 now"):
        await write(database, [{"a": 1}])


async def test_a_bad_row_leaves_the_batches_before_and_abort_names_them(database) -> None:
    writer = opened(database)
    await stream(writer, [{"a": 1}, {"a": 2}])
    with pytest.raises(StepFailed) as caught:
        await stream(writer, [{"a": 3}, 5], start=2)
    assert (
        caught.value.message == "bad row: output 3: expected a row (an object), a list of rows or null, got 5"
    )
    written = (
        "outputs up to 1 (2 rows) are written and stay; a rerun under the same task id goes on after them"
    )
    assert [await writer.abort(), await writer.abort()] == [written, written]
    assert database.rows("t", "a") == [[1], [2]]


async def test_the_gate_hears_what_is_written(database) -> None:
    gate = Gate()
    writer = opened(database, gate=gate)
    await stream(writer, [{"a": 1}], [{"a": 2}])
    await writer.finish()
    assert [words.partition(" are")[0] for words in gate.words] == [
        "",
        "outputs up to 0 (1 rows)",
        "outputs up to 1 (2 rows)",
    ]


async def test_abort_without_anything_written_has_nothing_to_say(database) -> None:
    writer = opened(database)
    assert await writer.abort() == ""
    other = opened(database, blocks=(1, 2))
    await stream(other, [row(1, 1)])
    assert await other.abort() == ""
    assert database.rows("t", "v") is None


async def test_a_refused_commit_of_a_batch_leaves_nothing_of_it(database) -> None:
    writer = opened(database, gate=Gate(refuse_at=1))
    await stream(writer, [{"a": 1}])
    with pytest.raises(WriteStopped):
        await stream(writer, [{"a": 2}], start=1)
    assert "outputs up to 0 (1 rows)" in await writer.abort()
    assert database.rows("t", "a") == [[1]]


async def test_later_batches_may_bring_new_columns_also_after_a_crash(database) -> None:
    await cut_off(database, [{"a": 1}])
    writer = opened(database)
    await stream(writer, [{"a": 1}, {"a": 2, "b": "x"}], [{"c": True}])
    await writer.finish()
    assert database.rows("t", "a", "b", "c") == [
        [1, None, None],
        [2, "x", None],
        [None, None, database.stored(True)],
    ]


async def test_a_column_that_begins_with_null_takes_what_comes_later(database) -> None:
    writer = opened(database)
    await stream(writer, [{"a": None, "b": None}], [{"a": 2**70, "b": "x"}], [{"a": 5, "b": None}])
    await writer.finish()
    assert database.rows("t", "a", "b") == [[None, None], [database.stored(2**70), "x"], [5, None]]


async def test_a_block_is_written_once_it_is_complete(database) -> None:
    await write(database, [row(i, "old") for i in range(1, 6)], task_id="before", blocks=(1, 5), batch_rows=9)
    gate = Gate()
    writer = opened(database, gate=gate, blocks=(1, 5))
    await stream(writer, [row(1, "a"), row(2, "b")], done=[1])
    assert in_blocks(database) == [[1, "a"], [2, "old"], [3, "old"], [4, "old"], [5, "old"]]
    await stream(writer, [[row(2, "c"), row(4, "d")]], start=2, done=[3])
    assert in_blocks(database) == [[1, "a"], [2, "b"], [2, "c"], [4, "old"], [5, "old"]]
    await stream(writer, [None], start=3, done=[5])
    assert in_blocks(database) == [[1, "a"], [2, "b"], [2, "c"], [4, "d"], [5, "old"]]
    assert gate.asked == [False] * 3
    result = json.loads(await writer.finish())
    assert in_blocks(database) == [[1, "a"], [2, "b"], [2, "c"], [4, "d"]]
    assert (result["rowsWritten"], result["blocksReplaced"]) == (4, 5)
    assert (gate.asked, gate.ends) == ([False] * 3 + [True], 3)


async def test_a_block_whose_rows_come_in_several_batches_stays_in_order(database) -> None:
    writer = opened(database, blocks=(1, 3))
    await stream(writer, [row(1, 0), row(2, 1)], [row(2, 2), None, row(3, 3)], [row(2, 4)], done=[None, 1, 2])
    await writer.finish()
    assert database.rows("t", "block_number", "v") == [[1, 0], [2, 1], [2, 2], [2, 4], [3, 3]]


async def test_without_word_of_complete_blocks_all_are_written_at_the_end(database) -> None:
    gate = Gate()
    writer = opened(database, gate=gate, blocks=(1, 3))
    await stream(writer, [row(2, 1)], [row(1, 2)])
    assert gate.asked == []
    await writer.finish()
    assert gate.asked == [True]
    assert in_blocks(database) == [[1, 2], [2, 1]]


async def test_complete_blocks_share_a_transaction(database) -> None:
    gate = Gate()
    writer = opened(database, gate=gate, blocks=(1, 9), settings={"batch_rows": 4})
    await stream(writer, [row(i, i) for i in range(1, 9)], done=[8])
    assert gate.asked == [False, False]
    await writer.finish()


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (
            1,
            'column "block_number": block 1 is written already, with the blocks up to 2; a call may only return rows',
        ),
        (9, 'column "block_number": expected a block of the task (1 to 5), got 9'),
    ],
)
async def test_a_row_of_a_block_that_is_written_or_not_of_the_task_is_refused(
    database, block, problem
) -> None:
    writer = opened(database, blocks=(1, 5))
    await stream(writer, [row(1, "a")], done=[2])
    with pytest.raises(StepFailed) as caught:
        await stream(writer, [row(3, "b"), row(block, "c")], start=1, done=[3])
    assert f"bad row: output 2, {problem}" in caught.value.message
    assert await writer.abort() == "blocks 1 to 2 (1 rows) are written and stay"
    assert in_blocks(database) == [[1, "a"]]


async def test_a_block_that_is_never_complete_does_not_fill_the_memory(database) -> None:
    writer = opened(database, blocks=(1, 9), settings={"max_buffered_bytes": 1000})
    await stream(writer, [row(1, "x" * 900), row(2, "x" * 600)], [row(3, "x" * 600)], done=[2, None])
    with pytest.raises(StepFailed) as caught:
        await stream(writer, [row(4, "x" * 600)], start=3)
    assert "that wait for block 3 to be complete take" in caught.value.message
    assert (
        "more than writers.max_buffered_bytes (1000); raise it, return smaller rows" in caught.value.message
    )
    assert await writer.abort() == "blocks 1 to 2 (2 rows) are written and stay"


async def test_outputs_that_are_there_at_once_have_no_limit_of_memory(database) -> None:
    writer = database.plugin(max_buffered_bytes=1)
    outputs = Outputs([row(1, "x" * 500), row(2, "y")])
    await writer.write(context(blocks=(1, 2)), config(), outputs)
    assert len(in_blocks(database) or ()) == 2


async def test_two_tasks_that_replace_the_same_blocks_at_once_leave_the_rows_of_one_in_each(database) -> None:
    """Two workers, each with 30 batches for the same 30 blocks."""

    async def task(name: str) -> None:
        writer = opened(database, task_id=name, blocks=(1, 30))
        for block in range(1, 31):
            await stream(writer, [[row(block, name)] * 3], start=block - 1, done=[block])
        await writer.finish()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(task, "one")
        nursery.start_soon(task, "two")
    rows = in_blocks(database) or []
    assert [block for block, _ in rows] == [block for block in range(1, 31) for _ in range(3)]
    assert len({(block, name) for block, name in rows}) == 30


async def test_a_task_waits_for_another_that_replaces_its_block_and_then_replaces_those_rows(
    database,
) -> None:
    inside, leave = threading.Event(), threading.Event()

    class Slow(Gate):
        def start(self, *, final: bool, written: str = "") -> bool:
            inside.set()
            leave.wait()
            return super().start(final=final)

    async def second() -> None:
        await trio.to_thread.run_sync(inside.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: write(database, [row(1, "two")] * 2, task_id="two", blocks=(1, 1)))
            await trio.to_thread.run_sync(database.wait_for_lock)
            leave.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(second)
        await write(database, [row(1, "one")] * 3, task_id="one", blocks=(1, 1), gate=Slow())
    assert in_blocks(database) == [[1, "two"]] * 2


async def test_many_tasks_make_one_table_at_once(database) -> None:
    """Each in a worker of its own."""

    async def append(i: int) -> None:
        await write(database, [{"a": i}], task_id=f"t{i}")

    async with trio.open_nursery() as nursery:
        for i in range(8):
            nursery.start_soon(append, i)
    assert sorted(database.rows("t", "a") or []) == [[i] for i in range(8)]


async def test_two_runs_of_one_task_at_once_double_nothing(database) -> None:
    outputs = [{"a": i} for i in range(40)]

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(lambda: write(database, outputs))
    assert database.rows("t", "a") == [[i] for i in range(40)]


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
