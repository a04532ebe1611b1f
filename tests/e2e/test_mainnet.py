"""The token transfers of two mainnet blocks, from their logs to rows, by a function as a user writes it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess

FIRST, LAST = 17173049, 17173050

TRANSFERS = '''
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"  # keccak("Transfer(address,address,uint256)")


def transfer(log):
    """The token transfer that a log announces, None when it announces something else."""
    topics = log["topics"]
    if len(topics) < 3 or topics[0] != TRANSFER:
        return None
    return {
        "type": "token_transfer",
        "token_address": log["address"],
        "from_address": _address(topics[1]),
        "to_address": _address(topics[2]),
        "value": int(topics[3] if len(topics) == 4 else log["data"], 16),
        "transaction_hash": log["transaction_hash"],
        "log_index": log["log_index"],
        "block_number": log["block_number"],
        "block_timestamp": log["block_timestamp"],
        "block_hash": log["block_hash"],
        "item_id": f"token_transfer_{log['transaction_hash']}_{log['log_index']}",
        "item_timestamp": log["item_timestamp"],
    }


def transfers(logs):
    """The token transfers of many logs."""
    return [found for found in map(transfer, logs) if found is not None]


def _address(topic):
    return "0x" + topic[-40:]
'''


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ethereum_blocks: Path) -> WorkerProcess:
    return start_worker({"transfers": TRANSFERS}, blocks=ethereum_blocks)


@pytest.fixture(scope="module")
def truth(ethereum_blocks: Path) -> list[dict[str, Any]]:
    lines = (ethereum_blocks / "token_transfers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def handler(tmp_path: Path) -> dict[str, Any]:
    return {"target": f"sqlite:///{tmp_path}/chain.db", "table": "token_transfers"}


def test_the_transfers_of_both_blocks_are_the_ground_truth(client, truth, handler):
    """291 rows, in order, with the columns and all the digits of the truth; values beyond 64 bits are decimal text."""
    submit(client, "range", handler)
    written = succeeded(client, "range")
    assert (written["rowsWritten"], written["blocksReplaced"], written["mode"]) == (291, 2, "replace_block")
    assert table(handler) == as_stored(truth)
    assert sum(isinstance(row["value"], str) for row in table(handler)) == 80


def test_a_second_task_over_the_same_blocks_changes_nothing(client, truth, handler):
    """A block is replaced, not added to, whichever task writes it and by whatever grouping of the rows."""
    for task_id in ("once", "twice"):
        submit(client, task_id, handler)
        assert succeeded(client, task_id)["rowsWritten"] == 291
    submit(client, "thrice", handler, function="transfers.transfers", rows_per_call=50)
    assert succeeded(client, "thrice")["rowsWritten"] == 291
    assert table(handler) == as_stored(truth)


def test_tasks_at_the_same_time_over_the_same_blocks_agree(client, truth, handler):
    """Eight tasks that overlap, some over one block: the table holds each transfer once."""
    blocks: list[Any] = [{"from": FIRST, "to": LAST}, FIRST, LAST, {"from": FIRST, "to": LAST}] * 2
    ids = [f"together-{i}" for i in range(len(blocks))]
    for task_id, block in zip(ids, blocks, strict=True):
        submit(client, task_id, handler, block=block)
    for task_id in ids:
        succeeded(client, task_id)
    assert in_order(table(handler)) == in_order(as_stored(truth))


@pytest.mark.parametrize("rows_per_call", [1, 7, 1000])
def test_rows_come_in_groups_where_the_task_asks_for_groups(client, truth, handler, rows_per_call):
    """A group never spans two blocks: there are as many calls as that makes, and the rows are the same."""
    task_id = f"groups-{rows_per_call}"
    submit(client, task_id, handler, function="transfers.transfers", rows_per_call=rows_per_call)
    succeeded(client, task_id)
    assert table(handler) == as_stored(truth)
    calls = client.GetTaskResult(task_id=task_id).task.result.statistic.calls_total
    assert calls == sum(-(-logs // rows_per_call) for logs in (271, 410))


def test_each_block_as_a_task_of_its_own(client, truth, handler):
    """Live work comes block by block; the second block first must not disturb the first."""
    for block, rows in ((LAST, 177), (FIRST, 114)):
        submit(client, f"block-{block}", handler, block=block)
        assert succeeded(client, f"block-{block}")["rowsWritten"] == rows
    assert in_order(table(handler)) == in_order(as_stored(truth))


def test_chosen_columns_only(client, truth, handler):
    """``columns`` selects; the other keys of a row are left out."""
    columns = ["block_number", "log_index", "value"]
    submit(client, "columns", {**handler, "columns": columns})
    succeeded(client, "columns")
    assert table(handler) == [{name: row[name] for name in columns} for row in as_stored(truth)]


def test_a_block_that_the_store_does_not_hold_fails_the_task(client, handler):
    """No rows is not the same as not there."""
    submit(client, "beyond", handler, block={"from": LAST, "to": LAST + 1})
    result = client.wait("beyond")
    assert (state_name(result.state), result.failure.code) == ("FAILED", "BUILDER_FAILED")
    assert f"block {LAST + 1} is not in table" in result.failure.message


def submit(
    client: OfficialClient,
    task_id: str,
    handler: dict[str, Any],
    *,
    block: Any = None,
    function: str = "transfers.transfer",
    rows_per_call: int | None = None,
) -> None:
    span = {"from": FIRST, "to": LAST} if block is None else block
    client.submit_table(task_id, function, span, ["logs"], handler, rows_per_call=rows_per_call)


def succeeded(client: OfficialClient, task_id: str) -> dict[str, Any]:
    """Wait for a task to succeed; what its writer reports."""
    result = client.wait(task_id)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    report: dict[str, Any] = json.loads(result.plugin_results)
    return report


def table(handler: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows in the order in which they were inserted."""
    connection = sqlite3.connect(handler["target"].removeprefix("sqlite:///"))
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(f"SELECT * FROM {handler['table']} ORDER BY rowid")]
    finally:
        connection.close()


def as_stored(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "value": row["value"] if row["value"] < 2**63 else str(row["value"])} for row in rows]


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["block_number"], row["log_index"]))
