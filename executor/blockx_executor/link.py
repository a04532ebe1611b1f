"""The link: the socket to the worker, and the one lock.

Whoever touches the socket or the scheduler holds ``lock``. The main thread holds it all the time but in two stretches:
while it is in user code and while it waits for the socket. The monitor takes it there, and only ever tries to.

Sending never blocks: what the socket does not take stays here in order, and `wait` watches for room as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import threading
import time
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from blockx_executor.wire import exit_codes
from blockx_executor.wire.framing import SIDECAR_MAGIC, FrameDecoder, FrameError, split_body
from blockx_executor.wire.json_rules import MAX_JSON_DEPTH
from blockx_executor.wire.messages import FromExecutor, ResumeCall, ToExecutor

__all__ = ["Incoming", "Link", "LinkLost", "MalformedFrame", "WithSidecar", "leave", "leave_without_link"]

_RECEIVE_BYTES: Final = 256 * 1024
_RECEIVE_ROUNDS: Final = 8
_READ_DEPTH: Final = MAX_JSON_DEPTH + 16
_BRACKET_OR_STRING: Final = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_CONGESTED_BYTES: Final = 1024 * 1024


class LinkLost(Exception):
    """The worker is gone, and with it the purpose of this process.

    ``closed_here``: it is this process that closed the descriptor.
    """

    def __init__(self, reason: str, *, closed_here: bool = False) -> None:
        super().__init__(reason)
        self.closed_here = closed_here


class MalformedFrame(Exception):
    """The worker sent something that is no message of ours."""


class WithSidecar(NamedTuple):
    """An answer and the raw bytes that came beside it."""

    message: ResumeCall
    sidecar: bytes


Incoming: TypeAlias = ToExecutor | WithSidecar


class Link:
    """A connected stream socket that carries frames of messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.lock = threading.Lock()
        self.queued = 0
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._frames = FrameDecoder()
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._unsent = memoryview(b"")
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(ToExecutor).decode

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that no more results should be made."""
        return len(self._unsent) + self._parts_bytes > _CONGESTED_BYTES

    @property
    def pending(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._parts or self._unsent)

    def send(self, message: FromExecutor) -> None:
        """Queue ``message``; `flush` sends it."""
        body = self._encode(message)
        self._parts += (len(body).to_bytes(4, "big"), body)
        self._parts_bytes += len(body)
        self.queued += 1

    def flush(self) -> None:
        """Send what the socket takes now; `LinkLost` when it is closed."""
        while self._unsent or self._parts:
            if not self._unsent:
                self._unsent = memoryview(b"".join(self._parts))
                self._parts.clear()
                self._parts_bytes = self.queued = 0
            self._unsent = self._unsent[self._send(self._unsent) :]
            if self._unsent:
                break

    def receive(self) -> list[Incoming]:
        """The messages that have arrived, without waiting; `LinkLost`, `MalformedFrame`."""
        messages: list[Incoming] = []
        for _ in range(_RECEIVE_ROUNDS):
            data = self._receive()
            try:
                messages += map(self._read, self._frames.feed(data))
            except FrameError as error:
                raise MalformedFrame(str(error)) from None
            if len(data) < _RECEIVE_BYTES:
                break
        return messages

    def _read(self, body: bytes) -> Incoming:
        try:
            return self._decode(body)
        except RecursionError:
            return self._read_deep(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if body.startswith(SIDECAR_MAGIC):
                return self._read_with_sidecar(body)
            raise _malformed(body, error) from None

    def _read_with_sidecar(self, body: bytes) -> WithSidecar:
        json, sidecar = split_body(body)
        message = self._read(json)
        if type(message) is not ResumeCall or sidecar is None:
            raise _malformed(body, FrameError("only a ResumeCall may have raw bytes beside it"))
        return WithSidecar(message, sidecar)

    def _read_deep(self, body: bytes) -> Incoming:
        """Arguments that nest too deep to be read must fail their call, not this process."""
        try:
            return self._decode(_without_depths(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(body, error) from None

    def wait(self, timeout_ms: float | None) -> None:
        """Wait, with the lock released, for something to read, or for room when something is unsent."""
        events = select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN
        self._poll.modify(self._sock, events)
        self.lock.release()
        try:
            self._poll.poll(timeout_ms)
        finally:
            self.lock.acquire()

    def drain(self, seconds: float) -> None:
        """Send all that is queued, waiting at most ``seconds``: the last words of a process."""
        deadline = time.monotonic() + seconds
        self._poll.modify(self._sock, select.POLLOUT)
        while self.pending and time.monotonic() < deadline:
            self.flush()
            self._poll.poll(10)

    def abandon(self) -> None:
        """In a forked child: close this end, which the parent goes on using."""
        self.lock = threading.Lock()
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def _send(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _lost(error) from None

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _lost(error) from None
        if not data:
            raise LinkLost("the worker closed the connection")
        return data


def _without_depths(body: bytes) -> bytes:
    """``body`` without what is nested deeper than any value may be; what is left is still too deep for a value."""
    parts: list[bytes] = []
    depth = start = 0
    for match in _BRACKET_OR_STRING.finditer(body):
        token = match[0]
        if token in b"[{":
            depth += 1
            if depth == _READ_DEPTH:
                parts.append(body[start : match.end()])
        elif token in b"]}":
            if depth == _READ_DEPTH:
                start = match.start()
            depth -= 1
    return b"".join((*parts, body[start:]))


def _lost(error: OSError) -> LinkLost:
    return LinkLost(str(error), closed_here=error.errno in (errno.EBADF, errno.ENOTSOCK))


def _malformed(body: bytes, error: Exception) -> MalformedFrame:
    shown = body[:120].decode("utf-8", "backslashreplace")
    return MalformedFrame(f"A frame of {len(body)} bytes is not a message: {error}. {shown!r}")


def leave_without_link(error: LinkLost) -> NoReturn:
    """End the process because its link is gone."""
    if error.closed_here:
        leave(
            exit_codes.LINK_CLOSED_HERE, f"Code that ran here closed the connection to the worker: {error}."
        )
    leave(exit_codes.LINK_LOST, f"The connection to the worker is lost: {error}.")


def leave(code: int, sentence: str) -> NoReturn:
    """End the process at once, from any thread; ``sentence`` goes to the real standard error."""
    if sentence:
        try:
            os.write(
                2,
                f"blockx-executor {os.getpid()}: {sentence} (exit {code})\n".encode(
                    errors="backslashreplace"
                ),
            )
        except OSError:
            code = code or exit_codes.LINK_LOST
    os._exit(code)
