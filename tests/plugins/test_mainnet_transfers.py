"""The token transfers of two real blocks, from the folder store through a function into SQLite."""

import json
from typing import Any

from blockx_worker.io.folder import FolderBlockStore
from tests.plugins.helpers import Outputs, config, context, plugin, select

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
BLOCKS = (17173049, 17173050)


def transfer(log: dict[str, Any]) -> dict[str, Any] | None:
    """The token transfer that a log records, if it does."""
    topics = log["topics"]
    if not topics or topics[0] != TRANSFER or len(topics) < 3:
        return None
    data = log["data"][2:]
    return {
        "token_address": log["address"],
        "from_address": "0x" + topics[1][-40:],
        "to_address": "0x" + topics[2][-40:],
        "value": int(topics[3] if len(topics) == 4 else data[:64], 16),
        "transaction_hash": log["transaction_hash"],
        "log_index": log["log_index"],
        "block_number": log["block_number"],
        "block_timestamp": log["block_timestamp"],
        "block_hash": log["block_hash"],
    }


async def test_all_transfers_equal_the_ground_truth_also_after_a_second_run(
    ethereum_blocks, tmp_path
) -> None:
    store = FolderBlockStore(ethereum_blocks)
    outputs = [transfer(json.loads(log)) for _, log in store.read_rows("logs", *BLOCKS)]
    truth = [json.loads(text) for _, text in store.read_rows("token_transfers", *BLOCKS)]
    writer = plugin(tmp_path / "out.db")
    names = list(next(row for row in outputs if row))
    expected = sorted(
        tuple(str(r[n]) if isinstance(r[n], int) and r[n] > 2**63 - 1 else r[n] for n in names) for r in truth
    )
    for task_id in ("task-1", "task-2"):
        result = await writer.write(context(task_id=task_id, blocks=BLOCKS), config(), Outputs(outputs))
        assert json.loads(result)["rowsWritten"] == 291
        rows = select(tmp_path / "out.db", f"SELECT {', '.join(names)} FROM t")
        assert sorted(rows, key=str) == sorted(expected, key=str)
    assert any(isinstance(row[3], str) for row in expected)
