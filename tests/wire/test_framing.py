"""Frames: every way to cut the bytes gives the same bodies; what is over-long or untrue is refused at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_executor.wire.framing import (
    MAX_FRAME_BYTES,
    FrameDecoder,
    FrameError,
    encode_frame,
    encode_sidecar,
    join_frames,
    split_body,
)

bodies_strategy = st.lists(st.binary(max_size=40), max_size=6)


@given(bodies_strategy)
def test_every_cut_in_two_gives_the_same_bodies(bodies: list[bytes]) -> None:
    """Each position of the stream is tried as the end of the first piece."""
    stream = join_frames(bodies)
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == bodies
        assert decoder.held_bytes == 0


@given(bodies_strategy, st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_in_many_gives_the_same_bodies(bodies: list[bytes], cuts: list[int]) -> None:
    """Pieces of any sizes, empty ones included."""
    stream, decoder, seen = join_frames(bodies), FrameDecoder(), list[bytes]()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        seen += decoder.feed(stream[start:end])
    assert seen == bodies


def test_byte_by_byte() -> None:
    """The slowest sender of all."""
    decoder = FrameDecoder()
    stream = join_frames([b"one", b"", b"three"])
    assert [body for byte in stream for body in decoder.feed(bytes([byte]))] == [b"one", b"", b"three"]


def test_an_over_long_length_is_refused_before_its_body_is_kept() -> None:
    """Four bytes are enough to refuse a frame."""
    decoder = FrameDecoder()
    with pytest.raises(FrameError, match="16777217 bytes is longer than the limit of 16777216 bytes"):
        decoder.feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert decoder.held_bytes == 0


def test_the_longest_frame_passes_and_one_byte_more_does_not() -> None:
    """The limit counts the body."""
    body = bytes(MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(body)) == [body]
    with pytest.raises(FrameError, match="longer than the limit"):
        encode_frame(body + b"x")


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_sidecar_comes_apart_as_it_was_put_together(json: bytes, raw: bytes) -> None:
    """JSON and raw bytes may be anything, also empty."""
    assert split_body(encode_sidecar(json, raw)) == (json, raw)


def test_a_plain_body_has_no_sidecar() -> None:
    """A JSON object begins with a brace, never with the magic."""
    assert split_body(b'{"a":1}') == (b'{"a":1}', None)


@pytest.mark.parametrize("body", [b"BXB1", b"BXB1\0\0\0", b"BXB1\0\0\0\x05{}", b"BXB1\xff\xff\xff\xff"])
def test_a_sidecar_with_an_untrue_length_is_refused(body: bytes) -> None:
    """A JSON length beyond the body."""
    with pytest.raises(FrameError, match="sidecar"):
        split_body(body)
