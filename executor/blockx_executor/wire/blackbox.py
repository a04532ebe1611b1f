"""The black box: one small page, shared with the worker, that says which call owns the executor's main thread.

It survives everything that the process can do to itself: native code that never lets go of the interpreter, a crash,
a kill. The executor stores five aligned 64-bit words at each switch; the worker reads them when it wants.

    word 0   magic and version; 0 while the executor has not started
    word 1   number of the call that owns the main thread, 0 = none
    word 2   monotonic ns of the last switch, so that two equal readings mean "no switch in between"
    word 3   what is left of the call's limit at that switch in ms (budget or load time-out), 0 = no limit
    word 4   1 = user code, 2 = code is being compiled or imported

Each word is stored whole, but the five are not stored together: a single reading may mix two switches. Whoever acts
on a reading takes two that are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["BLACKBOX_BYTES", "BlackBoxReading", "BlackBoxWriter", "read_blackbox"]

BLACKBOX_BYTES: Final = 4096

_MAGIC: Final = 0x4258_4242_0000_0001  # "BXBB", version 1
_RUNNING: Final = 1
_LOADING: Final = 2
_WORDS: Final = struct.Struct("@5Q")
_MAX_U64: Final = 2**64 - 1


class BlackBoxReading(NamedTuple):
    """One reading. ``since`` is the executor's own clock: compare it with another reading, never with your clock."""

    call_no: int
    since: int
    limit_ms: int
    loading: bool


def read_blackbox(page: bytes | bytearray | memoryview) -> BlackBoxReading:
    """What ``page`` says; all zero while the executor has not started. `ValueError` for a page of another kind."""
    if len(page) < _WORDS.size:
        raise ValueError(f"A black box page has at least {_WORDS.size} bytes, this one has {len(page)}.")
    magic, call_no, since, limit_ms, state = _WORDS.unpack_from(page)
    if magic not in (0, _MAGIC):
        raise ValueError(f"The page is not a black box of this version: it begins with {magic:#018x}.")
    return BlackBoxReading(call_no, since, limit_ms, call_no != 0 and state == _LOADING)


class BlackBoxWriter:
    """The executor's side: ``page`` is any writable buffer of `BLACKBOX_BYTES`, here a shared mapping."""

    __slots__ = ("_words", "running")

    running: Callable[[int, int, int], None]
    """``running(call_no, since_ns, limit_ms)``: user code of that call owns the main thread from now on."""

    def __init__(self, page: memoryview) -> None:
        words = page.cast("Q")
        self._words = words
        self.idle(0)
        words[4] = _RUNNING
        words[0] = _MAGIC

        # A closure over the words: looking them up on self would add a fifth to the cost of a switch.
        def running(call_no: int, since_ns: int, limit_ms: int) -> None:
            words[3] = limit_ms
            words[2] = since_ns
            words[1] = call_no

        self.running = running

    def loading(self, call_no: int, since_ns: int, limit_ms: int) -> None:
        """Code is compiled or imported for that call from now on."""
        self._words[4] = _LOADING
        self.running(call_no, since_ns, limit_ms)

    def loaded(self, since_ns: int) -> None:
        """Loading is over; no call owns the main thread."""
        self.idle(since_ns)
        self._words[4] = _RUNNING

    def idle(self, since_ns: int) -> None:
        """No call owns the main thread from now on."""
        self._words[1] = 0
        self._words[2] = since_ns & _MAX_U64
