"""Throughput and latency beside peers: ``python -m tests.bench`` or ``just bench``.

Everything is measured side by side in one run: in each round every system runs once, and what is quoted are medians of
rounds and of ratios within a round. Absolute numbers drift with the machine; the ratios hold.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bench import streams
from tests.bench.peers import BareFrames, BlockX, MultiprocessingPool, ProcessPool, System

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
PEER_CALLS = 20_000
REPORT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

_next = iter(range(10**12))


def fresh(count: int) -> range:
    """Numbers that were never used before."""
    first = next(_next)
    for _ in range(count - 1):
        next(_next)
    return range(first, first + count)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rate(system: System, count: int) -> float:
    numbers = fresh(count)
    return count / seconds(lambda: system.run(numbers))


def quantiles(times: list[float]) -> tuple[float, float]:
    """Median and 99th percentile in ms."""
    ordered = sorted(times)
    return statistics.median(ordered) * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def throughput(blockx: BlockX, peers: list[System], rounds: int) -> Iterator[str]:
    """Calls/s by size, and the peers."""
    for system in (blockx, *peers):
        rate(system, 2_000)  # warm
    by_size: dict[int, list[float]] = {size: [] for size in SIZES}
    by_peer: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for number in range(rounds):
        for size in SIZES:
            by_size[size].append(rate(blockx, size))
        for peer in peers:
            by_peer[peer.name].append(rate(peer, PEER_CALLS))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    yield "| system | calls | calls/s, median | spread | blockx at 30,000 calls / system, median of rounds |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for size, rates in by_size.items():
        yield f"| {blockx.name} | {size:,} | {statistics.median(rates):,.0f} | {spread(rates)} | |"
    for name, rates in by_peer.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(by_size[30_000], rates, strict=True))
        yield f"| {name} | {PEER_CALLS:,} | {statistics.median(rates):,.0f} | {spread(rates)} | {ratio:.2f} |"
    flat = statistics.median(
        big / small for big, small in zip(by_size[300_000], by_size[10_000], strict=True)
    )
    yield ""
    yield f"Rate at 300,000 calls over rate at 10,000 calls, median of pairs in one round: **{flat:.2f}**."


def spread(rates: list[float]) -> str:
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def one_call(blockx: BlockX, peers: list[System], count: int) -> Iterator[str]:
    """Latency of one call at a time, interleaved call by call."""
    times: dict[str, list[float]] = {system.name: [] for system in (blockx, *peers)}
    for _ in range(count):
        for system in (blockx, *peers):
            number = fresh(1)[0]
            times[system.name].append(seconds(partial(system.one, number)))
    yield "| system | p50 ms | p99 ms |"
    yield "| --- | ---: | ---: |"
    for name, values in times.items():
        p50, p99 = quantiles(values)
        yield f"| {name} | {p50:.2f} | {p99:.2f} |"


def unary_under_load(blockx: BlockX, rounds: int) -> Iterator[str]:
    """Latency of a unary RPC while the executors are saturated, beside the same RPC on an idle worker."""
    idle: list[float] = []
    loaded: list[float] = []
    for _ in range(rounds):
        idle += [seconds(blockx.client.GetWorkerStatus) for _ in range(100)]
        over = threading.Event()

        def load(over: threading.Event = over) -> None:
            task_id, _ = blockx.submit(fresh(300_000))
            blockx.client.wait(task_id, timeout=600)
            over.set()

        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(0.5)  # the upload is over, the calls run
        while not over.is_set():
            loaded.append(seconds(blockx.client.GetWorkerStatus))
            time.sleep(0.01)
        thread.join()
    yield "| GetWorkerStatus | requests | p50 ms | p99 ms |"
    yield "| --- | ---: | ---: | ---: |"
    for name, values in (("idle worker", idle), ("300,000 calls running", loaded)):
        p50, p99 = quantiles(values)
        yield f"| {name} | {len(values)} | {p50:.2f} | {p99:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    arguments = parser.parse_args()
    bare = BareFrames()  # forks: before any thread is there
    peers: list[System] = [ProcessPool(), MultiprocessingPool(), bare]
    blockx = BlockX()
    try:
        lines = [
            "# Benchmarks",
            "",
            "Made by `just bench --write`; read the ratios, not the absolute numbers.",
            "",
            (
                f"Machine: {os.cpu_count()} CPUs, Python {platform.python_version()}, two executor processes, "
                f"`f(i) → i + 1`, distinct arguments, every result checked. {arguments.rounds} rounds, interleaved."
            ),
            "",
            "## Throughput",
            "",
            *throughput(blockx, peers, arguments.rounds),
            "",
            (
                "The worker is used as its clients use it: submitted and watched through gRPC with the official client, "
                "which runs on the same two CPUs. The bare frame loop exchanges the same messages with blocking processes "
                "and does nothing else: no scheduling, no retries, no accounting, no gRPC."
            ),
            "",
            "## One call at a time",
            "",
            *one_call(blockx, peers, 500),
            "",
            "For the worker that is one task: `SubmitTask` with `wait_ms`, the output in its answer.",
            "",
            "## Requests while the worker is busy",
            "",
            *unary_under_load(blockx, min(arguments.rounds, 3)),
        ]
    finally:
        for system in (blockx, *peers):
            system.close()
    lines += [
        "",
        "## Streams",
        "",
        "Every row of a block table becomes a call; the worker reads the table while the calls run.",
        "",
        *streams.measure(min(arguments.rounds, 3)),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        REPORT.write_text(text)


if __name__ == "__main__":
    main()
