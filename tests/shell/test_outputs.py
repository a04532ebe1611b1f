"""The segments that outputs are kept in."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from blockx_worker.orchestrator.outputs import OutputStore

lines = st.lists(
    st.one_of(st.none(), st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"\n", b".")))
)


def joined(outputs):
    return b"".join((b"null" if output is None else output) + b"\n" for output in outputs)


@given(st.lists(lines), st.integers(1, 30))
def test_reading_from_any_offset_gives_the_joined_lines(batches, segment_bytes):
    store = OutputStore(segment_bytes)
    for batch in batches:
        store.append(batch)
    text = joined([output for batch in batches for output in batch])
    assert store.joined() == text
    assert store.output_bytes == len(text)
    assert store.count == sum(map(len, batches))
    for offset in range(len(text)):
        chunk = store.read(offset)
        assert chunk is not None
        assert len(chunk.json_lines) <= segment_bytes
        assert text[offset:].startswith(chunk.json_lines)
        assert chunk.first_index == text[:offset].count(b"\n")
        assert chunk.count == chunk.json_lines.count(b"\n")
    assert store.read(len(text)) is None


@given(st.lists(lines), st.integers(1, 30), st.integers(0, 50))
def test_lines_come_back_one_by_one_from_any_index(batches, segment_bytes, start):
    store = OutputStore(segment_bytes)
    for batch in batches:
        store.append(batch)
    outputs = [b"null" if output is None else output for batch in batches for output in batch]
    assert list(store.lines(start)) == outputs[start:]


def test_retained_bytes_is_real_memory():
    """Within a few per cent of what the interpreter says of the kept bytes."""
    store = OutputStore(1024)
    store.append([b"x" * 100] * 1000)
    real = sum(sys.getsizeof(segment.data) + sys.getsizeof(segment) for segment in store._segments)
    assert abs(store.retained_bytes - real) < real * 0.2
