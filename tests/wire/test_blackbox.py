"""The black box: what the executor stores is what the worker reads."""

from __future__ import annotations

import struct

import pytest

from blockx_executor.wire.blackbox import BLACKBOX_BYTES, BlackBoxReading, BlackBoxWriter, read_blackbox


def test_a_page_before_the_start_says_nothing() -> None:
    """All zero."""
    assert read_blackbox(bytes(BLACKBOX_BYTES)) == BlackBoxReading(0, 0, 0, loading=False)


def test_each_switch_is_seen() -> None:
    """Idle, running, idle, loading, idle, running: a story of one executor."""
    page = bytearray(BLACKBOX_BYTES)
    writer = BlackBoxWriter(memoryview(page))
    assert read_blackbox(page).call_no == 0
    writer.running(7, 1_000, 500)
    assert read_blackbox(page) == BlackBoxReading(7, 1_000, 500, loading=False)
    writer.idle(2_000)
    assert read_blackbox(page)[:2] == (0, 2_000)
    writer.loading(8, 3_000, 60_000)
    assert read_blackbox(page) == BlackBoxReading(8, 3_000, 60_000, loading=True)
    writer.loaded(4_000)
    assert read_blackbox(page)[:2] == (0, 4_000)
    assert not read_blackbox(page).loading
    writer.running(2**64 - 1, 2**63, 0)
    assert read_blackbox(page) == BlackBoxReading(2**64 - 1, 2**63, 0, loading=False)


def test_another_page_is_refused() -> None:
    """A page that is too short, or begins with something else."""
    with pytest.raises(ValueError, match="at least 40 bytes, this one has 3"):
        read_blackbox(b"abc")
    with pytest.raises(ValueError, match="not a black box of this version"):
        read_blackbox(struct.pack("@5Q", 1, 0, 0, 0, 0))
