"""The systems that the worker is measured beside, each doing the same: ``f(i) -> i + 1``, every call on its own.

A system has ``run(numbers)``, which returns once all results are there and checked, and ``one(number)``. Two processes
each. Arguments are never used twice, so nothing that remembers results can cut the work short.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import select
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec

from blockx_executor.wire.framing import FrameDecoder, encode_frame, join_frames
from blockx_executor.wire.messages import (
    CallCompleted,
    CallCompletedPayload,
    ExecuteCall,
    ExecuteCallPayload,
    FromExecutor,
)
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess

PROCESSES = 2
FUNCTIONS = {"bench": "def increment(i):\n    return i + 1\n"}


def increment(i: int) -> int:
    """As close to nothing as a Python function gets."""
    return i + 1


class System(Protocol):
    """Something that runs calls."""

    name: str

    def run(self, numbers: range) -> None: ...
    def one(self, number: int) -> None: ...
    def close(self) -> None: ...


class BlockX:
    """This worker, through gRPC, with the official client."""

    name = "blockx worker"

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self.worker = WorkerProcess(Path(self._folder.name), FUNCTIONS, executors=PROCESSES)
        self.worker.start()
        self.client = OfficialClient(self.worker.address)
        self._tasks = 0

    def submit(self, numbers: Iterable[int], **fields: object) -> tuple[str, object]:
        self._tasks += 1
        task_id = f"bench-{self._tasks}"
        args = b"[" + b",".join([b"[%d]" % number for number in numbers]) + b"]"
        return task_id, self.client.submit_calls(task_id, "bench.increment", args, **fields)

    def run(self, numbers: range) -> None:
        task_id, _ = self.submit(numbers)
        text = b""
        for event in self.client.WatchTasks(task_ids=[task_id], rpc_timeout=600):
            kind = event.WhichOneof("event")
            if kind == "outputs":
                text += event.outputs.json_lines
            elif kind == "result":
                assert state_name(event.result.state) == "SUCCEEDED", event.result
        assert text == b"".join([b"%d\n" % (number + 1) for number in numbers]), "wrong results"

    def one(self, number: int) -> None:
        _, reply = self.submit([number], wait_ms=10_000)
        assert reply.outputs == b"%d\n" % (number + 1)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.client.close()
        self.worker.terminate()
        self.worker.wait()
        self._folder.cleanup()


class ProcessPool:
    """`concurrent.futures.ProcessPoolExecutor`, one call a message."""

    name = "ProcessPoolExecutor"

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pool = concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context)

    def run(self, numbers: range) -> None:
        assert list(self._pool.map(increment, numbers)) == [number + 1 for number in numbers]

    def one(self, number: int) -> None:
        assert self._pool.submit(increment, number).result() == number + 1

    def close(self) -> None:
        self._pool.shutdown()


class MultiprocessingPool:
    """`multiprocessing.Pool`, one call a message."""

    name = "multiprocessing.Pool"

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("forkserver").Pool(PROCESSES)

    def run(self, numbers: range) -> None:
        assert sum(self._pool.imap_unordered(increment, numbers)) == sum(numbers) + len(numbers)

    def one(self, number: int) -> None:
        assert self._pool.apply(increment, (number,)) == number + 1

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


class BareFrames:
    """The floor: blocking processes that exchange the worker's own frames; nothing schedules, retries or accounts."""

    name = "bare frame loop"
    _window = 256
    _per_send = 64

    def __init__(self) -> None:
        self._children = [_fork_child() for _ in range(PROCESSES)]
        self._decoders = [FrameDecoder() for _ in self._children]
        self._decode = msgspec.json.Decoder(FromExecutor).decode

    def run(self, numbers: range) -> None:
        assert sum(self._exchange(numbers)) == sum(numbers) + len(numbers)

    def one(self, number: int) -> None:
        assert self._exchange(range(number, number + 1)) == [number + 1]

    def _exchange(self, numbers: range) -> list[int]:
        position, results = 0, list[int]()
        inflight = [0] * len(self._children)
        while len(results) < len(numbers):
            for index, (link, _) in enumerate(self._children):
                while position < len(numbers) and inflight[index] + self._per_send <= self._window:
                    part = numbers[position : position + self._per_send]
                    link.sendall(join_frames([_encode(_call(number)) for number in part]))
                    position += len(part)
                    inflight[index] += len(part)
            links = [link for link, _ in self._children]
            for link in select.select(links, [], [])[0]:
                index = links.index(link)
                for body in self._decoders[index].feed(link.recv(262_144)):
                    results.append(int(bytes(self._decode(body).payload.output)))  # type: ignore[union-attr]
                    inflight[index] -= 1
        return results

    def close(self) -> None:
        for link, pid in self._children:
            link.close()
            os.kill(
                pid, signal.SIGKILL
            )  # the later child holds a copy of the earlier one's link: no end of file
            os.waitpid(pid, 0)


_encode = msgspec.json.Encoder().encode
_DIGEST = "0" * 64


def _call(number: int) -> ExecuteCall:
    payload = ExecuteCallPayload(
        task_id="bench-task",
        function_id="bench.increment",
        function_code_digest=_DIGEST,
        entry_selector="increment",
        args=msgspec.Raw(b"[%d]" % number),
        call_budget_ms=5000,
        attempt_seq=1,
        call_no=number,
    )
    return ExecuteCall(f"bench-task/{number}", payload)


def _fork_child() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve(theirs)
        os._exit(0)
    theirs.close()
    return ours, pid


def _serve(link: socket.socket) -> None:
    decode = msgspec.json.Decoder(ExecuteCall).decode
    decode_args = msgspec.json.Decoder(list[int]).decode
    decoder = FrameDecoder()
    while data := link.recv(262_144):
        answers = []
        for body in decoder.feed(data):
            call = decode(body)
            output = msgspec.Raw(_encode(increment(*decode_args(call.payload.args))))
            payload = CallCompletedPayload(task_id=call.payload.task_id, attempt_seq=1, output=output)
            answers.append(encode_frame(_encode(CallCompleted(call.call_id, payload))))
        link.sendall(b"".join(answers))
