"""What is particular to PostgreSQL: types, schemas, locks, connections, errors for people."""

import json
import sys
import threading
from typing import Any

import pytest
import trio

from blockx_worker.io.postgres import PostgresLimits
from blockx_worker.io.postgres_connection import WatchedConnection
from blockx_worker.plugins.block_write import BlockWritePlugin
from blockx_worker.plugins.postgres_database import copied_line
from blockx_worker.plugins.targets import PostgresTarget
from blockx_worker.ports import StepFailed, WriteStopped
from tests.plugins.helpers import Gate, Outputs, config, context, plugin
from tests.support.postgres import PostgresDatabase

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'blockx-worker' AND datname = current_database()"


@pytest.fixture
def writer(postgres) -> BlockWritePlugin:
    return plugin(postgres.url)


async def write(
    writer: BlockWritePlugin, outputs: list[Any], *, gate=None, blocks=None, task_id="task-1", **fields
):
    writer.check(config(**fields), blocks)
    result = await writer.write(
        context(gate, blocks=blocks, task_id=task_id), config(**fields), Outputs(outputs)
    )
    return json.loads(result)


async def refused(writer: BlockWritePlugin, outputs: list[Any], **more: Any) -> str:
    with pytest.raises(StepFailed) as caught:
        await write(writer, outputs, **more)
    assert "s3cret" not in caught.value.message
    return caught.value.message


def columns(postgres: PostgresDatabase, table: str = "t") -> dict[str, str]:
    return dict(
        postgres.select(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        )
    )


# --- tables that the worker makes -------------------------------------------------------------------------------


async def test_a_new_table_is_typed_from_the_rows_of_its_first_transaction(postgres, writer) -> None:
    await write(
        writer,
        [
            {"i": 1, "f": 0.5, "n": 1, "b": True, "s": "x", "l": [1], "o": {}, "m": 1, "null": None},
            {"i": None, "f": 1.5, "n": 0.5, "b": None, "s": "", "l": None, "o": {"a": 1}, "m": "1"},
        ],
    )
    assert columns(postgres) == {
        "i": "numeric",
        "f": "double precision",
        "n": "numeric",
        "b": "boolean",
        "s": "text",
        "l": "jsonb",
        "o": "jsonb",
        "m": "jsonb",
        "null": "text",
    }
    assert postgres.select("SELECT m::text, n::text FROM t") == [("1", "1"), ('"1"', "0.5")]


async def test_blocks_get_an_index(postgres, writer) -> None:
    await write(writer, [{"block_number": 1, "v": 2}], blocks=(1, 1))
    ((index,),) = postgres.select("SELECT indexdef FROM pg_indexes WHERE tablename = 't'")
    assert index.endswith("ON public.t USING btree (block_number)")


async def test_numbers_inside_json_stay_exact(postgres, writer) -> None:
    text = f'{{"v": {{"a": [{2**256 - 1}, 0.1, 12345678901234567.5]}}}}'
    await write(writer, [text.encode()])
    ((stored,),) = postgres.select("SELECT v::text FROM t")
    assert (
        stored == f'{{"a": [{2**256 - 1}, 0.1, 12345678901234568]}}'
    )  # a float has no more digits than that


async def test_the_result_says_where_the_rows_are(postgres) -> None:
    result = await write(plugin(postgres.tcp_url), [{"a": 1}])
    shown = f"postgresql://worker:***@127.0.0.1:{postgres.server.port}/{postgres.name}"
    assert result == {
        "table": "t",
        "target": "main",
        "mode": "append",
        "rowsWritten": 1,
        "database": shown,
        "outputsSkippedByLedger": 0,
    }


async def test_the_ledger_notes_when_it_was_written(postgres, writer) -> None:
    await write(writer, [{"a": 1}, None])
    assert postgres.select("SELECT * FROM blockx_write_ledger") == [("task-1", "t", 2, 2, 1_700_000_000_000)]
    assert postgres.select("SELECT * FROM blockx_made_tables") == [("t", "task-1", 1_700_000_000_000)]


async def test_more_columns_than_postgresql_takes_are_refused(postgres, writer) -> None:
    wide = {f"c{i}": i for i in range(1601)}
    assert "tables can have at most 1600 columns" in await refused(writer, [wide])
    await write(writer, [wide], columns=["c5"])
    assert postgres.select("SELECT * FROM t") == [(5,)]


async def test_a_column_name_that_would_be_cut_off_is_a_bad_row(writer) -> None:
    message = await refused(writer, [{"é" * 32: 1}])
    assert message.startswith(f'bad row: output 0, column "{"é" * 32}": the name is longer than the 63 bytes')


async def test_names_that_differ_in_case_are_two_columns(postgres, writer) -> None:
    await write(writer, [{"a": 1, "A": 2}], table="T")
    assert postgres.select('SELECT a, "A" FROM "T"') == [(1, 2)]


# --- schemas ----------------------------------------------------------------------------------------------------


async def test_a_table_may_be_named_with_its_schema(postgres, writer) -> None:
    postgres.execute('CREATE SCHEMA "chain %s"')
    for task_id in ("task-1", "task-1", "task-2"):
        result = await write(writer, [{"a": 1}], table="chain %s.t", task_id=task_id)
    assert result["table"] == "chain %s.t"
    assert postgres.select('SELECT a FROM "chain %s".t') == [(1,), (1,)]
    assert postgres.select('SELECT count(*) FROM "chain %s".blockx_write_ledger') == [(2,)]
    assert postgres.select("SELECT to_regclass('public.blockx_write_ledger')") == [(None,)]


async def test_the_search_path_says_where_a_table_without_schema_is(postgres, postgres_server) -> None:
    postgres.execute("CREATE SCHEMA one", "CREATE SCHEMA two", "CREATE TABLE two.t (a int)")
    writer = plugin(f"{postgres.url}&options=-csearch_path%3Done,two")
    await write(writer, [{"a": 1}])
    await write(writer, [{"a": 2}], table="u")
    assert postgres.select("SELECT a FROM two.t") == [(1,)]
    assert postgres.select("SELECT a FROM one.u") == [(2,)]


async def test_a_missing_schema_is_a_sentence(postgres, writer) -> None:
    message = await refused(writer, [{"a": 1}], table="nope.t")
    assert "has no such schema; create it or correct the table's name" in message
    no_path = plugin(f"{postgres.url}&options=-csearch_path%3Dnope")
    assert "name the table as SCHEMA.TABLE" in await refused(no_path, [{"a": 1}])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"table": "a.b.c"}, '.table: expected TABLE or SCHEMA.TABLE, got "a.b.c"'),
        ({"table": ".t"}, '.table: expected TABLE or SCHEMA.TABLE, got ".t"'),
        ({"table": "s."}, '.table: expected TABLE or SCHEMA.TABLE, got "s."'),
        ({"table": "s.blockx_write_ledger"}, '.table: "blockx_write_ledger" begins with a reserved prefix'),
        ({"table": "x" * 64}, "is longer than the 63 bytes that PostgreSQL keeps"),
        ({"table": "x" * 64 + ".t"}, "is longer than the 63 bytes that PostgreSQL keeps"),
        ({"columns": ["a", "x" * 64]}, ".columns[1]: "),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_any_call_runs(fields, message) -> None:
    with pytest.raises(StepFailed) as caught:
        plugin("postgresql://h/d").check(config(**fields), None)
    assert message in caught.value.message


# --- tables that somebody else made -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        ("int8", 2**63 - 1, str(2**63 - 1)),
        ("int4", "12", "12"),
        ("numeric(78,0)", 2**256 - 1, str(2**256 - 1)),
        ("numeric(78,0)", 5.0, "5"),
        ("numeric(10,2)", "12.50", "12.50"),
        ("numeric(10,-2)", 1200, "1200"),
        ("numeric", "1.5E+3", "1500"),
        ("numeric", 0.1, "0.1"),
        ("double precision", 2**53, "9.007199254740992e+15"),
        ("double precision", 2**70, "1.1805916207174113e+21"),
        ("real", 0.1, "0.1"),
        ("real", 2**24, "1.6777216e+07"),
        ("text", 2**256, str(2**256)),
        ("text", True, "true"),
        ("text", [1, "a"], '[1,"a"]'),
        ("varchar(3)", "abc", "abc"),
        ("boolean", False, "false"),
        ("jsonb", "abc", '"abc"'),
        ("jsonb", 2**256, str(2**256)),
        ("json", {"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ("bytea", "0x00Ff", r"\x00ff"),
        ("bytea", "0x", r"\x"),
        ("text[]", ["a", None, 'q"\\{},', "NULL", 5], '{a,NULL,"q\\"\\\\{},","NULL",5}'),
        ("numeric[]", [[1, 2], [3, 2**100]], f"{{{{1,2}},{{3,{2**100}}}}}"),
        ("bytea[]", ["0x01", "0x"], r'{"\\x01","\\x"}'),
        ("jsonb[]", [[1], {"a": "b"}], '{[1],"{\\"a\\": \\"b\\"}"}'),
        ("text[]", [], "{}"),
        ("timestamptz", "2023-05-02T12:19:59Z", "2023-05-02 12:19:59+00"),
        ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
        ("positive", 5, "5"),
    ],
)
async def test_values_go_into_the_types_that_are_there(postgres, writer, type_, value, stored) -> None:
    postgres.execute(f"CREATE DOMAIN positive AS int4 CHECK (value > 0); CREATE TABLE t (v {type_}, w text)")
    await write(writer, [{"v": value}, {"v": None}])
    with postgres.connect(options="-c TimeZone=UTC") as connection:
        found = connection.execute("SELECT v::text FROM t ORDER BY ctid").fetchall()
    assert found == [(stored,), (None,)]


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        ("int2", 2**15, 'refused it: value "32768" is out of range for type smallint'),
        ("int4", 2**31, 'refused it: value "2147483648" is out of range for type integer'),
        ("int8", 2**63, "is out of range for type bigint"),
        ("int8", 1.5, 'refused it: invalid input syntax for type bigint: "1.5"'),
        ("int8", True, "expected a number for the type int8 of this column, got true"),
        ("numeric", "0x10", 'expected a number for the type numeric of this column, got "0x10"'),
        ("numeric", "0123", 'expected a number for the type numeric of this column, got "0123"'),
        ("numeric", "NaN", 'expected a number for the type numeric of this column, got "NaN"'),
        ("numeric", [1], "expected a number for the type numeric of this column, got [1]"),
        ("numeric(5,2)", 1.005, "1.005 does not fit the numeric type of this column, which would round it"),
        ("numeric(5,2)", 12345, "refused it: numeric field overflow"),
        ("numeric(5,-2)", 1250, "1250 does not fit the numeric type of this column, which would round it"),
        (
            "double precision",
            2**53 + 1,
            "does not fit the type double precision of this column, which would round",
        ),
        ("double precision", str(2**53 + 1), "which would round it"),
        ("double precision", 10**400, "which would round it"),
        ("real", 2**24 + 1, "does not fit the type real of this column, which would round it"),
        ("varchar(3)", "abcd", "refused it: value too long for type character varying(3)"),
        ("boolean", "yes", 'expected true or false for the type boolean of this column, got "yes"'),
        ("bytea", "abc", 'expected bytes as a text such as "0x00ff" for this column, got "abc"'),
        ("bytea", "0xabc", 'expected bytes as a text such as "0x00ff" for this column, got "0xabc"'),
        ("text[]", "a", 'expected a list for the type text[] of this column, got "a"'),
        ("bytea[]", ["0x0"], 'expected bytes as a text such as "0x00ff" for this column, got "0x0"'),
        ("text", "NUL \0", "the text holds the character NUL, which PostgreSQL cannot store"),
        ("text[]", ["\0"], "the text holds the character NUL, which PostgreSQL cannot store"),
        ("jsonb", {"a": ["\0"]}, "refused it: unsupported Unicode escape sequence"),
        ("uuid", 5, 'refused it: invalid input syntax for type uuid: "5"'),
        ("timestamptz", "soon", 'refused it: invalid input syntax for type timestamp with time zone: "soon"'),
        ("positive", -5, 'refused it: value for domain positive violates check constraint "positive_check"'),
    ],
)
async def test_a_value_that_does_not_fit_names_row_and_column_and_leaves_nothing(
    postgres, writer, type_, value, problem
) -> None:
    postgres.execute("CREATE DOMAIN positive AS int4 CHECK (value > 0)")
    postgres.execute(f'CREATE TABLE t (block_number int, "V 1" {type_})')
    rows = [{"block_number": 1}, [{"block_number": 1, "V 1": None}, {"block_number": 1, "V 1": value}]]
    for blocks in (None, (1, 1)):
        message = await refused(writer, rows, blocks=blocks)
        assert message.startswith('bad row: output 1, row 1, column "V 1": ')
        assert problem in message
        assert len(message) < 300
        assert postgres.select("SELECT * FROM t") == []


@pytest.mark.parametrize(
    ("table", "outputs", "message"),
    [
        (
            "(a int UNIQUE)",
            [{"a": 1}, [{"a": 2}, {"a": 1}]],
            'output 1, row 1: table "t" refused it: duplicate key value violates unique constraint "t_a_key"',
        ),
        (
            "(a int, b int NOT NULL)",
            [{"a": 1, "b": 2}, {"a": 1}],
            'output 1, column "b": table "t" refused it: null value in column "b" of relation "t" violates not-null',
        ),
        (
            "(a int CHECK (a < 5))",
            [{"a": 1}, {"a": 2}, {"a": 7}],
            'output 2: table "t" refused it: new row for relation "t" violates check constraint',
        ),
        (
            "(a int REFERENCES u)",
            [{"a": 1}, {"a": 2}],
            'one of the outputs 0 to 1: table "t" refused it: insert or update on table "t" violates foreign key',
        ),
    ],
)
async def test_a_row_that_the_table_refuses_is_named(postgres, writer, table, outputs, message) -> None:
    postgres.execute("CREATE TABLE u (a int PRIMARY KEY)", f"CREATE TABLE t {table}")
    assert f"bad row: {message}" in await refused(writer, outputs)
    assert postgres.select("SELECT * FROM t") == []


@pytest.mark.parametrize(
    ("context", "found"),
    [
        ('COPY t, line 2, column v: "x, y: z"', (2, "v")),
        ("COPY t, line 12, column v 1: null input", (12, "v 1")),
        ('COPY t, line 3: "1\\t2"', (3, None)),
        ("COPY t, line 4", (4, None)),
        ("COPY t, Zeile 2, Spalte v: »x«", (2, "v")),
        ("COPY t, ligne 2, colonne v : « x »", (2, "v")),
        ('JSON data, line 1: {"a"...\nCOPY t, line 5, column v: "{"', (5, "v")),
        ('SQL statement "SELECT 1"', (0, None)),
        ("", (0, None)),
    ],
)
def test_the_line_of_a_copy_is_found_in_whatever_language(context, found) -> None:
    assert copied_line(context, "t") == found


async def test_what_a_trigger_refuses_is_a_bad_row(postgres, writer) -> None:
    postgres.execute(
        "CREATE TABLE t (a int)",
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.a = 2 THEN RAISE 'not two'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()",
    )
    assert 'bad row: output 1: table "t" refused it: not two' in await refused(writer, [{"a": 1}, {"a": 2}])


async def test_a_constraint_that_is_checked_at_the_commit_fails_the_task(postgres, writer) -> None:
    postgres.execute(
        "CREATE TABLE u (a int PRIMARY KEY)",
        "CREATE TABLE t (a int REFERENCES u DEFERRABLE INITIALLY DEFERRED)",
    )
    message = await refused(writer, [{"a": 1}])
    assert "refused the work (PostgreSQL: insert or update on table" in message
    assert "not known" not in message
    assert postgres.select("SELECT * FROM t") == []


async def test_missing_keys_take_the_defaults_of_the_table(postgres, writer) -> None:
    postgres.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, a int, b text DEFAULT 'none', c int, "
        "d int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    await write(writer, [{"a": 1}, {"a": 2, "b": None}, {"c": 3}, {"a": 4, "b": "x", "c": 5}])
    assert postgres.select("SELECT * FROM t ORDER BY id") == [
        (1, 1, "none", None, 2),
        (2, 2, None, None, 4),
        (3, None, "none", 3, None),
        (4, 4, "x", 5, 8),
    ]


async def test_selected_columns_have_to_be_in_the_table_and_others_are_left_out(postgres, writer) -> None:
    postgres.execute("CREATE TABLE t (a int, b int)")
    message = await refused(writer, [{"a": 1}], columns=["a", "z"])
    assert message.startswith('resultHandler.columns: table "t" in postgresql://')
    assert message.endswith('has no column "z"; it has a, b')
    await write(writer, [{"a": 1, "b": 2}, {"a": 3}], columns=["a"])
    assert postgres.select("SELECT * FROM t") == [(1, None), (3, None)]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("(a int)", 'has no column "block_number", which replace_block needs as an integer'),
        (
            "(block_number text)",
            'has, as text, the column "block_number", which replace_block needs as an integer',
        ),
    ],
)
async def test_replacing_in_a_table_without_blocks_is_refused(postgres, writer, table, problem) -> None:
    postgres.execute(f"CREATE TABLE t {table}", "INSERT INTO t VALUES (1)")
    assert problem in await refused(writer, [], blocks=(1, 2))
    assert postgres.select("SELECT count(*) FROM t") == [(1,)]


async def test_a_partitioned_table_takes_rows(postgres, writer) -> None:
    postgres.execute("CREATE TABLE t (block_number int, v int) PARTITION BY RANGE (block_number)")
    postgres.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (5)")
    rows = [{"block_number": 1, "v": 1}, {"block_number": 3, "v": 2}]
    for task_id in ("task-1", "task-2"):
        await write(writer, rows, blocks=(1, 4), task_id=task_id)
    assert postgres.select("SELECT v FROM t ORDER BY v") == [(1,), (2,)]
    message = await refused(writer, [{"block_number": 7}], blocks=(7, 7))
    assert 'bad row: output 0: table "t" refused it: no partition of relation' in message


async def test_a_view_is_no_table(postgres, writer) -> None:
    postgres.execute("CREATE TABLE x (a int)", "CREATE VIEW t AS SELECT a FROM x")
    assert 'cannot copy to view "t"' in await refused(writer, [{"a": 1}])


async def test_a_table_changed_by_others_between_transactions_is_seen(postgres) -> None:
    class Altering(Gate):
        def ended(self, *, written: str = "") -> None:
            postgres.execute("ALTER TABLE t ADD COLUMN b int")

    writer = plugin(postgres.url, batch_rows=1)
    await write(writer, [{"a": 1}, {"a": 2, "b": 3}], gate=Altering())
    assert postgres.select("SELECT a, b FROM t") == [(1, None), (2, 3)]


# --- locks, time-outs and stops ---------------------------------------------------------------------------------


async def test_a_lock_that_stays_is_a_sentence(postgres) -> None:
    postgres.execute("CREATE TABLE t (a int)")
    writer = plugin(postgres.url, postgres=PostgresLimits(lock_timeout_ms=10))
    with postgres.connect() as other, other.transaction():
        other.execute("LOCK TABLE t")
        message = await refused(writer, [{"a": 1}])
    assert "is locked by another transaction for longer than 10 ms; end that transaction, or raise" in message
    assert "writers.postgres_lock_timeout_ms" in message


async def test_a_statement_over_its_time_is_a_sentence(postgres) -> None:
    postgres.execute("CREATE TABLE t (a int DEFAULT 1, b int)")
    postgres.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$",
        "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    writer = plugin(postgres.url, postgres=PostgresLimits(statement_timeout_ms=20))
    message = await refused(writer, [{"b": 1}])
    assert "needs more than 20 ms for one statement" in message
    assert "writers.postgres_statement_timeout_ms" in message


@pytest.mark.parametrize("blocks", [None, (1, 1)])
async def test_a_cancelled_wait_for_a_lock_ends_and_leaves_nothing(postgres, writer, blocks) -> None:
    postgres.execute("CREATE TABLE t (block_number int)", "INSERT INTO t VALUES (1)")
    gate = Gate()
    with postgres.connect() as other, other.transaction():
        other.execute("LOCK TABLE t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: write(writer, [{"block_number": 1}], gate=gate, blocks=blocks))
            await trio.to_thread.run_sync(postgres.wait_for_activity, "relation")
            nursery.cancel_scope.cancel()
        assert postgres.select("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]
    assert gate.asked == []
    assert postgres.select("SELECT * FROM t") == [(1,)]
    assert postgres.select(SESSIONS) == [(0,)]


async def test_a_cancellation_does_not_touch_a_commit_under_way(postgres, writer) -> None:
    """The gate has said yes: the outcome is awaited, and it counts."""
    async with trio.open_nursery() as nursery:

        class Cancelling(Gate):
            def start(self, *, final: bool, written: str = "") -> bool:
                trio.from_thread.run_sync(nursery.cancel_scope.cancel)
                return super().start(final=final)

        nursery.start_soon(lambda: write(writer, [{"a": 1}], gate=Cancelling()))
    assert postgres.select("SELECT a FROM t") == [(1,)]


async def test_a_server_that_does_not_answer_a_cancel_request_is_given_up(
    postgres, writer, monkeypatch
) -> None:
    """The connection is dropped; no thread waits for ever."""
    monkeypatch.setattr(WatchedConnection, "_cancel", lambda _connection: None)
    monkeypatch.setattr("blockx_worker.io.postgres_connection.GIVE_UP_S", 0.05)
    postgres.execute("CREATE TABLE t (a int)")
    with postgres.connect() as other, other.transaction():
        other.execute("LOCK TABLE t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: write(writer, [{"a": 1}]))
            await trio.to_thread.run_sync(postgres.wait_for_activity, "relation")
            nursery.cancel_scope.cancel()
    assert postgres.select("SELECT * FROM t") == []


# --- connections ------------------------------------------------------------------------------------------------


async def test_connections_are_shared_and_closed_after_the_last_writer(postgres) -> None:
    """Eight tasks at once, two connections; the ninth finds them idle."""
    writer = plugin(postgres.url, postgres=PostgresLimits(pool_size=2))
    seen: list[int] = []

    class Counting(Gate):
        def start(self, *, final: bool, written: str = "") -> bool:
            seen.append(postgres.select(SESSIONS)[0][0])
            return super().start(final=final)

    async def append(i: int) -> None:
        await write(writer, [{"a": i}], gate=Counting(), task_id=f"t{i}")

    kept = writer.open(context(task_id="kept"), config())
    await kept.write(0, [b'{"a": 0}'], None)
    async with trio.open_nursery() as nursery:
        for i in range(8):
            nursery.start_soon(append, i)
    assert max(seen) == 2
    assert postgres.select(SESSIONS) == [(2,)]
    await kept.finish()
    assert postgres.select(SESSIONS) == [(0,)]
    del kept
    assert not writer._lanes


async def test_a_connection_that_the_server_has_ended_is_replaced(postgres, writer) -> None:
    batches = writer.open(context(), config())
    await batches.write(0, [b'{"a": 1}'], None)
    end_sessions(postgres)
    await batches.write(1, [b'{"a": 2}'], None)
    await batches.finish()
    assert postgres.select("SELECT a FROM t") == [(1,), (2,)]


def end_sessions(postgres: PostgresDatabase) -> None:
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'blockx-worker'"
    )


async def test_a_connection_lost_at_the_commit_leaves_the_outcome_open_and_a_rerun_settles_it(
    postgres, writer
) -> None:
    class Ending(Gate):
        def start(self, *, final: bool, written: str = "") -> bool:
            end_sessions(postgres)
            return super().start(final=final)

    message = await refused(writer, [{"a": 1}], gate=Ending())
    assert "ended the session; submit again" in message
    assert "whether the last transaction was written is not known" in message
    await write(writer, [{"a": 1}])
    assert postgres.select("SELECT a FROM t") == [(1,)]


async def test_a_database_that_cannot_be_reached_is_a_sentence(postgres, postgres_server) -> None:
    nobody = plugin("postgresql://u:s3cret@127.0.0.1:1/d")
    assert (await refused(nobody, [{"a": 1}])).startswith(
        "database postgresql://u:***@127.0.0.1:1/d cannot be reached, or the connection was lost; check that it runs"
    )
    wrong = plugin(postgres_server.tcp_url(postgres.name, "s3cret-wr0ng"))
    assert "refuses the login; check user and password" in await refused(wrong, [{"a": 1}])
    missing = plugin(postgres_server.tcp_url("nope"))
    assert "does not exist; create it or correct the URL" in await refused(missing, [{"a": 1}])


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cret%zz@h/d", "postgresql://u:s3cret@h:x/d", "postgresql://u:s3cret@h/d?nope=1"]
)
async def test_a_bad_url_is_a_sentence_without_the_password(url) -> None:
    assert (await refused(plugin(url), [{"a": 1}])).startswith(
        ("database postgresql://u:***@h", "postgresql://u:***@h")
    )


async def test_a_user_without_rights_is_told_so(postgres, postgres_server) -> None:
    postgres_server.execute("DROP ROLE IF EXISTS reader")
    postgres_server.execute("CREATE ROLE reader LOGIN")
    reader = plugin(postgres.url.replace("postgres@", "reader@"))
    assert "forbids this to the user of the URL; grant the privilege" in await refused(reader, [{"a": 1}])


async def test_a_read_only_database_is_told_so(postgres) -> None:
    writer = plugin(f"{postgres.url}&options=-cdefault_transaction_read_only%3Don")
    assert "is read-only; choose the primary server" in await refused(writer, [{"a": 1}])


async def test_the_isolation_of_the_login_does_not_matter(postgres) -> None:
    """A task that waited for another's lock replaces what that one wrote, whatever the default isolation."""
    url = f"{postgres.url}&options=-cdefault_transaction_isolation%3Dserializable"
    for task_id in ("task-1", "task-2"):
        await write(plugin(url), [{"block_number": 1}], blocks=(1, 1), task_id=task_id)
    assert postgres.select("SELECT count(*) FROM t") == [(1,)]


def test_without_the_driver_a_target_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StepFailed) as caught:
        plugin("postgresql://h/d").check(config(), None)
    assert 'pip install "blockx-worker[postgres]"' in caught.value.message
    assert caught.value.message.startswith(
        "resultHandler.target: PostgreSQL needs the Python package psycopg"
    )


def test_one_database_is_one_lane() -> None:
    writer = plugin("postgresql://h/d")
    lane = writer._lane(PostgresTarget(label="a", url="postgresql://h/d", shown=""))
    assert writer._lane(PostgresTarget(label="b", url="postgresql://h/d", shown="")) is lane
    assert writer._lane(PostgresTarget(label="a", url="postgresql://h/e", shown="")) is not lane


async def test_a_long_run_of_blocks_without_rows_locks_few_at_a_time(postgres, writer) -> None:
    """The server's table of locks is shared: thousands at once would fail there."""
    postgres.execute("CREATE TABLE t (block_number int)", "INSERT INTO t VALUES (1), (9000), (9001)")
    gate = Gate()
    result = await write(writer, [], blocks=(1, 9000), gate=gate)
    assert result["blocksReplaced"] == 9000
    assert gate.asked == [False] * 35 + [True]
    assert postgres.select("SELECT * FROM t") == [(9001,)]


async def test_a_stopped_transaction_of_many_rows_is_rolled_back(postgres) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow(Outputs):
        def lines(self, start: int = 0):
            for index, line in enumerate(super().lines(start), start=start):
                if index == 4500:
                    reached.set()
                    go_on.wait(10)
                yield line

    gate = Gate()
    writer = plugin(postgres.url, batch_rows=3000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: writer.write(context(gate), config(), Slow([{"a": i} for i in range(5000)]))
        )
        await trio.to_thread.run_sync(reached.wait)
        nursery.cancel_scope.cancel()
        go_on.set()
    assert gate.asked == [False]
    assert postgres.select("SELECT count(*), max(a) FROM t") == [(3000, 2999)]


async def test_a_refused_commit_stops_quietly(postgres, writer) -> None:
    with pytest.raises(WriteStopped):
        await write(writer, [{"a": 1}], gate=Gate(refuse_at=0))
    await write(writer, [{"a": 2}])
    assert postgres.select("SELECT a FROM t") == [(2,)]
