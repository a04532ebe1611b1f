"""What is told about a call that failed."""

from __future__ import annotations

import pytest

from tests.executor.driver import ExecutorDriver, module

FAILING = module("""
    import enum
    import json
    import os
    import sys
    import threading

    from blockx_executor import sdk

    def divide(block, api_key):
        rows = list(range(1000))
        settings = {"url": "postgresql://me:hunter2@db/x", "password": "hunter2", "nested": [{"auth": "hunter2"}]}
        header = "Authorization: Bearer hunter2"
        return inner(block, settings, rows)

    def inner(block, settings, rows):
        secret_word = "hunter2"
        text = "token=hunter2 and more"
        return block / 0

    def in_library(text):
        here = "the user's frame"
        return json.loads(text)

    def chained():
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("could not read the row") from error

    def exits(): sys.exit(7)
    def interrupts(): raise KeyboardInterrupt
    def generator_exit(): raise GeneratorExit
    def recurses(): return recurses()
    def no_memory(): raise MemoryError
    def asserts(): assert False, "balance must not be negative"
    def retryable(): raise sdk.Retryable("the node is behind")
    class Busy(sdk.Retryable): pass
    def retryable_child(): raise Busy("busy")
    def group(): raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    class BadRepr:
        def __repr__(self): raise RuntimeError("no repr")
    class BadStr(Exception):
        def __str__(self): raise RuntimeError("no str")
    class HugeRepr:
        def __repr__(self): return "x" * 1_000_000

    def bad_repr():
        broken, huge, number, surrogate, blob = BadRepr(), HugeRepr(), 10 ** 5000, "\\ud800", b"x" * 10_000_000
        raise ValueError("look at my locals \\ud800")

    def bad_str(): raise BadStr
    def long_message(): raise ValueError("x" * 1_000_000)
    def many_locals():
        values = {f"v{i}": "y" * 1000 for i in range(100)}
        scope = {"values": values}
        exec("\\n".join(f"{name} = values[{name!r}]" for name in values) + "\\nraise ValueError", scope)

    def nan(): return {"rows": [1, {"value": float("nan")}]}
    def a_set(): return {1, 2}
    def generator(): return (i for i in range(3))
    async def coroutine(): pass
    def returns_coroutine():
        made = coroutine()
        made.close()
        return made
    def cycle():
        row = []
        row.append(row)
        return row
    def deep():
        value = []
        for _ in range(100_000): value = [value]
        return value
    def too_many_digits(): return 10 ** 4300
    def an_object(): return object()

    def sdk_in_thread():
        seen = []
        def use():
            try:
                sdk.sleep(0)
            except RuntimeError as error:
                seen.append(str(error))
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return seen[0]

    def sdk_in_asyncio():
        import asyncio
        async def use(): sdk.current()
        asyncio.run(use())

    def sdk_negative(): sdk.sleep(-1)
""")


def test_the_report_shows_user_frames_and_the_locals_that_matter(executor: ExecutorDriver) -> None:
    """Message, source lines, the innermost frame's locals; nothing of the executor, nothing secret."""
    failure = executor.fail(executor.define(FAILING), "divide", 12, "hunter2").payload
    assert (failure.error_kind, failure.retryable, failure.error_type) == (
        "USER_ERROR",
        False,
        "ZeroDivisionError",
    )
    assert failure.error_message == "ZeroDivisionError: division by zero"
    assert "in divide" in failure.error_stack
    assert "return inner(block, settings, rows)" in failure.error_stack
    assert "in inner" in failure.error_stack
    assert "blockx_executor" not in failure.error_stack
    assert failure.local_vars["block"] == "12"
    assert failure.local_vars["secret_word"] == "<masked>"
    assert failure.local_vars["rows"].startswith("[0, 1, 2")
    assert len(failure.local_vars["rows"]) < 100
    assert "hunter2" not in "".join(failure.local_vars.values())


def test_arguments_under_a_secret_name_are_masked(executor: ExecutorDriver) -> None:
    """Too few arguments: there is no user frame at all, and no locals."""
    failure = executor.fail(executor.define(FAILING), "divide", "hunter2").payload
    assert failure.error_message == "TypeError: divide() missing 1 required positional argument: 'api_key'"
    assert failure.local_vars == {}


def test_an_error_inside_a_library_shows_the_users_frame(executor: ExecutorDriver) -> None:
    """The stack goes down to the library; the locals are those of the function."""
    failure = executor.fail(executor.define(FAILING), "in_library", "{").payload
    assert failure.error_type == "JSONDecodeError"
    assert "json" in failure.error_stack
    assert failure.local_vars == {"text": "'{'", "here": '"the user\'s frame"'}


def test_causes_are_told(executor: ExecutorDriver) -> None:
    """Both exceptions and how they hang together."""
    failure = executor.fail(executor.define(FAILING), "chained").payload
    assert failure.error_message == "RuntimeError: could not read the row"
    assert "invalid literal for int()" in failure.error_stack
    assert "direct cause" in failure.error_stack


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("exits", "SystemExit(7)"),
        ("interrupts", "KeyboardInterrupt"),
        ("generator_exit", "GeneratorExit"),
        ("recurses", "RecursionError: maximum recursion depth exceeded"),
        ("no_memory", "MemoryError"),
        ("asserts", "AssertionError: balance must not be negative"),
        ("group", "ExceptionGroup: two (2 sub-exceptions)"),
        ("sdk_in_asyncio", "inside a running asyncio loop"),
        ("sdk_negative", "seconds must be a number from 0 on"),
    ],
)
def test_whatever_is_raised_fails_the_call_only(executor: ExecutorDriver, entry: str, message: str) -> None:
    """The fixture runs the next call in the same process."""
    failure = executor.fail(executor.define(FAILING), entry).payload
    assert failure.error_kind == "USER_ERROR"
    assert not failure.retryable
    assert message in failure.error_message


def test_retryable_errors_say_so(executor: ExecutorDriver) -> None:
    """`sdk.Retryable` and its subclasses."""
    digest = executor.define(FAILING)
    assert executor.fail(digest, "retryable").payload.retryable
    assert executor.fail(digest, "retryable_child").payload.retryable


def test_the_sdk_refuses_threads(executor: ExecutorDriver) -> None:
    """With a sentence."""
    assert "was used in a thread" in str(executor.call(executor.define(FAILING), "sdk_in_thread"))


def test_broken_and_huge_reprs_do_no_harm(executor: ExecutorDriver) -> None:
    """Each local is shown or said not to be; all of it is bounded."""
    failure = executor.fail(executor.define(FAILING), "bad_repr").payload
    shown = failure.local_vars
    assert failure.error_message == "ValueError: look at my locals \\ud800"
    assert shown["broken"].startswith("<BadRepr instance at")
    assert shown["number"] == "<int of 16610 bits>"
    assert shown["surrogate"] == "'\\ud800'"
    assert "(10000000 bytes)" in shown["blob"]
    assert all(len(text) < 400 for text in shown.values())


def test_a_failure_is_bounded_as_a_whole(executor: ExecutorDriver) -> None:
    """A message of a megabyte, an exception that cannot be shown, a hundred locals."""
    digest = executor.define(FAILING)
    assert len(executor.fail(digest, "long_message").payload.error_message) < 5_000
    assert executor.fail(digest, "bad_str").payload.error_message.startswith("BadStr: <not shown")
    many = executor.fail(digest, "many_locals").payload
    assert sum(len(name) + len(text) for name, text in many.local_vars.items()) < 16_000
    assert len(executor.fail(digest, "recurses").payload.error_stack) < 16_000


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("nan", "at $.rows[1].value: nan is not a JSON number"),
        ("a_set", "return sorted(...)"),
        ("generator", "return a list"),
        ("returns_coroutine", "functions must be plain def"),
        ("cycle", "contains itself"),
        ("deep", "nested more than 256 levels deep"),
        ("too_many_digits", "more than 4300 digits"),
        ("an_object", "type object cannot be written"),
    ],
)
def test_outputs_that_json_cannot_hold_fail_with_their_place(
    executor: ExecutorDriver, entry: str, reason: str
) -> None:
    """Not retryable: it would be the same again."""
    failure = executor.fail(executor.define(FAILING), entry).payload
    assert (failure.error_kind, failure.retryable) == ("OUTPUT_NOT_JSON", False)
    assert reason in failure.error_message
