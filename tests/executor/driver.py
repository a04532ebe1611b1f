"""A small blocking worker: starts one real executor process, sends it frames and waits for its frames.

Every wait has a deadline (`WAIT_S`) and fails with what has arrived so far, so a test that goes wrong says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from blockx_executor.wire.blackbox import BLACKBOX_BYTES, BlackBoxReading, read_blackbox
from blockx_executor.wire.framing import FrameDecoder, encode_frame, encode_sidecar
from blockx_executor.wire.messages import (
    CallCompleted,
    CallError,
    CallFailed,
    CallsReturned,
    CallWaiting,
    CancelCall,
    CancelCallPayload,
    ExecuteCall,
    ExecuteCallPayload,
    FromExecutor,
    FunctionCodeResult,
    Heartbeat,
    HeartbeatAck,
    HeartbeatAckPayload,
    ResumeCall,
    ResumeCallPayload,
    ToExecutor,
)
from blockx_executor.wire.userlog import UserLogLine, parse_log_line

WAIT_S = 10.0
LONG_BUDGET_MS = 60_000


def module(text: str) -> str:
    """A module's source from an indented literal."""
    return textwrap.dedent(text).lstrip("\n")


def command(socket_path: Path, *flags: str) -> list[str]:
    """The command line of an executor that connects to ``socket_path``."""
    return [
        sys.executable, "-m", "blockx_executor", "--executor-id", "exec-1", "--socket-path", str(socket_path),
        *flags,
    ]  # fmt: skip


class ExecutorDriver:
    """One executor and the worker's end of its link.

    Requests for code are answered from ``sources``; IO and subcalls by ``serve``, or kept in ``waits`` without it.
    Outcomes are offered to ``take`` first, which says whether it takes them.
    Calls that are given back are sent again at once, unless ``resends`` is off; all of them stand in ``returned``.
    """

    def __init__(self, link: socket.socket, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.link = link
        self.process = process
        self.folder = folder
        self.sources: dict[str, FunctionCodeResult] = {}
        self.code_requests: list[CallWaiting] = []
        self.answers_code = True
        self.waits: list[CallWaiting] = []
        self.serve: Callable[[CallWaiting], None] | None = None
        self.take: Callable[[CallCompleted | CallFailed], bool] = lambda _outcome: False
        self.resends = True
        self.returned: list[CallsReturned] = []
        self.sent: dict[str, ExecuteCall] = {}
        self.attempts: dict[str, int] = {}
        self.heartbeats: list[Heartbeat] = []
        self.others: list[CallCompleted | CallFailed] = []
        self._numbers = itertools.count(1)
        self._frames = FrameDecoder()
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(FromExecutor).decode

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, *messages: ToExecutor) -> None:
        self.link.sendall(b"".join(encode_frame(self._encode(message)) for message in messages))

    def send_raw(self, body: bytes) -> None:
        """Send one frame with any body."""
        self.link.sendall(encode_frame(body))

    def define(self, source: str) -> str:
        """Make the single module ``source`` known; its digest."""
        return self.define_package({"functions.py": source}, "functions.py")

    def define_package(self, files: dict[str, str], main: str) -> str:
        """Make these files known, whose functions are in ``main``; their digest."""
        digest = hashlib.sha256(repr((files, main)).encode()).hexdigest()
        self.sources[digest] = FunctionCodeResult(files=files, main=main)
        return digest

    def execute(
        self,
        digest: str,
        entry: str,
        *args: object,
        budget_ms: int = LONG_BUDGET_MS,
        task_id: str = "t-1",
        call_id: str | None = None,
        raw_args: bytes | None = None,
        parent: str | None = None,
    ) -> str:
        """Send an ExecuteCall; its call id."""
        message = self.execute_message(
            digest,
            entry,
            *args,
            budget_ms=budget_ms,
            task_id=task_id,
            call_id=call_id,
            raw_args=raw_args,
            parent=parent,
        )
        self.send(message)
        return message.call_id

    def execute_message(
        self,
        digest: str,
        entry: str,
        *args: object,
        budget_ms: int = LONG_BUDGET_MS,
        task_id: str = "t-1",
        call_id: str | None = None,
        raw_args: bytes | None = None,
        parent: str | None = None,
    ) -> ExecuteCall:
        number = next(self._numbers)
        call_id = call_id or f"{task_id}/c{number}"
        attempt = self.attempts[call_id] = self.attempts.get(call_id, 0) + 1
        payload = ExecuteCallPayload(
            task_id=task_id,
            function_id=f"functions.{entry}",
            function_code_digest=digest,
            entry_selector=entry,
            args=msgspec.Raw(msgspec.json.encode(args) if raw_args is None else raw_args),
            call_budget_ms=budget_ms,
            attempt_seq=attempt,
            call_no=number,
            parent_call_id=parent,
        )
        message = self.sent[call_id] = ExecuteCall(call_id, payload)
        return message

    def cancel(self, call_id: str, *, reason: str = "the task was cancelled", task_id: str = "t-1") -> None:
        payload = CancelCallPayload(task_id=task_id, attempt_seq=self.attempts[call_id], reason=reason)
        self.send(CancelCall(call_id, payload))

    def answer_code(
        self,
        waiting: CallWaiting,
        source: str | FunctionCodeResult | None = None,
        error: CallError | None = None,
    ) -> None:
        """Answer a request for code with ``source`` or ``error``."""
        if isinstance(source, str):
            source = FunctionCodeResult(files={"functions.py": source}, main="functions.py")
        self.resume(waiting, b"" if source is None else self._encode(source), error=error)

    def resume(
        self, waiting: CallWaiting, result: bytes = b"", *, error: CallError | None = None, used_ms: int = 0
    ) -> None:
        """Answer ``waiting`` with the JSON text ``result`` or with ``error``."""
        self.send(self.resume_message(waiting, result, error=error, used_ms=used_ms))

    def resume_message(
        self, waiting: CallWaiting, result: bytes = b"", *, error: CallError | None = None, used_ms: int = 0
    ) -> ResumeCall:
        payload = ResumeCallPayload(
            resume_kind=waiting.payload.wait_kind, error=error, budget_used_ms=used_ms
        )
        if result:  # an empty Raw other than the default would be written, as nothing
            payload = msgspec.structs.replace(payload, result=msgspec.Raw(result))
        return ResumeCall(waiting.call_id, waiting.request_id, payload)

    def resume_raw(self, waiting: CallWaiting, sidecar: bytes, *, used_ms: int = 0) -> None:
        """Answer ``waiting`` with raw bytes beside the message."""
        self.send_raw(encode_sidecar(self._encode(self.resume_message(waiting, used_ms=used_ms)), sidecar))

    # --- receiving ----------------------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], object], what: str = "what the test waits for") -> None:
        """Read frames until ``condition`` holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{what} did not come; arrived: {self.others}; stderr: {self.stderr()}")
            self.link.settimeout(left)
            with contextlib.suppress(TimeoutError):
                self._read()

    def _read(self) -> None:
        data = self.link.recv(1 << 18)
        if not data:
            raise EOFError(f"the executor closed the link; arrived: {self.others}; stderr: {self.stderr()}")
        for body in self._frames.feed(data):
            self._sort(self._decode(body))

    def _sort(self, message: FromExecutor) -> None:
        match message:
            case Heartbeat():
                self.heartbeats.append(message)
                self.send(HeartbeatAck(HeartbeatAckPayload(heartbeat_seq=message.payload.heartbeat_seq)))
            case CallWaiting():
                self._waiting(message)
            case CallsReturned():
                self.returned.append(message)
                if self.resends:
                    self.send(*(self.sent[call.call_id] for call in message.payload.calls))
            case _:
                if not self.take(message):
                    self.others.append(message)

    def _waiting(self, message: CallWaiting) -> None:
        if message.payload.wait_kind == "function_code":
            self.code_requests.append(message)
            if self.answers_code:
                self.answer_code(message, self.sources[message.payload.function_code_digest or ""])
        elif self.serve is not None:
            self.serve(message)
        else:
            self.waits.append(message)

    def wait(self, count: int = 1) -> list[CallWaiting]:
        """The next ``count`` requests for IO or subcalls, taken out of what has arrived."""
        self.wait_for(lambda: len(self.waits) >= count, f"{count} requests, not {len(self.waits)},")
        taken, self.waits[:count] = self.waits[:count], []
        return taken

    def outcome(self, call_id: str) -> CallCompleted | CallFailed:
        """The terminal frame of ``call_id``, taken out of what has arrived."""
        found: list[CallCompleted | CallFailed] = []

        def arrived() -> bool:
            found.extend(message for message in self.others if message.call_id == call_id)
            return bool(found)

        self.wait_for(arrived, f"the outcome of {call_id}")
        self.others.remove(found[0])
        return found[0]

    def value(self, call_id: str) -> object:
        """The decoded output of ``call_id``, which must have completed."""
        outcome = self.outcome(call_id)
        assert isinstance(outcome, CallCompleted), outcome
        return msgspec.json.decode(outcome.payload.output)

    def failure(self, call_id: str) -> CallFailed:
        """The failure of ``call_id``, which must have failed."""
        outcome = self.outcome(call_id)
        assert isinstance(outcome, CallFailed), outcome
        return outcome

    def call(self, digest: str, entry: str, *args: object, budget_ms: int = LONG_BUDGET_MS) -> object:
        """Run one call to its value."""
        return self.value(self.execute(digest, entry, *args, budget_ms=budget_ms))

    def fail(self, digest: str, entry: str, *args: object, budget_ms: int = LONG_BUDGET_MS) -> CallFailed:
        """Run one call to its failure."""
        return self.failure(self.execute(digest, entry, *args, budget_ms=budget_ms))

    # --- seen from outside --------------------------------------------------------------------------------------

    def blackbox(self) -> BlackBoxReading:
        return read_blackbox((self.folder / "blackbox").read_bytes())

    def log_lines(self) -> list[UserLogLine]:
        """All records of user output until now."""
        parsed = map(parse_log_line, (self.folder / "stdout").read_bytes().splitlines())
        return [line for line in parsed if line is not None]

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def wait_exit(self) -> int:
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.wait(WAIT_S)


def start(folder: Path, *flags: str, stdout: int | None = None) -> ExecutorDriver:
    """Start an executor whose files are in ``folder``; it has connected, and not said a word."""
    (folder / "blackbox").write_bytes(bytes(BLACKBOX_BYTES))
    path = folder / "link"
    own = ("--blackbox", str(folder / "blackbox"), "--parent-pid", str(os.getpid()))
    with (
        listening(path) as listener,
        (folder / "stdout").open("wb") as output,
        (folder / "stderr").open("wb") as errors,
    ):
        process = subprocess.Popen(
            command(path, *own, *flags),
            stdout=output if stdout is None else stdout,
            stderr=errors,
            start_new_session=True,
        )
        link, _ = listener.accept()
    return ExecutorDriver(link, process, folder)


def listening(path: Path) -> socket.socket:
    """A listener at ``path``."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(WAIT_S)
    return listener


@contextlib.contextmanager
def running_executor(*flags: str, stdout: int | None = None) -> Iterator[ExecutorDriver]:
    """An attached executor in a folder of its own (socket paths are short, so not pytest's)."""
    with tempfile.TemporaryDirectory(prefix="bx-") as folder:
        driver = start(Path(folder), *flags, stdout=stdout)
        try:
            driver.wait_for(lambda: driver.heartbeats)
            yield driver
        finally:
            driver.close()
