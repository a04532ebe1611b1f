"""Records of user output come back from their lines; all else is raw output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_executor.wire.userlog import UserLogLine, encode_log_line, parse_log_line


@given(st.text(), st.sampled_from([None, "INFO"]))
def test_a_record_is_one_line_and_comes_back(text: str, level: str | None) -> None:
    """Whatever the text holds, line feeds and separators included."""
    line = UserLogLine(stream="stdout", text=text, task_id="t", call_id="t/c0", level=level)
    record = encode_log_line(line)
    assert record.count(b"\n") == 1
    assert parse_log_line(record) == line


def test_lone_surrogates_are_written_as_escapes() -> None:
    """UTF-8 cannot hold them, and a log line must not fail."""
    parsed = parse_log_line(encode_log_line(UserLogLine(stream="stderr", text="a\ud800b")))
    assert parsed == UserLogLine(stream="stderr", text="a\\ud800b")


@pytest.mark.parametrize(
    "line",
    [b"", b"plain text\n", b'{"stream":"stdout","text":"x"}', b"\x1enot json", b"\x1e{}", b"\xff\x1e["],
)
def test_other_lines_are_raw_output(line: bytes) -> None:
    """Native code writes what it likes."""
    assert parse_log_line(line) is None


def test_raw_output_before_a_record_is_kept_apart() -> None:
    """Native code that wrote no line feed."""
    record = encode_log_line(UserLogLine(stream="stdout", text="mine"))
    assert parse_log_line(b"theirs" + record) == UserLogLine(
        stream="stdout", text="mine", raw_before="theirs"
    )
