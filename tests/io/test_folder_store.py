"""Block tables in folders of JSON lines."""

import gzip
import json
from pathlib import Path

import pytest

import blockx_worker.io.block_index
import blockx_worker.io.folder
import blockx_worker.io.index_cache
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.ports import BlockStoreError


def lines(*rows: object) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows)


def row(block: int, i: int) -> dict[str, int]:
    return {"block_number": block, "i": i}


def put(folder: Path, name: str, *rows: object) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    text = lines(*rows)
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def read(folder: Path, table: str, first: int, last: int) -> list[tuple[int, int]]:
    rows = FolderBlockStore(folder).read_rows(table, first, last)
    return [(block, json.loads(text)["i"]) for block, text in rows]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_rows_of_one_file_come_in_order_of_block_and_line(tmp_path, name) -> None:
    put(tmp_path, name, row(7, 0), row(5, 1), row(5, 2), row(7, 3), row(6, 4), row(5, 5))
    assert read(tmp_path, "t", 5, 7) == [(5, 1), (5, 2), (5, 5), (6, 4), (7, 0), (7, 3)]
    assert read(tmp_path, "t", 6, 6) == [(6, 4)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_rows_of_one_file_a_block_come_in_order(tmp_path, suffix) -> None:
    put(tmp_path, f"t/10.{suffix}", row(10, 0), row(10, 1))
    put(tmp_path, f"t/9.{suffix}", row(9, 2))
    put(tmp_path, f"t/11.{suffix}")
    assert read(tmp_path, "t", 9, 11) == [(9, 2), (10, 0), (10, 1)]
    assert read(tmp_path, "t", 11, 11) == []


def test_rows_are_handed_on_as_their_text(tmp_path) -> None:
    text = b'{ "block_number":1,  "v": 115792089237316195423570985008687907853269984665640564039457584007913129639935,"f":1.10}'
    (tmp_path / "t.jsonl").write_bytes(b"\n" + text + b" \r\n\n" + text)
    assert list(FolderBlockStore(tmp_path).read_rows("t", 1, 1)) == [(1, text), (1, text)]


def test_the_block_of_a_block_is_its_number(tmp_path) -> None:
    put(tmp_path, "blocks.jsonl", {"number": 3, "i": 0}, {"number": 4, "i": 1})
    assert read(tmp_path, "blocks", 4, 4) == [(4, 1)]


def test_chunks_do_not_show(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blockx_worker.io.block_index, "CHUNK_BYTES", 64)
    put(tmp_path, "t.jsonl", *[row(i // 3, i) for i in range(100)])
    assert read(tmp_path, "t", 0, 33) == [(i // 3, i) for i in range(100)]


# --- blocks that are not there ----------------------------------------------------------------------------------


def test_with_a_blocks_table_a_block_without_rows_is_empty_and_an_unknown_one_is_an_error(tmp_path) -> None:
    put(tmp_path, "blocks.jsonl", *[{"number": n} for n in (1, 2, 3, 5)])
    put(tmp_path, "single.jsonl", row(2, 0))
    put(tmp_path, "each/2.jsonl", row(2, 0))
    for table in ("single", "each"):
        assert read(tmp_path, table, 1, 3) == [(2, 0)]
        with pytest.raises(BlockStoreError, match='block 4 is not in table "blocks": it holds 1 to 5'):
            read(tmp_path, table, 3, 5)
        with pytest.raises(BlockStoreError, match=r"block 6 \(and 93 more of the range\) is not in"):
            read(tmp_path, table, 5, 99)


def test_without_a_blocks_table_one_file_knows_its_first_to_last_block(tmp_path) -> None:
    put(tmp_path, "t.jsonl", row(10, 0), row(12, 1))
    assert read(tmp_path, "t", 10, 12) == [(10, 0), (12, 1)]
    assert read(tmp_path, "t", 11, 11) == []
    for first, last in ((9, 10), (12, 13)):
        with pytest.raises(BlockStoreError, match="holds blocks 10 to 12"):
            read(tmp_path, "t", first, last)
    put(tmp_path, "e.jsonl")
    with pytest.raises(BlockStoreError, match="holds no rows"):
        read(tmp_path, "e", 1, 1)


def test_without_a_blocks_table_a_missing_file_of_a_block_is_an_error(tmp_path) -> None:
    put(tmp_path, "t/5.jsonl", row(5, 0))
    with pytest.raises(
        BlockStoreError, match=r"block 6 is not in .*/t \(a block without rows needs an empty file\)"
    ):
        read(tmp_path, "t", 5, 6)


# --- what people get wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logz", "", "../t", ".hidden", "t.jsonl"])
def test_an_unknown_table_is_answered_with_those_that_exist(tmp_path, name) -> None:
    put(tmp_path, "logs.jsonl")
    put(tmp_path, "traces/1.jsonl")
    put(tmp_path, ".hidden.jsonl")
    with pytest.raises(BlockStoreError, match=f'no table "{name}" in .*, which holds logs, traces'):
        read(tmp_path, name, 1, 1)


def test_a_table_that_is_there_twice_is_ambiguous(tmp_path) -> None:
    put(tmp_path, "t.jsonl")
    put(tmp_path, "t/1.jsonl.gz")
    with pytest.raises(BlockStoreError, match=r"more than once in .*: t and t\.jsonl; remove all but one"):
        read(tmp_path, "t", 1, 1)
    put(tmp_path, "u/1.jsonl.gz", row(1, 0))
    put(tmp_path, "u/1.jsonl", row(1, 0))
    with pytest.raises(BlockStoreError, match="block 1 is there twice"):
        read(tmp_path, "u", 1, 1)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"block_number": 1', "truncated"),
        (b'{"i": 1}', "missing required field `block_number`"),
        (b'{"block_number": "1"}', "Expected `int`, got `str`"),
        (b'{"block_number": 1.0}', "Expected `int`, got `float`"),
        (b'{"block_number": -1}', ">= 0"),
        (b'{"block_number": 99999999999999999999}', "block_number"),
        (b'{"block_number": 1} {"block_number": 1}', "trailing characters"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"block_number": 1, "s": "\xff"}', "invalid start byte"),
        (b'{"block_number": 1, "s": NaN}', "malformed"),
        (b"\xef\xbb\xbf{}", "invalid character"),
        (b'{"block_number": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
    ],
)
def test_a_bad_row_names_file_line_and_reason(tmp_path, bad, reason) -> None:
    path = put(tmp_path, "t.jsonl", row(1, 0), b"", bad, row(1, 1))
    with pytest.raises(BlockStoreError) as caught:
        read(tmp_path, "t", 1, 1)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert reason in str(caught.value)


def test_a_row_of_another_block_in_a_blocks_file_is_an_error(tmp_path) -> None:
    put(tmp_path, "t/5.jsonl", row(5, 0), row(6, 1))
    with pytest.raises(BlockStoreError, match=r"5\.jsonl: holds a row of block 6; expected only block 5"):
        read(tmp_path, "t", 5, 5)


def test_files_that_cannot_be_read_are_named(tmp_path) -> None:
    with pytest.raises(BlockStoreError, match=r"/none cannot be read: No such file"):
        read(tmp_path / "none", "t", 1, 1)
    (tmp_path / "t.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(BlockStoreError, match="cannot be read: Not a gzipped file"):
        read(tmp_path, "t", 1, 1)
    (tmp_path / "u.jsonl.gz").write_bytes(gzip.compress(lines(*[row(1, i) for i in range(99)]))[:-20])
    with pytest.raises(BlockStoreError, match="cannot be read: "):
        read(tmp_path, "u", 1, 1)


# --- the index --------------------------------------------------------------------------------------------------


def test_many_tasks_over_one_file_read_it_once_until_it_changes(tmp_path, monkeypatch) -> None:
    built = []
    build = blockx_worker.io.block_index.build_index

    def counting(path, *rest):
        built.append(path.name)
        return build(path, *rest)

    monkeypatch.setattr(blockx_worker.io.index_cache, "build_index", counting)
    path = put(tmp_path, "t.jsonl", row(1, 0), row(2, 1))
    store = FolderBlockStore(tmp_path)
    for block in (1, 2, 1, 2):
        assert len(list(store.read_rows("t", block, block))) == 1
    assert built == ["t.jsonl"]
    put(tmp_path, ".new", row(1, 0), row(2, 1), row(2, 2)).rename(path)
    assert len(list(store.read_rows("t", 2, 2))) == 2
    assert built == ["t.jsonl", "t.jsonl"]


def test_a_file_that_keeps_changing_is_an_error_and_not_wrong_rows(tmp_path, monkeypatch) -> None:
    path = put(tmp_path, "t.jsonl", row(1, 0))
    opened = blockx_worker.io.block_index.open_lines

    def replaced_before_open(name):
        put(tmp_path, ".new", row(1, 0)).rename(path)
        return opened(name)

    monkeypatch.setattr(blockx_worker.io.folder, "open_lines", replaced_before_open)
    with pytest.raises(BlockStoreError, match="keeps changing while it is read"):
        read(tmp_path, "t", 1, 1)


def test_only_so_many_indexes_are_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blockx_worker.io.index_cache, "MAX_CACHED_INDEXES", 2)
    store = FolderBlockStore(tmp_path)
    for name in ("a", "b", "c"):
        put(tmp_path, f"{name}.jsonl", row(1, 0))
        assert len(list(store.read_rows(name, 1, 1))) == 1
    assert [path.name for path in store._indexes._indexes] == ["b.jsonl", "c.jsonl"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t/1.jsonl"])
def test_reading_ends_when_nobody_wants_the_rows(tmp_path, name) -> None:
    put(tmp_path, name, row(1, 0))
    with pytest.raises(BlockStoreError, match="interrupted"):
        list(FolderBlockStore(tmp_path).read_blocks("t", 1, 1, lambda: True))


def test_waiting_for_another_threads_index_can_end_early(tmp_path) -> None:
    path = put(tmp_path, "t.jsonl", row(1, 0))
    store = FolderBlockStore(tmp_path)
    with store._indexes._alone(path, lambda: False), pytest.raises(BlockStoreError, match="interrupted"):
        list(store.read_blocks("t", 1, 1, lambda: True))


def test_two_real_blocks(ethereum_blocks) -> None:
    store = FolderBlockStore(ethereum_blocks)
    assert store.tables() == ["blocks", "logs", "token_transfers", "transactions"]
    counts = {}
    for table in store.tables():
        for block, rows in store.read_blocks(table, 17173049, 17173050):
            counts[table, block] = len(rows)
    assert counts["blocks", 17173049] == counts["blocks", 17173050] == 1
    assert counts["logs", 17173049] + counts["logs", 17173050] == 681
    assert counts["transactions", 17173049] == 116
    with pytest.raises(BlockStoreError, match="it holds 17173049 to 17173050"):
        list(store.read_blocks("logs", 17173050, 17173051))
