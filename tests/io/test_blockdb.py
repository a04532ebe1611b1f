"""The back end over block stores: rows as they stand, sidecars, limits, and the store's own sentences."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing

from blockx_worker.io.blockdb import BlockDbBackend, BlockDbLimits
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.ports import BlockStoreError, IoAnswer
from blockx_worker.surroundings import WorkerThreads
from tests.io.io_fakes import problem

BIG = 2**256 - 1


@pytest.fixture
def folder(tmp_path):
    rows = [(1, "a"), (1, BIG), (3, "c"), (5, "e" * 1000)]
    lines = [json.dumps({"block_number": block, "v": value}) for block, value in rows]
    (tmp_path / "logs.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def ask(folder) -> Callable[..., Awaitable[IoAnswer]]:
    async def ask(**fields):
        return await backend(FolderBlockStore(folder)).request("rows", json.dumps(fields).encode())

    return ask


def backend(store, *, max_blocks=100, max_answer_bytes=10_000, sidecar_bytes=500) -> BlockDbBackend:
    limits = BlockDbLimits(
        max_blocks=max_blocks, max_answer_bytes=max_answer_bytes, sidecar_bytes=sidecar_bytes
    )
    return BlockDbBackend("blockdb", store, WorkerThreads(), limits)


async def test_the_rows_of_a_block_come_as_the_text_in_which_they_stand(ask):
    answer = await ask(table="logs", block=1)
    assert answer.result == b'[{"block_number": 1, "v": "a"},{"block_number": 1, "v": %d}]' % BIG


async def test_a_range_is_inclusive_and_in_order(ask):
    assert [
        row["block_number"] for row in json.loads((await ask(table="logs", **{"from": 1, "to": 4})).result)
    ] == [
        1,
        1,
        3,
    ]


async def test_a_block_without_rows_is_an_empty_list(ask):
    assert (await ask(table="logs", block=2)).result == b"[]"


async def test_above_a_size_the_same_text_comes_as_a_sidecar(ask):
    answer = await ask(table="logs", block=5)
    assert answer.result is None
    assert json.loads(answer.sidecar) == [{"block_number": 5, "v": "e" * 1000}]


@pytest.mark.parametrize(("sidecar_bytes", "beside"), [(31, False), (30, True), (0, True)])
async def test_the_size_is_that_of_the_text(folder, sidecar_bytes, beside):
    rows = backend(FolderBlockStore(folder), sidecar_bytes=sidecar_bytes)
    answer = await rows.request("rows", b'{"table":"logs","block":3}')
    assert len(b'[{"block_number": 3, "v": "c"}]') == 31
    assert (answer.sidecar is not None) == beside


async def test_rows_above_the_largest_answer_are_an_error_that_says_what_to_do(folder):
    rows = backend(FolderBlockStore(folder), max_answer_bytes=500)
    answer = await rows.request("rows", b'{"table":"logs","from":1,"to":5}')
    assert problem(answer).kind == "IO_ANSWER_TOO_LARGE"
    assert "table logs from block 1 to 5 have more than 500 bytes" in problem(answer).message
    assert "ask for fewer blocks at a time" in problem(answer).message


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"table": "logz", "block": 1}, "TABLE_NOT_FOUND", 'no table "logz" in '),
        ({"table": "../logs", "block": 1}, "TABLE_NOT_FOUND", 'no table "../logs" in '),
        ({"table": "logs", "block": 9}, "BLOCK_NOT_FOUND", "blocks 9 to 9 are not all there"),
        ({"table": "logs", "from": 0, "to": 2}, "BLOCK_NOT_FOUND", "blocks 0 to 2 are not all there"),
        ({"block": 1}, "IO_BAD_REQUEST", "blockdb.table: is missing: expected the name of a table"),
        ({"table": "logs"}, "IO_BAD_REQUEST", "blockdb.from: is missing: expected an integer"),
        ({"table": "logs", "from": 1}, "IO_BAD_REQUEST", "blockdb.to: is missing"),
        ({"table": "logs", "block": 1, "to": 2}, "IO_BAD_REQUEST", "blockdb.to: cannot stand beside block"),
        (
            {"table": "logs", "from": 3, "to": 2},
            "IO_BAD_REQUEST",
            "blockdb.to: expected at least 3 (from), got 2",
        ),
        (
            {"table": "logs", "from": 1, "to": 101},
            "IO_BAD_REQUEST",
            "101 blocks are more than the 100 of one request",
        ),
        (
            {"table": "logs", "block": "1"},
            "IO_BAD_REQUEST",
            'blockdb.block: expected an integer ≥ 0, got "1"',
        ),
        ({"table": "logs", "blok": 1}, "IO_BAD_REQUEST", "blockdb.blok: unknown field: did you mean block?"),
    ],
)
async def test_what_cannot_be_had_is_an_error_with_a_kind_and_a_sentence(ask, fields, kind, message):
    answer = await ask(**fields)
    assert (problem(answer).kind, problem(answer).retryable) == (kind, False)
    assert message in problem(answer).message


async def test_with_a_table_of_blocks_a_missing_block_is_named(folder, ask):
    (folder / "blocks.jsonl").write_text('{"number": 1}\n')
    answer = await ask(table="logs", block=2)
    assert problem(answer).kind == "BLOCK_NOT_FOUND"
    assert problem(answer).message.startswith('block 2 is not in table "blocks"')


async def test_another_trouble_of_the_store_is_a_store_error(folder, ask):
    (folder / "logs.jsonl").write_text('{"block_number": 1}\n{"block_number"\n')
    answer = await ask(table="logs", block=1)
    assert problem(answer).kind == "STORE_ERROR"
    assert "logs.jsonl, line 2" in problem(answer).message


async def test_an_unknown_operation_is_named(folder):
    answer = await backend(FolderBlockStore(folder)).request("raws", b"{}")
    assert problem(answer).message == 'blockdb has no operation "raws"; it has rows'


async def test_a_request_that_nobody_waits_for_interrupts_the_store():
    begun, ended = trio.Event(), []
    threads = WorkerThreads()

    class Endless:
        def read_blocks(
            self, table: str, first: int, last: int, interrupted: Callable[[], bool] = lambda: False
        ) -> Iterator[tuple[int, list[bytes]]]:
            threads.call_back(begun.set)
            for block in range(10**9):
                if interrupted():
                    ended.append(threading.current_thread())
                    raise BlockStoreError("interrupted")
                yield block, []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend(Endless()).request, "rows", b'{"table":"t","block":1}')
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert len(ended) == 1
    assert ended[0] is not threading.current_thread()
