"""Streamed tasks of growing length: ``python -m tests.bench.streams``. Rate and memory must not depend on the length.

Each row of a block table becomes a call and its value comes back; the sum of all values is checked. The lengths are
interleaved, and the ratio quoted is the median of pairs in one round: absolute numbers drift with the machine.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tests.support.official import OfficialClient, state_name, typed
from tests.support.worker_process import WorkerProcess, memory, peak_memory, reset_peak_memory

SIZES = (100_000, 1_000_000)
ROWS_PER_BLOCK = 100
WRITTEN_CALLS = 300_000
FUNCTIONS = {
    "numbers": """
def value(row):
    return 3 * row["i"] + 1

def row(row):
    return {"block_number": row["block_number"], "i": row["i"], "value": 3 * row["i"] + 1}
"""
}


def write_table(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for i in range(rows):
            file.write(f'{{"block_number":{i // ROWS_PER_BLOCK},"i":{i}}}\n')


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; it tells more than the rate where others use the machine too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(client: OfficialClient, task_id: str, calls: int) -> float:
    """Calls/s of a task over the first rows."""
    config = {
        "functionId": "numbers.value",
        "block": {"from": 0, "to": calls // ROWS_PER_BLOCK - 1},
        "triggerSources": ["numbers"],
    }
    started = time.perf_counter()
    client.SubmitTask(
        task_id=task_id,
        function_call_config=typed("BlockTableCallConfig", config),
        result_handler=typed("ReturnValueResultHandler", {}),
    )
    total = 0
    for event in client.WatchTasks(task_ids=[task_id], rpc_timeout=600):
        kind = event.WhichOneof("event")
        if kind == "outputs":
            lines = event.outputs.json_lines.rstrip(b"\n").replace(b"\n", b",")
            total += sum(msgspec.json.decode(b"[%b]" % lines))
        elif kind == "result":
            assert state_name(event.result.state) == "SUCCEEDED", event.result
    elapsed = time.perf_counter() - started
    assert total == 3 * calls * (calls - 1) // 2 + calls, "wrong results"
    return calls / elapsed


def run_written(client: OfficialClient, task_id: str, database: Path) -> float:
    """Calls/s of a task that reads a table, calls a function for each row and writes each result to SQLite."""
    started = time.perf_counter()
    client.submit_table(
        task_id,
        "numbers.row",
        {"from": 0, "to": WRITTEN_CALLS // ROWS_PER_BLOCK - 1},
        ["numbers"],
        {"target": f"sqlite:///{database}", "table": task_id.replace("-", "_"), "mode": "append"},
    )
    result = client.wait(task_id, timeout=600)
    elapsed = time.perf_counter() - started
    assert state_name(result.state) == "SUCCEEDED", result
    with closing(sqlite3.connect(database)) as connection:
        query = f"SELECT count(*), sum(value) FROM {task_id.replace('-', '_')}"
        expected = (WRITTEN_CALLS, 3 * WRITTEN_CALLS * (WRITTEN_CALLS - 1) // 2 + WRITTEN_CALLS)
        assert connection.execute(query).fetchone() == expected, "wrong rows"
    return WRITTEN_CALLS / elapsed


def measure(rounds: int) -> Iterator[str]:
    """Run everything; the lines of the report."""
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    cpu_us: dict[int, list[float]] = {size: [] for size in SIZES}
    peaks = dict.fromkeys(SIZES, 0)
    written: list[float] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "blocks").mkdir()
        write_table(folder / "blocks" / "numbers.jsonl", max(SIZES))
        with (
            WorkerProcess(folder, FUNCTIONS, executors=2, blocks=folder / "blocks") as worker,
            OfficialClient(worker.address) as client,
        ):
            run(client, "warm", 20_000)
            idle = memory(worker.pid)
            for number in range(rounds):
                for size in SIZES:
                    reset_peak_memory(worker.pid)
                    used = cpu_seconds(worker.pid)
                    rates[size].append(run(client, f"{number}-{size}", size))
                    cpu_us[size].append((cpu_seconds(worker.pid) - used) / size * 1e6)
                    peaks[size] = max(peaks[size], peak_memory(worker.pid) - idle)
                written.append(run_written(client, f"written-{number}", folder / "written.db"))
    yield "| calls | calls/s, median | CPU of the worker for a call, µs | peak memory above idle, MiB |"
    yield "| ---: | ---: | ---: | ---: |"
    for size in SIZES:
        rate, cpu = statistics.median(rates[size]), statistics.median(cpu_us[size])
        yield f"| {size:,} | {rate:,.0f} | {cpu:.1f} | {peaks[size] / 2**20:.0f} |"
    small, large = (rates[size] for size in SIZES)
    ratio = statistics.median(b / a for a, b in zip(small, large, strict=True))
    yield ""
    yield f"Rate at {max(SIZES):,} calls over that at {min(SIZES):,}, median of pairs in one round: **{ratio:.2f}**."
    yield f"With each result written to SQLite meanwhile, {WRITTEN_CALLS:,} calls: {statistics.median(written):,.0f} calls/s."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    for line in measure(parser.parse_args().rounds):
        print(line)


if __name__ == "__main__":
    main()
