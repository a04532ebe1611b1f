"""Block tables in PostgreSQL."""

import json
import threading
from contextlib import closing
from typing import Any

import pytest
import trio

import blockx_worker.io.postgres_store
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.io.postgres import PostgresLimits
from blockx_worker.io.postgres_store import PostgresBlockStore
from blockx_worker.ports import BlockNotFound, BlockStoreError, TableNotFound
from tests.plugins.helpers import Outputs, config, context, plugin

BLOCKS = (17173049, 17173050)


@pytest.fixture
def store(postgres):
    with closing(PostgresBlockStore(postgres.url)) as store:
        yield store


def read(store: PostgresBlockStore, table: str, first: int, last: int) -> list[tuple[int, list[Any]]]:
    return [
        (block, [json.loads(text) for text in rows]) for block, rows in store.read_blocks(table, first, last)
    ]


def one(store: PostgresBlockStore, table: str = "t") -> str:
    """The text of the only row of block 1."""
    ((_, (text,)),) = store.read_blocks(table, 1, 1)
    return text.decode()


@pytest.mark.parametrize("table", ["logs", "transactions", "token_transfers", "blocks"])
async def test_real_blocks_read_as_from_the_folder(ethereum_blocks, postgres, store, table) -> None:
    folder = FolderBlockStore(ethereum_blocks)
    names = dict.fromkeys([table, "blocks"])
    for name in names:
        lines = [text for _, text in folder.read_rows(name, *BLOCKS)]
        await plugin(postgres.url).write(context(), config(table=name), Outputs(lines))
    expected = [
        (block, [json.loads(text) for text in rows]) for block, rows in folder.read_blocks(table, *BLOCKS)
    ]
    assert read(store, table, *BLOCKS) == expected
    assert read(store, table, BLOCKS[1], BLOCKS[1]) == expected[1:]
    assert store.tables() == sorted(names)


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "literal", "text"),
    [
        ("numeric", str(2**256 - 1), str(2**256 - 1)),
        ("numeric(80, 3)", "12.50", "12.500"),
        ("numeric", "'NaN'", '"NaN"'),
        ("bigint", str(2**63 - 1), str(2**63 - 1)),
        ("double precision", "0.1", "0.1"),
        ("double precision", "5e-324", "5e-324"),
        ("double precision", "'Infinity'", '"Infinity"'),
        ("real", "0.1", "0.1"),
        ("boolean", "true", "true"),
        ("text", r"'\xab'", r'"\\xab"'),
        ("text", "E'Ü\\n\"'", r'"Ü\n\""'),
        ("bytea", r"'\x00ff'", '"0x00ff"'),
        ("bytea", "''", '"0x"'),
        ("bytea", "NULL", "null"),
        ("bytea[]", r"ARRAY['\x02', NULL, '\x01']::bytea[]", '["0x02",null,"0x01"]'),
        ("bytea[]", "'{}'", "[]"),
        ("bytea[]", "NULL", "null"),
        ("text[]", "ARRAY['a', NULL]", '["a",null]'),
        ("jsonb", f"""'{{"a": [{2**256 - 1}, 0.10]}}'""", f'{{"a": [{2**256 - 1}, 0.10]}}'),
        ("json", "E'{\"a\":\\r\\n 1.10}'", '{"a":   1.10}'),
        ("timestamptz", "'2023-05-02 14:19:59.5+02'", '"2023-05-02T12:19:59.5+00:00"'),
        ("date", "'2023-05-02'", '"2023-05-02"'),
    ],
)
def test_values_come_as_the_json_text_that_says_them_exactly(postgres, store, type_, literal, text) -> None:
    postgres.execute(
        "ALTER DATABASE " + postgres.name + " SET TimeZone = 'Asia/Tokyo'",
        f"CREATE TABLE t AS SELECT 1 AS block_number, {literal}::{type_} AS v",
    )
    assert one(store) == f'{{"block_number":1,"v":{text}}}'
    postgres.execute("ALTER DATABASE " + postgres.name + " RESET ALL")


def test_columns_come_in_the_order_of_the_table_whatever_their_names(postgres, store) -> None:
    postgres.execute('CREATE TABLE "T %s" ("r" int, "ctid x" int, "100%" int, block_number int, item int)')
    postgres.execute('INSERT INTO "T %s" VALUES (1, 2, 3, 1, 4)')
    assert one(store, "T %s") == '{"r":1,"ctid x":2,"100%":3,"block_number":1,"item":4}'


# --- order and pieces -------------------------------------------------------------------------------------------


def order(store: PostgresBlockStore) -> list[int]:
    return [row["i"] for _, rows in read(store, "t", 1, 2) for row in rows]


def test_rows_come_by_block_then_by_the_order_columns_then_as_they_lie(postgres, store) -> None:
    postgres.execute(
        "CREATE TABLE t (i int, block_number numeric, log_index int, transaction_index int)",
        "INSERT INTO t VALUES (0, 2, 0, 0), (1, 1, 5, 1), (2, 1, 5, 0), (3, 1, 4, 1), (4, 1, 5, 1)",
    )
    assert order(store) == [2, 3, 1, 4, 0]
    with closing(PostgresBlockStore(postgres.url, order_columns=["log_index"])) as other:
        assert order(other) == [3, 1, 2, 4, 0]
    with closing(PostgresBlockStore(postgres.url, order_columns=[])) as other:
        assert order(other) == [1, 2, 3, 4, 0]


def test_the_primary_key_orders_what_the_order_columns_leave_open(postgres, store) -> None:
    postgres.execute(
        "CREATE TABLE t (i int, block_number int, a int, b int, PRIMARY KEY (block_number, b, a))",
        "INSERT INTO t VALUES (0, 1, 2, 2), (1, 1, 1, 2), (2, 1, 3, 1), (3, 2, 0, 0)",
    )
    assert order(store) == [2, 1, 0, 3]


@pytest.mark.parametrize(
    "kind",
    [
        "VIEW v AS SELECT * FROM t",
        "MATERIALIZED VIEW v AS SELECT * FROM t",
        "TABLE v (i int, block_number int) PARTITION BY RANGE (block_number)",
    ],
)
def test_views_and_partitioned_tables_are_tables_too(postgres, store, kind) -> None:
    postgres.execute("CREATE TABLE t (i int, block_number int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    postgres.execute(f"CREATE {kind}")
    if "PARTITION" in kind:
        postgres.execute(
            "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (1) TO (9)", "INSERT INTO v SELECT * FROM t"
        )
    assert [block for block, _ in read(store, "v", 1, 2)] == [1, 2]


def test_large_blocks_come_whole_though_rows_are_fetched_in_pieces(postgres, store, monkeypatch) -> None:
    monkeypatch.setattr(blockx_worker.io.postgres_store, "FETCH_ROWS", 7)
    postgres.execute("CREATE TABLE t AS SELECT i / 20 AS block_number, i FROM generate_series(0, 59) i")
    assert [(block, len(rows)) for block, rows in read(store, "t", 0, 2)] == [(0, 20), (1, 20), (2, 20)]


def test_a_reading_sees_one_state_of_the_database(postgres, store) -> None:
    postgres.execute("CREATE TABLE t AS SELECT i AS block_number FROM generate_series(1, 1000) i")
    reading = store.read_blocks("t", 1, 1000)
    next(reading)
    postgres.execute("DELETE FROM t WHERE block_number > 1")
    assert len(list(reading)) == 999


# --- which blocks are known -------------------------------------------------------------------------------------


def test_a_known_block_without_rows_is_empty_and_an_unknown_one_an_error(postgres, store) -> None:
    postgres.execute(
        "CREATE TABLE blocks AS SELECT n AS number FROM unnest(ARRAY[3, 4, 7]) n",
        "CREATE TABLE t (block_number int)",
    )
    assert read(store, "t", 3, 4) == []
    with pytest.raises(BlockNotFound) as caught:
        read(store, "t", 4, 7)
    place = f"in {store._shown}: it holds 3 to 7"
    assert str(caught.value) == f'block 5 (and 1 more of the range) is not in table "blocks" {place}'


def test_without_a_table_of_blocks_the_rows_say_which_are_known(postgres, store) -> None:
    postgres.execute("CREATE TABLE t (block_number int)", "INSERT INTO t VALUES (3), (9)")
    assert [block for block, _ in read(store, "t", 3, 9)] == [3, 9]
    with pytest.raises(
        BlockNotFound, match=r'blocks 2 to 4 are not all there: table "t" in .* holds blocks 3 to 9'
    ):
        read(store, "t", 2, 4)
    postgres.execute("TRUNCATE t")
    with pytest.raises(BlockNotFound, match="holds no rows"):
        read(store, "t", 3, 3)


@pytest.mark.parametrize("name", ["nope", "t; DROP TABLE t", "public.t", "a\0b", "x" * 1000])
def test_an_unknown_table_is_answered_with_those_there_are(postgres, store, name) -> None:
    postgres.execute("CREATE TABLE t (block_number int)", "CREATE TABLE u ()")
    with pytest.raises(TableNotFound) as caught:
        read(store, name, 1, 1)
    assert str(caught.value).endswith("which holds t, u")
    assert len(str(caught.value)) < 300


def test_a_schema_has_its_own_tables(postgres) -> None:
    postgres.execute('CREATE SCHEMA "Chain 1"', "CREATE TABLE t (block_number int)")
    postgres.execute('CREATE TABLE "Chain 1".u (block_number int)', 'INSERT INTO "Chain 1".u VALUES (1), (1)')
    with closing(PostgresBlockStore(postgres.url, schema="Chain 1")) as store:
        assert read(store, "u", 1, 1) == [(1, [{"block_number": 1}] * 2)]
        with pytest.raises(
            TableNotFound, match=r'no table "t" in schema "Chain 1" of postgresql://.* holds u'
        ):
            read(store, "t", 1, 1)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("number int", 'has no column "block_number", which has to hold the block as an integer'),
        ("block_number text", 'has as text the column "block_number"'),
    ],
)
def test_a_table_without_blocks_is_refused(postgres, store, columns, problem) -> None:
    postgres.execute(f"CREATE TABLE t ({columns})")
    with pytest.raises(BlockStoreError, match=problem):
        read(store, "t", 1, 1)


# --- errors and stops -------------------------------------------------------------------------------------------


def test_a_wrong_password_is_a_sentence_that_does_not_show_it(postgres, postgres_server) -> None:
    store = PostgresBlockStore(postgres_server.tcp_url(postgres.name, "wr0ng"))
    with closing(store), pytest.raises(BlockStoreError) as caught:
        store.tables()
    assert "refuses the login; check user and password of the target" in str(caught.value)
    assert "wr0ng" not in str(caught.value)


def test_a_connection_that_the_server_has_ended_is_replaced(postgres, store) -> None:
    assert store.tables() == []
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'blockx-worker'"
    )
    assert store.tables() == []


def test_a_statement_over_its_time_is_a_sentence(postgres) -> None:
    postgres.execute("CREATE VIEW t AS SELECT 1 AS block_number FROM pg_sleep(60)")
    limits = PostgresLimits(statement_timeout_ms=10)
    store = PostgresBlockStore(postgres.url, limits=limits)
    with closing(store), pytest.raises(BlockStoreError, match="needs more than 10 ms for one statement"):
        read(store, "t", 1, 1)


async def test_a_reading_that_nobody_waits_for_ends_in_the_middle_of_a_statement(postgres, store) -> None:
    postgres.execute("CREATE VIEW t AS SELECT 1 AS block_number FROM pg_sleep(600)")
    stop = threading.Event()

    async def stop_when_asleep() -> None:
        await trio.to_thread.run_sync(postgres.wait_for_activity, "PgSleep")
        stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_asleep)
        with pytest.raises(BlockStoreError, match="reading was interrupted"):
            await trio.to_thread.run_sync(lambda: list(store.read_blocks("t", 1, 1, stop.is_set)))
    assert postgres.select("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == [(0,)]
    assert store.tables() == ["t"]


def test_a_reading_that_is_left_early_gives_its_connection_back(postgres, store) -> None:
    postgres.execute("CREATE TABLE t AS SELECT i AS block_number FROM generate_series(1, 1000) i")
    for _ in range(3):
        reading = store.read_blocks("t", 1, 1000)
        next(reading)
        reading.close()
    sessions = "SELECT state FROM pg_stat_activity WHERE application_name = 'blockx-worker'"
    assert postgres.select(sessions) == [("idle",)]
