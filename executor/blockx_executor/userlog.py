"""User output: print, sys.stderr and logging become records on the process's real standard output.

It must never harm a call. It is masked against interrupts, so that no record is torn and no lock stays taken; it
raises nothing into user code; and it does not wait for a reader that does not read: a pipe is asked for room before
each piece, and a record that finds none within a moment is dropped and counted. Above the rate limit lines are
dropped and counted too, and one line says how many.

A line that is not finished yet belongs to its call, so that calls that take turns do not mix theirs.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from blockx_executor.calls import Call
from blockx_executor.mainthread import MainThread
from blockx_executor.wire.userlog import UserLogLine, encode_log_line

__all__ = ["LogWriter", "UserStream", "install_user_output"]

_MAX_LINE_CHARS: Final = 8 * 1024
_BURST_SECONDS: Final = 5
_PIECE_BYTES: Final = 4096  # PIPE_BUF: a pipe that has room at all takes that much without blocking
_ROOM_WAIT_MS: Final = 50


class LogWriter:
    """Writes records to one file descriptor; safe from every thread."""

    def __init__(self, main: MainThread, *, descriptor: int, lines_per_s: int) -> None:
        self._main = main
        self._descriptor = descriptor
        self._rate = lines_per_s
        self._burst = lines_per_s * _BURST_SECONDS
        self._tokens = float(self._burst)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._torn = False
        self._stalled = False
        self._loose: dict[str, str | None] = {}
        self._lock = threading.RLock()  # a destructor that prints may run inside a write
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def write(self, stream: str, text: str) -> None:
        """Write the lines of ``text``; an unfinished one waits for its rest."""
        self._undisturbed(lambda call: self._write_lines(call, stream, text))

    def write_record(self, level: str, text: str) -> None:
        """Write one log record, which may have several lines."""
        self._undisturbed(lambda call: self._emit_locked(call, "logging", text, level))

    def renew_lock(self) -> None:
        """In a forked child: another thread may have held the lock, and is not there to give it back."""
        self._lock = threading.RLock()

    def finish(self, call: Call) -> None:
        """Write what ``call`` left unfinished."""
        partial, call.partial_lines = call.partial_lines, None
        for stream, text in (partial or {}).items():
            if text is not None:
                self._emit_locked(call, stream, text, None)

    def report_dropped(self) -> None:
        """Say how many lines were dropped, as soon as the limit allows a line. Never waits."""
        if self._dropped and self._lock.acquire(blocking=False):
            try:
                self._take_token()
            finally:
                self._lock.release()

    def _undisturbed(self, write: Callable[[Call | None], None]) -> None:
        """Run ``write`` with the call that asks, masked; a user's thread has no call, and nothing interrupts it."""
        main = self._main
        if threading.get_ident() != main.ident:
            write(None)
        elif main.masked:  # while a module is imported
            write(main.running)
        else:
            main.masked = True
            try:
                write(main.running)
            finally:
                main.unmask()

    def _write_lines(self, call: Call | None, stream: str, text: str) -> None:
        with self._lock:
            partial = self._partial(call)
            begun = partial.pop(stream, "")
            if begun is None:
                _, ended, text = text.partition("\n")
                if not ended:
                    partial[stream] = None
                    return
            *lines, rest = ((begun or "") + text).split("\n")
            for line in lines:
                self._emit(call, stream, line, None)
            if len(rest) > _MAX_LINE_CHARS:
                self._emit(call, stream, rest, None)
                partial[stream] = None
            elif rest:
                partial[stream] = rest

    def _partial(self, call: Call | None) -> dict[str, str | None]:
        """Unfinished lines by stream; None where a line was written before its end and its rest is dropped."""
        if call is None:
            return self._loose
        if call.partial_lines is None:
            call.partial_lines = {}
        return call.partial_lines

    def _emit_locked(self, call: Call | None, stream: str, text: str, level: str | None) -> None:
        with self._lock:
            self._emit(call, stream, text, level)

    def _emit(self, call: Call | None, stream: str, text: str, level: str | None) -> None:
        if not self._take_token():
            self._dropped += 1
            return
        line = UserLogLine(
            stream=stream,
            text=_cut(text),
            task_id=call.payload.task_id if call else None,
            call_id=call.call_id if call else None,
            level=level,
        )
        if not self._put(encode_log_line(line)):
            self._dropped += 1

    def _take_token(self) -> bool:
        """Whether a line may be written now; before the first one after a gap, the gap is reported."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        if self._dropped:
            text = f"{self._dropped} lines of user output were dropped; the limit is {self._rate} lines/s."
            if self._put(encode_log_line(UserLogLine(stream="executor", level="WARNING", text=text))):
                self._dropped = 0
        return True

    def _put(self, record: bytes) -> bool:
        """Write ``record``; False when the reader is not reading. A record cut short ends at the next line feed."""
        if self._torn:
            record = b"\n" + record
        try:
            for start in range(0, len(record), _PIECE_BYTES):
                if not self._room.poll(0 if self._stalled else _ROOM_WAIT_MS):
                    self._stalled = True
                    self._torn = self._torn or start > 0
                    return False
                self._stalled = False
                os.write(self._descriptor, record[start : start + _PIECE_BYTES])
        except OSError:
            return False
        self._torn = False
        return True


class UserStream(io.TextIOBase):
    """What user code sees as sys.stdout or sys.stderr."""

    def __init__(self, log: LogWriter, name: str, descriptor: int) -> None:
        super().__init__()
        self._log = log
        self._name = name
        self._descriptor = descriptor
        self.buffer = _ByteStream(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a read-only property, as on TextIOWrapper
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # as above
        """What UTF-8 cannot hold is written as an escape."""
        return "backslashreplace"

    @property
    def name(self) -> str:
        """The name, as on the real stream."""
        return f"<{self._name}>"

    def write(self, text: str, /) -> int:
        """Write ``text``; never waits long, never raises for what becomes of it."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._log.write(self._name, text)
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The real descriptor: what is written there is raw output."""
        return self._descriptor


class _ByteStream(io.RawIOBase):
    """``sys.stdout.buffer``: bytes that become text."""

    def __init__(self, stream: UserStream) -> None:
        super().__init__()
        self._stream = stream

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]  # any buffer is taken
        self._stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def writable(self) -> bool:
        return True


class _UserLogHandler(logging.Handler):
    """The root handler: logging of INFO and above as records, with the level."""

    def __init__(self, log: LogWriter) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock: an interrupt must not find it taken, and the writer has its own."""
        passed = bool(self.filter(record))
        if passed:
            self.emit(record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.name}: {self.format(record)}"
        except Exception:  # noqa: BLE001 - arguments that do not fit the format are no reason to fail the call
            text = f"{record.name}: {record.msg!r} (its arguments do not fit)"
        self._log.write_record(record.levelname, text)


def install_user_output(log: LogWriter) -> None:
    """Send print, sys.stderr and logging of this process to ``log``."""
    os.register_at_fork(after_in_child=log.renew_lock)
    sys.stdout = UserStream(log, "stdout", 1)
    sys.stderr = UserStream(log, "stderr", 2)
    root = logging.getLogger()
    root.addHandler(_UserLogHandler(log))
    root.setLevel(logging.INFO)


def _cut(text: str) -> str:
    if len(text) <= _MAX_LINE_CHARS:
        return text
    return f"{text[:_MAX_LINE_CHARS]}… ({len(text) - _MAX_LINE_CHARS} more characters)"
