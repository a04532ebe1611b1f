"""Where outputs go."""

from __future__ import annotations

import pytest

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.outputs import TerminalSink, open_sink


def test_a_finished_file_holds_all_pieces(tmp_path):
    target = tmp_path / "out.jsonl"
    with open_sink(str(target)) as sink:
        sink.write(b"1\n2")
        sink.write(b"\n3\n")
        assert not target.exists()
        sink.finish()
    assert target.read_bytes() == b"1\n2\n3\n"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unfinished_file_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old\n")
    with open_sink(str(target)) as sink:
        sink.write(b"new\n")
    assert target.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["nowhere/out.jsonl", "folder"])
def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandFailed, match="cannot write"), open_sink(str(tmp_path / name)):
        pass


def test_a_pipe_gets_everything(capfdbinary):
    with open_sink(None) as sink:
        sink.write(b"1\n" * 100)
        sink.finish()
    assert capfdbinary.readouterr().out == b"1\n" * 100


def test_a_terminal_gets_the_first_lines_and_how_many_more_there_are(capsys):
    sink = TerminalSink()
    for piece in (b"1\n2\n3", b"\n" + b"x\n" * 30, b"y\n"):
        sink.write(piece)
    sink.finish()
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:4] == ["1", "2", "3", "x"]
    assert len(captured.out.splitlines()) == 20
    assert "14 more lines" in captured.err
