"""Argument lists from lines of JSON."""

from __future__ import annotations

import json

import pytest

from blockx_worker.cli.args import args_list, check_request_size, read_args_file
from blockx_worker.cli.errors import CommandFailed


def test_lines_become_one_list_byte_for_byte():
    lines = [b"[1, 2]\n", b'["\xc3\xa9",{"a":null}]\n', b"[]\n", b"\n", b"  \n"]
    assert args_list(lines, "f") == b'[[1, 2],["\xc3\xa9",{"a":null}],[]]'


def test_integers_of_any_size_survive():
    line = b"[" + str(2**4000).encode() + b"]"
    assert args_list([line], "f") == b"[" + line + b"]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1}', r"f, line 2: \{\"a\": 1\} is not a JSON array; write \[\{\"a\": 1\}\]"),
        (b"5", "f, line 2: 5 is not a JSON array; write \\[5\\]"),
        (b"[1,", "f, line 2: \\[1, is not JSON"),
        (b"[1] [2]", "f, line 2: .* is not JSON"),
        (b"[NaN]", "f, line 2: .* is not JSON"),
        (b"[nope]", "f, line 2: .* is not JSON"),
        (b'["\xff"]', "f, line 2: "),
    ],
)
def test_a_bad_line_is_named_by_its_number(line, message):
    with pytest.raises(CommandFailed, match=message):
        args_list([b"[1]", line, b"[3]"], "f")


def test_an_empty_line_in_the_middle_is_an_error_since_outputs_answer_to_lines():
    with pytest.raises(CommandFailed, match="f, line 2: empty"):
        args_list([b"[1]\n", b"\n", b"[2]\n"], "f")


def test_a_file_is_read(tmp_path):
    file = tmp_path / "args.jsonl"
    file.write_text("".join(f"[{i}]\n" for i in range(1000)))
    assert json.loads(read_args_file(file)) == [[i] for i in range(1000)]


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "args.jsonl"
    file.write_bytes(b"not json at all\n" * 200)
    with pytest.raises(
        CommandFailed, match=r"args\.jsonl: 3\.1 KiB of arguments; a request may have 1KiB\. Split .* 4 tasks"
    ):
        read_args_file(file, max_bytes=1024)


def test_a_size_at_the_limit_is_accepted():
    check_request_size(1024, "f", 1024)


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(CommandFailed, match=r"cannot read .*none\.jsonl: No such file"):
        read_args_file(tmp_path / "none.jsonl")
