"""User output: records with task and call, beside raw output, never too much, never in the way."""

from __future__ import annotations

import os

from blockx_executor.wire.userlog import UserLogLine, parse_log_line
from tests.executor.driver import ExecutorDriver, module, running_executor

PRINTING = module("""
    import logging
    import os
    import sys
    import threading

    from blockx_executor import sdk

    print("while importing")

    def speak():
        print("hello", "world")
        print("two\\nlines")
        print("no end", end="")
        print("to stderr", file=sys.stderr)
        sys.stdout.buffer.write(b"bytes\\n")

    def log():
        logging.getLogger("my.app").info("read %d rows", 5)
        logging.debug("not shown")
        logging.warning("broken %d", "x")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("it failed")

    def mix(name):
        print(name, "begins", end=" ")
        sdk.sleep(0.01)
        print("and ends")

    def raw(): os.write(1, b"native output without line feed")
    def in_thread():
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()
    def much(n):
        for i in range(n): print(i)
    def long(): print("x" * 100_000)
    def odd(): print("\\ud800 \\x1e \\x00")
    def wrong():
        try:
            sys.stdout.write(5)
        except TypeError as error:
            return str(error)
""")


def texts(lines: list[UserLogLine], stream: str, call_id: str | None) -> list[str]:
    return [line.text for line in lines if (line.stream, line.call_id) == (stream, call_id)]


def test_print_and_stderr_carry_task_and_call(executor: ExecutorDriver) -> None:
    """Line by line; an unfinished line is written when the call ends; import output belongs to the call that loads."""
    call = executor.execute(executor.define(PRINTING), "speak")
    executor.value(call)
    lines = executor.log_lines()
    assert texts(lines, "stdout", call) == ["while importing", "hello world", "two", "lines", "no endbytes"]
    assert texts(lines, "stderr", call) == ["to stderr"]
    assert {line.task_id for line in lines} == {"t-1"}


def test_logging_carries_the_level(executor: ExecutorDriver) -> None:
    """INFO and above; a record with a traceback is one record; a broken record is shown as it is."""
    call = executor.execute(executor.define(PRINTING), "log")
    executor.value(call)
    lines = [line for line in executor.log_lines() if line.call_id == call and line.stream == "logging"]
    assert [line.level for line in lines] == ["INFO", "WARNING", "ERROR"]
    assert lines[0].text == "my.app: read 5 rows"
    assert "broken %d" in lines[1].text
    assert "ZeroDivisionError" in lines[2].text


def test_calls_that_take_turns_do_not_mix_their_lines(executor: ExecutorDriver) -> None:
    """An unfinished line stays with its call."""
    digest = executor.define(PRINTING)
    calls = [executor.execute(digest, "mix", name) for name in "abc"]
    for call in calls:
        executor.value(call)
    lines = executor.log_lines()
    assert [texts(lines, "stdout", call) for call in calls] == [[f"{name} begins and ends"] for name in "abc"]


def test_raw_output_and_threads_have_no_call(executor: ExecutorDriver) -> None:
    """What native code writes stands before the next record on the same line."""
    digest = executor.define(PRINTING)
    executor.call(digest, "raw")
    executor.call(digest, "in_thread")
    [line] = [line for line in executor.log_lines() if line.text == "from a thread"]
    assert (line.task_id, line.call_id) == (None, None)
    assert line.raw_before == "native output without line feed"


def test_odd_output_does_no_harm(executor: ExecutorDriver) -> None:
    """Long lines are cut, odd characters escaped, wrong types refused as on a real stream."""
    digest = executor.define(PRINTING)
    call = executor.execute(digest, "long")
    executor.value(call)
    [text] = texts(executor.log_lines(), "stdout", call)
    assert len(text) < 8_300
    assert text.endswith("… (91808 more characters)")
    call = executor.execute(digest, "odd")
    executor.value(call)
    assert texts(executor.log_lines(), "stdout", call) == ["\\ud800 \x1e \x00"]
    assert executor.call(digest, "wrong") == "write() argument must be str, not int"


def test_output_above_the_limit_is_dropped_and_counted() -> None:
    """The burst is written, the rest counted, and the count told without another print."""
    with running_executor("--log-lines-per-s", "20", "--heartbeat-interval-ms", "50") as executor:
        executor.call(executor.define(PRINTING), "much", 5000)

        def told() -> list[UserLogLine]:
            return [line for line in executor.log_lines() if line.stream == "executor"]

        executor.wait_for(told)
        written = [line for line in executor.log_lines() if line.stream == "stdout"]
        assert 100 <= len(written) < 200
        assert "lines of user output were dropped; the limit is 20 lines/s" in told()[0].text


def test_a_reader_that_does_not_read_blocks_nobody() -> None:
    """Standard output is a pipe that is full: output is dropped, calls go on, records stay whole."""
    reader, writer = os.pipe()
    try:
        with running_executor("--log-lines-per-s", "100000", stdout=writer) as executor:
            assert executor.call(executor.define(PRINTING), "much", 50_000) is None
        os.close(writer)
        *lines, last = os.read(reader, 1 << 20).split(b"\n")
        assert len(lines) > 100
        assert all(parse_log_line(line) for line in lines)
        assert last == b""
    finally:
        os.close(reader)
