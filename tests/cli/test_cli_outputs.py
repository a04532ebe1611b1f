"""Where outputs go."""

from __future__ import annotations

import io

import pytest

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.outputs import open_spool, show_first_lines


def test_a_finished_file_holds_all_pieces(tmp_path):
    target = tmp_path / "out.jsonl"
    with open_spool(str(target)) as spool:
        spool.write(b"1\n2")
        spool.write(b"\n3\n")
        assert not target.exists()
        spool.finish()
    assert target.read_bytes() == b"1\n2\n3\n"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unfinished_file_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old\n")
    with open_spool(str(target)) as spool:
        spool.write(b"new\n")
    assert target.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [target]


def test_after_a_restart_only_what_comes_then_counts(tmp_path):
    target = tmp_path / "out.jsonl"
    with open_spool(str(target)) as spool:
        spool.write(b"a longer first attempt\n")
        spool.restart()
        spool.write(b"2\n")
        spool.finish()
    assert target.read_bytes() == b"2\n"


@pytest.mark.parametrize("name", ["nowhere/out.jsonl", "folder"])
def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandFailed, match="cannot write"), open_spool(str(tmp_path / name)):
        pass


@pytest.mark.parametrize("output", [None, "-"])
def test_a_pipe_gets_everything_at_the_end(capfdbinary, output):
    with open_spool(output) as spool:
        spool.write(b"1\n" * 100)
        assert capfdbinary.readouterr().out == b""
        spool.finish()
    assert capfdbinary.readouterr().out == b"1\n" * 100


def test_a_terminal_gets_the_first_lines_and_how_many_more_there_are(capsys):
    show_first_lines(io.BytesIO(b"1\n2\n3\n" + b"x\n" * 31))
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:4] == ["1", "2", "3", "x"]
    assert len(captured.out.splitlines()) == 20
    assert "14 more" in captured.err


def test_few_lines_are_all_shown_without_a_remark(capsys):
    show_first_lines(io.BytesIO(b"1\n2\n"))
    assert capsys.readouterr() == ("1\n2\n", "")
