"""Results of 200 MB through the official client with its default limits, beside readers that do not read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess

MIB = 1024 * 1024
LINES = 200
LINE_BYTES = MIB + 3  # quotes and line feed
TOTAL = LINES * LINE_BYTES
CLIENT_LIMIT = 4 * MIB
FILLING = b"x" * (MIB - 4) + b'"'

FUNCTIONS = """
def megabyte(number):
    return f"{number:04}" + "x" * (1024 * 1024 - 4)


def small(number):
    return number
"""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS})


@pytest.fixture(scope="module")
def result(client: OfficialClient) -> str:
    """A task with 200 MB of outputs that has ended; its id."""
    client.submit_calls("big", "f.megabyte", [[number] for number in range(LINES)])
    ended = client.wait("big")
    assert (state_name(ended.state), ended.output_count, ended.output_bytes) == ("SUCCEEDED", LINES, TOTAL)
    return "big"


@pytest.fixture
def stalled(worker: WorkerProcess, result: str) -> Iterator[list[Any]]:
    """Watches of the big task, one on a connection of its own and three that share one, of which nobody reads."""
    with own_connection(worker) as alone, own_connection(worker) as shared:
        watches = [alone.WatchTasks(task_ids=[result], rpc_timeout=None)]
        watches += [shared.WatchTasks(task_ids=[result], observe=True, rpc_timeout=None) for _ in range(3)]
        for watch in watches:
            next(watch)  # the stream is open: the worker is about to send the outputs
        yield watches
        for watch in watches:
            watch.cancel()


def test_pages_bring_all_of_it_beside_readers_that_do_not_read(client, worker, result, stalled):
    """Every byte in order, no page above the client's limit; the stalled watches cost a window each, not a copy."""
    before = resident(worker)
    check = LineCheck()
    offset = 0
    while True:
        page = client.GetTaskResult(task_id=result, output_offset=offset)
        assert page.ByteSize() < CLIENT_LIMIT
        if not page.HasField("outputs"):
            break
        assert page.outputs.offset == offset
        check.take(page.outputs)
        offset = page.next_offset
    assert (offset, check.lines) == (TOTAL, LINES)
    assert resident(worker) - before < 32 * MIB
    assert all(watch.is_active() for watch in stalled)


def test_a_watch_brings_all_of_it_beside_readers_that_do_not_read(client, result, stalled):
    """Outputs in order, then the result, and the stream ends."""
    check = LineCheck()
    kinds = []
    for event in client.WatchTasks(task_ids=[result]):
        assert event.ByteSize() < CLIENT_LIMIT
        kinds.append(event.WhichOneof("event"))
        if kinds[-1] == "outputs":
            check.take(event.outputs)
    assert check.lines == LINES
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("snapshot", "result", {"outputs"})
    assert all(watch.is_active() for watch in stalled)


def test_a_reader_that_wakes_up_gets_the_rest(stalled):
    """A slow reader has lost nothing, also on a connection that others fill who go on sleeping."""
    check = LineCheck()
    for event in stalled[2]:
        if event.WhichOneof("event") == "outputs":
            check.take(event.outputs)
    assert check.lines == LINES


def test_other_work_goes_on_while_the_big_result_is_read(client, worker, result, stalled):
    """Tasks and unary calls of another client are answered all the while."""
    reading = threading.Event()
    read = 0

    def read_all() -> None:
        nonlocal read
        for page in client.pages(result):
            read += len(page)
            reading.set()

    reader = threading.Thread(target=read_all)
    with own_connection(worker) as other:
        reader.start()
        reading.wait(10)
        served = 0
        while reader.is_alive():
            reply = other.submit_calls(f"beside-{served}", "f.small", [[served]], wait_ms=10_000)
            assert reply.outputs == b"%d\n" % served
            other.GetWorkerStatus(rpc_timeout=5)
            served += 1
    reader.join()
    assert read == TOTAL
    assert served > 0


def test_a_page_may_begin_anywhere(client, result):
    """At any byte, also inside a line or a page; the index says which call it belongs to."""
    for offset in (0, 1, LINE_BYTES - 1, LINE_BYTES, 7 * LINE_BYTES + 5, TOTAL - 1):
        chunk = client.GetTaskResult(task_id=result, output_offset=offset).outputs
        assert (chunk.offset, chunk.first_index) == (offset, offset // LINE_BYTES)
        assert chunk.json_lines
    assert chunk.json_lines == b"\n"


def test_a_watch_that_is_cut_off_in_the_middle_leaves_the_worker_as_it_was(worker, client, result):
    """Clients that vanish while the worker sends to them are nobody's fault: no error in the log, others go on."""
    for _ in range(5):
        with own_connection(worker) as doomed:
            watch = doomed.WatchTasks(task_ids=[result], rpc_timeout=None)
            for event in watch:
                if event.WhichOneof("event") == "outputs":
                    break
    assert client.submit_calls("after-cuts", "f.small", [[1]], wait_ms=30_000).outputs == b"1\n"
    assert worker.errors() == []


class LineCheck:
    """Judges outputs as they come, without keeping them: line ``n`` is the output of call ``n``, whole."""

    def __init__(self) -> None:
        self.lines = 0
        self._rest = b""

    def take(self, chunk: Any) -> None:
        """The next piece."""
        assert chunk.first_index == self.lines
        assert chunk.count == chunk.json_lines.count(b"\n")
        *whole, self._rest = (self._rest + chunk.json_lines).split(b"\n")
        for line in whole:
            assert line == b'"%04d' % self.lines + FILLING, f"line {self.lines} is another: {line[:20]!r}…"
            self.lines += 1


def own_connection(worker: WorkerProcess) -> OfficialClient:
    """A client that shares no connection with the others of this process; otherwise as it comes."""
    return OfficialClient(worker.address, **{"grpc.use_local_subchannel_pool": 1})


def resident(worker: WorkerProcess) -> int:
    """Memory of the worker now, in bytes."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
