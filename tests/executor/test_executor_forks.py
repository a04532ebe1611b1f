"""Processes that functions fork: they live and end as they like, and never speak for the executor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executor.driver import ExecutorDriver, module, running_executor

FORKING = module("""
    import multiprocessing
    import os
    import sys

    from blockx_executor import sdk

    if os.fork() == 0:
        sys.exit(4)  # a child that was forked by an import
    IMPORTED = os.waitstatus_to_exitcode(os.wait()[1])

    def _end(child):
        pid = os.fork()
        if pid == 0:
            return child()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def imported(): return IMPORTED
    def returns(): return _end(lambda: "a value of the child")
    def exits(): return _end(lambda: sys.exit(3))
    def exits_with_words(): return _end(lambda: sys.exit("enough"))
    def raises(): return _end(lambda: 1 / 0)
    def rests(): return _end(lambda: sdk.sleep(60))
    def prints(): return _end(lambda: print("from the child"))

    def stays():
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)  # until the parent lets go
            return "late"
        os.close(read)
        return write

    def lets_go(write):
        os.close(write)
        return os.waitstatus_to_exitcode(os.wait()[1])

    def pool():
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])
""")


@pytest.fixture
def executor() -> Iterator[ExecutorDriver]:
    with running_executor() as executor:
        yield executor


@pytest.mark.parametrize(
    ("entry", "code"),
    [("imported", 0), ("returns", 0), ("exits", 3), ("exits_with_words", 1), ("raises", 1), ("rests", 1)],
)
def test_a_child_that_comes_back_ends_as_a_program_does(
    executor: ExecutorDriver, entry: str, code: int
) -> None:
    """Its value or its exception is not the outcome of the call, which is the parent's."""
    assert executor.call(executor.define(FORKING), entry) == code
    assert executor.others == []


def test_why_a_child_failed_is_user_output(executor: ExecutorDriver) -> None:
    digest = executor.define(FORKING)
    for entry in ("raises", "rests", "prints"):
        executor.call(digest, entry)
    text = "\n".join(line.text for line in executor.log_lines() if line.call_id)
    assert "ZeroDivisionError" in text
    assert "sdk.sleep() was used in a forked process" in text
    assert "from the child" in text


def test_a_child_that_outlives_its_call_reads_nothing_of_the_next(executor: ExecutorDriver) -> None:
    digest = executor.define(FORKING)
    write = executor.call(digest, "stays")
    assert [executor.call(digest, "imported") for _ in range(20)] == [0] * 20
    assert executor.call(digest, "lets_go", write) == 0
    assert executor.others == []


def test_a_pool_of_forked_processes_works(executor: ExecutorDriver) -> None:
    assert executor.call(executor.define(FORKING), "pool") == [1, 2, 3]
