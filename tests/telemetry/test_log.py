"""The log: formats, levels, routing of the standard library, and masking."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from blockx_worker.telemetry import configure_logging, get_logger


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def logged(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_event_level_logger_time_and_fields():
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    get_logger("blockx_worker.app").info("task_finished", task_id="t-1", calls=3)
    [line] = logged(stream)
    assert line.pop("timestamp").endswith("Z")  # type: ignore[attr-defined]
    assert line == {
        "event": "task_finished",
        "level": "info",
        "logger": "blockx_worker.app",
        "task_id": "t-1",
        "calls": 3,
    }


def test_a_stream_that_is_no_terminal_gets_json_by_default():
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("x").info("hello")
    assert logged(stream)[0]["event"] == "hello"


def test_console_lines_are_plain_text_without_colours_in_a_pipe():
    stream = io.StringIO()
    configure_logging("console", "info", stream)
    get_logger("x").info("hello", task_id="t-1")
    assert "hello" in stream.getvalue()
    assert "task_id=t-1" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_lines_below_the_level_are_dropped():
    stream = io.StringIO()
    configure_logging("json", "warning", stream)
    get_logger("x").info("quiet")
    logging.getLogger("lib").info("quiet too")
    get_logger("x").warning("loud")
    assert [line["event"] for line in logged(stream)] == ["loud"]


def test_library_loggers_and_warnings_come_out_in_the_same_format():
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    logging.getLogger("some.library").error("failed for %s", "reasons", extra={"code": 7})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", UserWarning, stacklevel=1)
    first, second = logged(stream)
    assert (first["event"], first["logger"], first["level"], first["code"]) == (
        "failed for reasons",
        "some.library",
        "error",
        7,
    )
    assert "old thing" in str(second["event"])


def test_chatty_libraries_only_speak_from_warning_on():
    stream = io.StringIO()
    configure_logging("json", "debug", stream)
    logging.getLogger("hpack").debug("decoded a header")
    logging.getLogger("hpack").warning("odd header")
    assert [line["event"] for line in logged(stream)] == ["odd header"]


def test_secrets_are_masked_in_texts_fields_and_tracebacks():
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    url = "postgresql://bob:hunter2@db/prod"
    try:
        int(f"cannot connect to {url}")
    except ValueError:
        get_logger("x").exception(
            "writer failed for %s" % url,  # noqa: UP031 - a message built by a library
            target=url,
            nested={"urls": [url], "api_key": "hunter2"},
            db_password="hunter2",
        )
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "Traceback" in text
    assert "postgresql://bob:***@db/prod" in text


def test_configuring_twice_writes_each_line_once():
    first, second = io.StringIO(), io.StringIO()
    logger = get_logger("x")
    configure_logging("json", "info", first)
    configure_logging("json", "info", second)
    logger.info("once")
    assert first.getvalue() == ""
    assert len(logged(second)) == 1
