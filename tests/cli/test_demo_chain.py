"""The synthetic chain of the demo."""

from __future__ import annotations

import itertools
import json

from blockx_worker.cli.demo_chain import MAX_UINT256, DemoChain, is_erc20_transfer, write_chain


def test_the_same_seed_gives_the_same_chain_and_another_seed_another():
    assert list(DemoChain(7).blocks(20)) == list(DemoChain(7).blocks(20))
    assert list(DemoChain(7).blocks(20)) != list(DemoChain(8).blocks(20))


def test_every_row_says_that_it_is_synthetic():
    for block, logs in DemoChain().blocks():
        assert block["synthetic"] is True
        assert all(log["synthetic"] is True for log in logs)


def test_blocks_follow_one_another():
    for (before, _), (after, _) in itertools.pairwise(DemoChain().blocks()):
        assert after["number"] == before["number"] + 1  # type: ignore[operator]
        assert after["parent_hash"] == before["hash"]


def test_the_chain_has_all_that_the_example_must_cope_with():
    """Blocks without logs, logs that are no transfers, NFT transfers, and amounts of 256 bits."""
    blocks = list(DemoChain().blocks())
    logs = [log for _, block_logs in blocks for log in block_logs]
    transfers = [log for log in logs if is_erc20_transfer(log)]
    assert any(not block_logs for _, block_logs in blocks)
    assert 1000 < len(transfers) < len(logs)
    assert any(len(log["topics"]) == 4 for log in logs)  # type: ignore[arg-type]
    assert any(int(str(log["data"]), 16) == MAX_UINT256 for log in transfers)


def test_the_written_folder_holds_one_json_object_a_line(tmp_path):
    size = write_chain(tmp_path)
    blocks = [json.loads(line) for line in (tmp_path / "blocks.jsonl").read_text().splitlines()]
    logs = [json.loads(line) for line in (tmp_path / "logs.jsonl").read_text().splitlines()]
    assert (size.blocks, size.logs) == (len(blocks), len(logs)) == (200, len(logs))
    assert size.transfers == sum(map(is_erc20_transfer, logs))
    assert [log["block_number"] for log in logs] == sorted(log["block_number"] for log in logs)


def test_writing_again_changes_nothing(tmp_path):
    write_chain(tmp_path)
    before = (tmp_path / "logs.jsonl").read_bytes()
    write_chain(tmp_path)
    assert (tmp_path / "logs.jsonl").read_bytes() == before
