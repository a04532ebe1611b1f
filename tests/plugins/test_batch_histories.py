"""Whatever way a task's outputs are split, cut off and run again, the table holds what one undisturbed run would leave."""

import json
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from blockx_worker.plugins.block_write import BlockWritePlugin
from blockx_worker.ports import WriteStopped
from tests.plugins.helpers import Gate, config, context, execute, plugin, select

FIRST, LAST = 10, 16

blocks_of_calls = st.lists(st.integers(FIRST, LAST), max_size=12).map(sorted)
rows_of_calls = st.lists(st.integers(0, 3), min_size=12, max_size=12)
cuts = st.lists(st.integers(1, 5), min_size=1, max_size=12)
runs = st.lists(
    st.tuples(cuts, st.integers(0, 4), st.integers(0, 6)), max_size=3
)  # sizes of batches, how many, commits


def _outputs(blocks: list[int], counts: list[int]) -> list[bytes]:
    """One output a call; each row says which call made it, and which of its rows it is."""
    return [
        json.dumps([{"block_number": block, "v": f"{call}.{i}"} for i in range(counts[call])]).encode()
        for call, block in enumerate(blocks)
    ]


def _batches(
    outputs: list[bytes], blocks: list[int], sizes: list[int]
) -> list[tuple[int, list[bytes], int | None]]:
    """Batches of these sizes (the last one again and again), with the block up to which they are complete."""
    batches: list[tuple[int, list[bytes], int | None]] = []
    start = 0
    while start < len(outputs):
        end = start + sizes[min(len(batches), len(sizes) - 1)]
        done = blocks[end] - 1 if end < len(blocks) else LAST
        batches.append((start, outputs[start:end], done))
        start = end
    return batches


async def _run(
    writer: BlockWritePlugin,
    batches: list[tuple[int, list[bytes], int | None]],
    gate: Gate,
    **fields: Any,
) -> None:
    batch_writer = writer.open(context(gate, blocks=(FIRST, LAST)), config(**fields))
    try:
        for batch in batches:
            await batch_writer.write(*batch)
    except WriteStopped:
        await batch_writer.abort()
        return
    await (batch_writer.finish() if gate.refuse_at is None else batch_writer.abort())


def _history(
    path: Path,
    outputs: list[bytes],
    blocks: list[int],
    disturbed: list[tuple[list[int], int, int]],
    **fields: Any,
) -> None:
    """Runs that are cut off after some batches or some commits, and then one that is not."""
    writer = plugin(path, batch_rows=4)
    run: Callable[..., Awaitable[None]] = partial(_run, writer, **fields)

    async def play() -> None:
        for sizes, count, commits in disturbed:
            await run(_batches(outputs, blocks, sizes)[:count], Gate(refuse_at=commits))
        await run(_batches(outputs, blocks, disturbed[0][0] if disturbed else [3]), Gate())

    trio.run(play)


@settings(max_examples=40, deadline=None)
@given(blocks=blocks_of_calls, counts=rows_of_calls, disturbed=runs)
def test_append_writes_each_row_once_and_in_order(blocks, counts, disturbed) -> None:
    outputs = _outputs(blocks, counts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.db"
        execute(path, "CREATE TABLE t (block_number, v)")
        _history(path, outputs, blocks, disturbed, mode="append")
        written = [v for (v,) in select(path, "SELECT v FROM t ORDER BY rowid")]
    assert written == [row["v"] for output in outputs for row in json.loads(output)]


@settings(max_examples=40, deadline=None)
@given(blocks=blocks_of_calls, counts=rows_of_calls, disturbed=runs)
def test_replace_leaves_the_rows_of_the_task_and_those_of_other_blocks(blocks, counts, disturbed) -> None:
    outputs = _outputs(blocks, counts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.db"
        execute(path, "CREATE TABLE t (block_number, v)")
        for block in range(FIRST - 1, LAST + 2):
            execute(path, f"INSERT INTO t VALUES ({block}, 'old')")
        _history(path, outputs, blocks, disturbed)
        found = select(path, "SELECT block_number, v FROM t ORDER BY block_number, rowid")
    new = [(row["block_number"], row["v"]) for output in outputs for row in json.loads(output)]
    assert found == [(FIRST - 1, "old"), *new, (LAST + 1, "old")]
