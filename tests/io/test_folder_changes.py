"""A folder of block tables that changes while a long read of it is under way."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockx_worker.io.folder
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.ports import BlockStoreError


def text(*blocks: int, value: str = "old") -> bytes:
    return b"".join(json.dumps({"block_number": b, "v": value}).encode() + b"\n" for b in blocks)


def started(folder: Path, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
    """A read that has handed out its first block."""
    blocks = FolderBlockStore(folder).read_blocks("t", first, last)
    assert next(blocks)[0] == first
    return blocks


def values(blocks: Iterator[tuple[int, list[bytes]]]) -> list[tuple[int, str]]:
    return [(block, json.loads(row)["v"]) for block, rows in blocks for row in rows]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_rows_that_are_appended_meanwhile_are_for_the_next_read(tmp_path, name) -> None:
    pack = gzip.compress if name.endswith("gz") else bytes
    (tmp_path / name).write_bytes(pack(text(1, 2, 3)))
    blocks = started(tmp_path, 1, 3)
    with (tmp_path / name).open("ab") as file:
        file.write(pack(text(2, 3, 4, value="new")))
    assert values(blocks) == [(2, "old"), (3, "old")]
    assert values(started(tmp_path, 1, 4)) == [(2, "old"), (2, "new"), (3, "old"), (3, "new"), (4, "new")]


def test_a_file_that_is_put_in_its_place_is_for_the_next_read(tmp_path) -> None:
    (tmp_path / "t.jsonl").write_bytes(text(1, 2, 3))
    blocks = started(tmp_path, 1, 3)
    (tmp_path / "new").write_bytes(text(1, 2, 3, value="new"))
    (tmp_path / "new").rename(tmp_path / "t.jsonl")
    assert values(blocks) == [(2, "old"), (3, "old")]


def test_a_file_that_is_removed_is_read_to_its_end(tmp_path) -> None:
    (tmp_path / "t.jsonl").write_bytes(text(1, 2, 3))
    blocks = started(tmp_path, 1, 3)
    (tmp_path / "t.jsonl").unlink()
    assert values(blocks) == [(2, "old"), (3, "old")]


@pytest.mark.parametrize("after", [b"", text(1), text(1, 2, 3, value="new"), text(1, 3, 2), text(1, 2, 2)])
def test_a_file_that_is_written_over_is_an_error_and_not_other_rows(tmp_path, after) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(text(1, 2, 3) + text(3) * 10_000)  # more than the file's buffer
    blocks = started(tmp_path, 1, 3)
    path.write_bytes(after.ljust(path.stat().st_size, b"\n"))
    with pytest.raises(
        BlockStoreError, match=r"t\.jsonl was changed while it was read: the rows of block \d"
    ):
        list(blocks)


def test_a_file_of_a_block_is_read_as_it_is_when_its_turn_comes(tmp_path) -> None:
    (tmp_path / "t").mkdir()
    for block in (1, 2, 3):
        (tmp_path / "t" / f"{block}.jsonl").write_bytes(text(block))
    blocks = started(tmp_path, 1, 3)
    (tmp_path / "t" / "3.jsonl").write_bytes(text(3, 3, value="new"))
    (tmp_path / "t" / "4.jsonl").write_bytes(text(4))
    assert values(blocks) == [(2, "old"), (3, "new"), (3, "new")]


@pytest.mark.parametrize("known", [True, False])
def test_a_file_of_a_block_that_is_gone_when_its_turn_comes_is_an_error(tmp_path, known) -> None:
    if known:
        (tmp_path / "blocks.jsonl").write_bytes(b"".join(b'{"number":%d}\n' % b for b in (1, 2, 3)))
    (tmp_path / "t").mkdir()
    for block in (1, 2, 3):
        (tmp_path / "t" / f"{block}.jsonl").write_bytes(text(block))
    blocks = started(tmp_path, 1, 3)
    (tmp_path / "t" / "3.jsonl").unlink()
    assert next(blocks)[0] == 2
    with pytest.raises(
        BlockStoreError, match=r"the file of block 3 in .* was removed while the table was read"
    ):
        next(blocks)


def test_only_files_named_by_a_block_number_are_blocks(tmp_path) -> None:
    (tmp_path / "t").mkdir()
    for name in (
        "1.jsonl",
        "2.jsonl.gz",
        "007.jsonl",
        "3.tmp.jsonl",
        "x.jsonl",
        "4.json",
        "9" * 30 + ".jsonl",
    ):
        (tmp_path / "t" / name).touch()
    assert list(FolderBlockStore(tmp_path).read_blocks("t", 1, 2)) == []
    for block in (3, 4, 7):
        with pytest.raises(BlockStoreError, match=f"block {block} is not in .* it holds 1 to 2"):
            list(FolderBlockStore(tmp_path).read_blocks("t", block, block))


def test_a_huge_range_is_answered_at_once(tmp_path) -> None:
    (tmp_path / "blocks.jsonl").write_bytes(b'{"number":0}\n{"number":1}\n')
    (tmp_path / "t.jsonl").write_bytes(text(0, 2**62))
    with pytest.raises(
        BlockStoreError, match=rf'block 2 \(and {2**62 - 2} more of the range\) is not in table "blocks"'
    ):
        list(FolderBlockStore(tmp_path).read_blocks("t", 0, 2**62))
    (tmp_path / "blocks.jsonl").unlink()
    assert [block for block, _ in FolderBlockStore(tmp_path).read_blocks("t", 0, 2**62)] == [0, 2**62]


def test_packed_blocks_out_of_order_have_a_largest_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blockx_worker.io.folder, "MAX_SCATTERED_BYTES", 100)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(text(3, 1, 2, 1, 3)))
    assert len(list(FolderBlockStore(tmp_path).read_blocks("t", 1, 1))) == 1
    with pytest.raises(
        BlockStoreError, match=r"t\.jsonl\.gz: its blocks are not in order.* sort it by block"
    ):
        list(FolderBlockStore(tmp_path).read_blocks("t", 1, 3))
