"""The token transfers of two real blocks, from a store through a function into a database."""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.io.postgres_store import PostgresBlockStore
from tests.plugins.helpers import Outputs, config, context
from tests.support.databases import Database, Postgres, Sqlite

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
BLOCKS = (17173049, 17173050)
COUNT = 291
NAMES = (
    "token_address",
    "from_address",
    "to_address",
    "value",
    "transaction_hash",
    "log_index",
    "block_number",
    "block_timestamp",
    "block_hash",
)


def transfer(log: dict[str, Any]) -> dict[str, Any] | None:
    """The token transfer that a log records, if it does."""
    topics = log["topics"]
    if not topics or topics[0] != TRANSFER or len(topics) < 3:
        return None
    data = log["data"][2:]
    value = int(topics[3] if len(topics) == 4 else data[:64], 16)
    row = (log["address"], "0x" + topics[1][-40:], "0x" + topics[2][-40:], value)
    return dict(zip(NAMES, (*row, *(log[name] for name in NAMES[4:])), strict=True))


def found(database: Database) -> list[list[Any]]:
    return sorted(database.rows("t", *NAMES) or [], key=str)


def expected(database: Database, folder: FolderBlockStore) -> list[list[Any]]:
    truth = [json.loads(text) for _, text in folder.read_rows("token_transfers", *BLOCKS)]
    return sorted(([database.stored(row[name]) for name in NAMES] for row in truth), key=str)


@pytest.mark.parametrize("kind", [Sqlite, Postgres])
async def test_all_transfers_equal_the_ground_truth_also_after_a_second_run(
    ethereum_blocks, tmp_path, request, kind
) -> None:
    store = FolderBlockStore(ethereum_blocks)
    database = kind(tmp_path if kind is Sqlite else request.getfixturevalue("postgres"))
    outputs = [transfer(json.loads(log)) for _, log in store.read_rows("logs", *BLOCKS)]
    for task_id in ("task-1", "task-2"):
        written = await database.plugin().write(
            context(task_id=task_id, blocks=BLOCKS), config(), Outputs(outputs)
        )
        assert json.loads(written)["rowsWritten"] == COUNT
        assert found(database) == expected(database, store)


async def test_postgresql_is_read_and_written_in_batches(ethereum_blocks, postgres) -> None:
    """Logs from a table of PostgreSQL, a batch of 100 calls after the other, transfers into another one."""
    folder, database = FolderBlockStore(ethereum_blocks), Postgres(postgres)
    for table in ("blocks", "logs"):
        lines = [text for _, text in folder.read_rows(table, *BLOCKS)]
        await database.plugin().write(context(), config(table=table), Outputs(lines))
    writer = database.plugin().open(context(task_id="transfers", blocks=BLOCKS), config())
    start = 0
    with closing(PostgresBlockStore(postgres.url)) as store:
        for block, rows in store.read_blocks("logs", *BLOCKS):
            for part in _parts(rows, 100):
                outputs = [json.dumps(transfer(json.loads(log))).encode() for log in part]
                await writer.write(start, outputs, block - 1)
                start += len(part)
    assert start == 681
    assert json.loads(await writer.finish())["rowsWritten"] == COUNT
    assert found(database) == expected(database, folder)


def _parts(rows: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]
