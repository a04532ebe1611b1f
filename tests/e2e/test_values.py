"""Values on their way through a real worker: exactly, or a failure that says where and why.

The way of an argument: the client's JSON text, the frame to the executor, Python. The way back: Python, the frame, the
outputs as JSON lines, or a column of SQLite.
"""

from __future__ import annotations

import functools
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, refusal, state_name
from tests.support.worker_process import WorkerProcess

FRAME_BYTES = 16 * 1024 * 1024
MAX_INT = int("9" * 4300)

FUNCTIONS = '''
import dataclasses
import datetime as dt
import decimal
import enum


def echo(value):
    return value


def row(key, value):
    return {"key": key, "value": value}


def text(size):
    return "x" * size


def repeated(text, count):
    return text * count


class Colour(enum.Enum):
    RED = 1


class Named(str):
    pass


@dataclasses.dataclass
class Point:
    x: int


def circular():
    inner = []
    inner.append({"deep": inner})
    return {"rows": [1, inner]}


def nested(levels, bottom=None):
    value = bottom
    for _ in range(levels):
        value = [value]
    return value


def length(text):
    return len(text)


async def coroutine():
    return 1


def make(name):
    """Values that JSON has no text for, each made from its name."""
    return {
        "bytes": lambda: [b"\\x00\\xff", bytearray(b"ab"), memoryview(b"")],
        "decimal": lambda: [decimal.Decimal("1.10"), decimal.Decimal(10) ** 30, decimal.Decimal("-0")],
        "datetime": lambda: [
            dt.datetime(2023, 5, 2, 12, 19, 59, tzinfo=dt.UTC),
            dt.datetime(2023, 5, 2, 12, 19, 59, 5),
            dt.datetime(2023, 5, 2, tzinfo=dt.timezone(dt.timedelta(hours=8))),
            dt.date(2023, 5, 2),
            dt.time(1, 2, 3),
        ],
        "tuple": lambda: (1, (2, ()), {"a": (None,)}),
        "subclasses": lambda: [Named("n"), True, {Named("k"): Named("v")}],
        "keys": lambda: {1: "int", "2": "str", b"\\x03": "bytes", -(2**200): "big"},
        "ints": lambda: [2**256 - 1, -(2**200), 10**4300 - 1, 1 - 10**4300, 2**63, -(2**63), 2**64 - 1],
        "floats": lambda: [1e308, 5e-324, -0.0, 0.1, 1e16, 123456789.123456789],
        "nan": lambda: {"rows": [{"value": float("nan")}]},
        "inf": lambda: [[1.0], [float("-inf")]],
        "decimal nan": lambda: [decimal.Decimal("NaN")],
        "object": lambda: {"o": object()},
        "point": lambda: [Point(1)],
        "enum": lambda: {"colour": Colour.RED},
        "set": lambda: {"s": {1, 2}},
        "frozenset": lambda: [frozenset()],
        "generator": lambda: {"items": (i for i in range(3))},
        "coroutine": coroutine,
        "function": lambda: make,
        "timedelta": lambda: [dt.timedelta(1)],
        "surrogate": lambda: {"texts": ["fine", "a\\ud800b"]},
        "surrogate key": lambda: {"k\\udfff": 1},
        "long int": lambda: {"value": 10**4300},
        "long negative": lambda: [-(10**4300)],
        "colliding": lambda: {"inner": {1: "a", "1": "b"}},
        "colliding bytes": lambda: {b"\\x01": 1, "0x01": 2},
        "bool key": lambda: {True: 1},
        "none key": lambda: {None: 1},
        "float key": lambda: {1.5: 1},
        "tuple key": lambda: [{(1, 2): 1}],
        "circular": circular,
        "deep": lambda: nested(257),
        "very deep": lambda: {"a": nested(100_000)},
    }[name]()


class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")


def fail(name):
    raise {
        "surrogate": ValueError("a\\ud800b"),
        "nul": ValueError("a\\0b"),
        "astral": ValueError("\U0001f600" * 100),
        "long": ValueError("x" * 30_000_000),
        "no text": NoText(),
        "group": ExceptionGroup("two at once", [ValueError("\\udfff"), KeyError(1)]),
    }[name]
'''


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker({"values": FUNCTIONS})


@pytest.fixture(autouse=True)
def executors_stay(worker: WorkerProcess) -> Iterator[None]:
    """No value, however wrong, costs an executor its life."""
    before = worker.executor_pids()
    yield
    assert worker.executor_pids() == before


# --- what survives ------------------------------------------------------------------------------------------------


def nested(levels: int, bottom: Any) -> Any:
    """``bottom`` inside so many lists and objects in turn."""
    for level in range(levels):
        bottom = {"k": bottom} if level % 2 else [bottom]
    return bottom


SURVIVORS: dict[str, Any] = {
    "uint256": 2**256 - 1,
    "negative big": -(2**200),
    "int64 bounds": [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64],
    "longest ints": [MAX_INT, -MAX_INT, MAX_INT - 1],
    "zeros": [0, -0.0, 0.0, False],
    "floats": [
        1e308,
        1.7976931348623157e308,
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        0.1,
        1e16,
        1e22,
        9007199254740993.0,
    ],
    "int or float": [1, 1.0, True, 100000000000000000000, 1e20],
    "empty": [[], {}, "", [[]], [{}], {"": {}}],
    "null": [None, {"a": None}],
    "long text": "0123456789" * 500_000,
    "astral": "\U0001f600\U0010ffff\U00010000",
    "nul": "a\0b\0",
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "line separators": "a\u2028b\u2029c\r\nd\x0b\x0c\x1c\x1d\x1e\x85e",
    "combining": "e\u0301 \u1e69 s\u0323\u0307 \u0f71\u0f72",
    "right to left": "\u202eabc\u202c \u05d0\u05d1 \u0627\u0644\u0639",
    "noncharacters": "\ufffe\uffff\ufdd0\ufeff\ufffd",
    "quotes": "\\\"'/\\u0041\\ud800 \x1eBXB1",
    "deep": nested(254, None),
    "keys": {"": 1, " ": 2, "\0": 3, "\U0001f600": 4, "a.b": 5, "1": 6, "__proto__": 7, "messageType": 8},
    "wide": {f"k{i}": i for i in range(10_000)},
    "long list": list(range(100_000)),
}


def test_values_survive_as_arguments_and_outputs(client):
    """Out comes what went in, type and every digit, whichever way the client writes its JSON."""
    values = list(SURVIVORS.values())
    for task_id, ascii_only in (("survive-ascii", True), ("survive-utf8", False)):
        assert_same(echoed(client, task_id, values, ensure_ascii=ascii_only), values)


def test_values_survive_as_columns_of_sqlite(client, tmp_path):
    """64-bit integers as INTEGER, longer ones as decimal TEXT, lists and objects as JSON TEXT, the rest as it is."""
    args = [[key, value] for key, value in SURVIVORS.items() if not isinstance(value, list | dict)]
    args += [
        [f"{key} {i}", item]
        for key, value in SURVIVORS.items()
        if isinstance(value, list)
        for i, item in enumerate(value[:20])
    ]
    args += [[key, value] for key, value in SURVIVORS.items() if isinstance(value, list | dict)]
    client.submit_rows("columns", "values.row", args, handler(tmp_path))
    result = client.wait("columns")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    stored = dict(rows(tmp_path, "key, value"))
    assert list(stored) == [key for key, _ in args]
    assert_same([from_column(stored[key], value) for key, value in args], [value for _, value in args])


def test_types_of_sqlite_columns(client, tmp_path):
    """What stands in the file, as SQLite itself names it."""
    kinds: dict[str, list[Any]] = {
        "integer": [0, True, 2**63 - 1, -(2**63)],
        "real": [1e308, 5e-324, -0.0, 1.0],
        "text": [2**63, -(2**63) - 1, 2**256 - 1, -(10**4299), "", "a\0b", "12", [], {}, [1]],
        "null": [None],
    }
    args = [[kind, value] for kind, values in kinds.items() for value in values]
    client.submit_rows("types", "values.row", args, handler(tmp_path))
    assert state_name(client.wait("types").state) == "SUCCEEDED"
    assert rows(tmp_path, "key, typeof(value)") == [(kind, kind) for kind, _ in args]


def test_python_values_that_json_has_no_type_for(client):
    """Bytes become hex, Decimal a string, dates RFC 3339, tuples arrays; keys may be str, int or bytes."""
    expected: dict[str, Any] = {
        "bytes": ["0x00ff", "0x6162", "0x"],
        "decimal": ["1.10", "1.000000000000000000000000000E+30", "-0"],
        "datetime": [
            "2023-05-02T12:19:59Z",
            "2023-05-02T12:19:59.000005",
            "2023-05-02T00:00:00+08:00",
            "2023-05-02",
            "01:02:03",
        ],
        "tuple": [1, [2, []], {"a": [None]}],
        "subclasses": ["n", True, {"k": "v"}],
        "keys": {"1": "int", "2": "str", "0x03": "bytes", str(-(2**200)): "big"},
        "ints": [2**256 - 1, -(2**200), MAX_INT, -MAX_INT, 2**63, -(2**63), 2**64 - 1],
        "floats": [1e308, 5e-324, -0.0, 0.1, 1e16, 123456789.123456789],
    }
    client.submit_calls("python", "values.make", [[name] for name in expected])
    assert state_name(client.wait("python").state) == "SUCCEEDED"
    assert_same(client.outputs("python"), list(expected.values()))


texts = st.text(st.characters(codec="utf-8"), max_size=30)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.integers(4200, 4299).map(lambda digits: 10**digits + 7)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6),
    max_leaves=10,
)


@functools.cache
def drawn() -> list[Any]:
    """Many JSON values; drawn once, since that takes longer than all that is done with them."""
    values: list[Any] = []

    @settings(
        max_examples=300, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
    )
    @given(json_values)
    def draw(value: Any) -> None:
        values.append(value)

    draw()
    return values


@pytest.mark.parametrize("ascii_only", [True, False])
def test_any_json_value_makes_the_round_trip(client, ascii_only):
    """Hundreds of drawn values in one task; a failure names the first that came back as another."""
    values = drawn()
    assert_same(echoed(client, f"drawn-{ascii_only}", values, ensure_ascii=ascii_only), values)


def test_any_json_value_makes_it_into_a_column(client, tmp_path):
    values = drawn()
    client.submit_rows("drawn-rows", "values.row", [[i, v] for i, v in enumerate(values)], handler(tmp_path))
    result = client.wait("drawn-rows")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    stored = rows(tmp_path, "key, value")
    assert [key for key, _ in stored] == list(range(len(values)))
    assert_same([from_column(cell, value) for (_, cell), value in zip(stored, values, strict=True)], values)


# --- what fails ---------------------------------------------------------------------------------------------------

NOT_JSON = {
    "nan": ("$.rows[0].value", "nan is not a JSON number"),
    "inf": ("$[1][0]", "-inf is not a JSON number"),
    "decimal nan": ("$[0]", "Decimal NaN"),
    "object": ("$.o", "object"),
    "point": ("$[0]", "asdict"),
    "enum": ("$.colour", "return its .value"),
    "set": ("$.s", "sorted(...)"),
    "frozenset": ("$[0]", "a set has no order"),
    "generator": ("$.items", "return a list of its items"),
    "coroutine": ("$", "plain def"),
    "function": ("$", "function"),
    "timedelta": ("$[0]", "total_seconds()"),
    "surrogate": ("$.texts[1]", "lone surrogate (U+D800) at position 1"),
    "surrogate key": ("$", "lone surrogate (U+DFFF)"),
    "long int": ("$.value", "more than 4300 digits"),
    "long negative": ("$[0]", "more than 4300 digits"),
    "colliding": ("$.inner", "would both be written as '1'"),
    "colliding bytes": ("$", "would both be written as '0x01'"),
    "bool key": ("$", "the key True is of type bool"),
    "none key": ("$", "the key None"),
    "float key": ("$", "the key 1.5"),
    "tuple key": ("$[0]", "the key (1, 2) is of type tuple"),
    "circular": ("$.rows[1]", "contains itself"),
    "deep": ("$", "nested more than 256 levels deep"),
    "very deep": ("$", "nested more than 256 levels deep"),
}


def test_outputs_that_json_cannot_hold_fail_their_calls_by_path(client):
    """Each of them OUTPUT_NOT_JSON with the place and what is wrong; the calls beside them succeed."""
    names = [name for bad in NOT_JSON for name in ("tuple", bad)]
    client.submit_calls("not-json", "values.make", [[n] for n in names], call_failure_policy=2)
    failed = failed_calls(client, "not-json")
    assert list(failed) == list(range(1, len(names), 2))
    for (path, reason), call in zip(NOT_JSON.values(), failed.values(), strict=True):
        assert (call.error_kind, call.attempts) == ("OUTPUT_NOT_JSON", 1), call
        assert path in call.message, call
        assert reason in call.message, call
    assert client.outputs("not-json")[::2] == [[1, [2, []], {"a": [None]}]] * len(NOT_JSON)


@pytest.mark.parametrize("name", ["nan", "surrogate"])
def test_a_fast_failing_task_names_call_path_and_reason(client, name):
    """The failure of the task is the sentence of its call."""
    path, reason = NOT_JSON[name]
    client.submit_calls(f"fast-{name}", "values.make", [[name]])
    failure = client.wait(f"fast-{name}").failure
    assert (failure.code, failure.error_kind, failure.function_id) == (
        "CALLS_FAILED",
        "OUTPUT_NOT_JSON",
        "values.make",
    )
    assert path in failure.message
    assert reason in failure.message


def test_outputs_too_large_for_a_frame_fail_with_the_numbers(client):
    """One byte decides; the largest output that fits does come back."""
    most = FRAME_BYTES - 64 * 1024 - 2  # two quotes
    client.submit_calls("large", "values.text", [[most], [most + 1], [40_000_000]], call_failure_policy=2)
    failed = failed_calls(client, "large")
    assert list(failed) == [1, 2]
    for call in failed.values():
        assert call.error_kind == "OUTPUT_TOO_LARGE"
        assert "at most 16,711,680 bytes" in call.message
    assert "16,711,681 bytes" in failed[1].message
    assert len(client.outputs("large")[0]) == most


def test_escapes_count_towards_the_size_of_an_output(client):
    """A short text whose JSON is long does not break the link either."""
    client.submit_calls("escapes", "values.repeated", [["\0", 4_000_000], ["x", 1]], call_failure_policy=2)
    failed = failed_calls(client, "escapes")
    assert [call.error_kind for call in failed.values()] == ["OUTPUT_TOO_LARGE"]
    assert client.outputs("escapes")[1] == "x"


def test_arguments_that_python_cannot_hold_exactly_fail_their_calls(client):
    """Each of them ARGS_INVALID with a reason; the calls beside them succeed."""
    bad = {
        "9" * 4301: "4300 digits",
        "-" + "9" * 4301: "4300 digits",
        '{"a": [1, ' + "1" * 5000 + "]}": "4300 digits",
        "1e400": "out of range",
        "-1e999": "out of range",
        "[" * 256 + "]" * 256: "256 levels",
        '{"k":' * 256 + "1" + "}" * 256: "256 levels",
    }
    args = ",".join(f"[1],[{text}]" for text in bad)
    client.submit_calls("bad-args", "values.echo", f"[{args}]".encode(), call_failure_policy=2)
    failed = failed_calls(client, "bad-args")
    assert list(failed) == list(range(1, 2 * len(bad), 2))
    for reason, call in zip(bad.values(), failed.values(), strict=True):
        assert (call.error_kind, call.attempts) == ("ARGS_INVALID", 1), call
        assert reason in call.message
    assert client.outputs("bad-args")[::2] == [1] * len(bad)


def test_arguments_larger_than_a_frame_fail_their_call(client):
    """ARGS_TOO_LARGE with the numbers, never sent; the largest that fits arrives."""
    fits, large = "a" * (FRAME_BYTES - 2000), "a" * FRAME_BYTES
    client.submit_calls(
        "large-args",
        "values.row",
        [["k", 1], [large, 2], [fits[: FRAME_BYTES // 2], 3]],
        call_failure_policy=2,
    )
    failed = failed_calls(client, "large-args")
    assert list(failed) == [1]
    assert failed[1].error_kind == "ARGS_TOO_LARGE"
    assert f"at most {FRAME_BYTES}" in failed[1].message
    assert len(failed[1].args_preview) <= 200
    client.submit_calls("fitting-args", "values.length", [[fits]])
    assert state_name(client.wait("fitting-args").state) == "SUCCEEDED"
    assert client.outputs("fitting-args") == [len(fits)]


def test_a_lone_surrogate_in_the_arguments_is_refused_with_the_task(client):
    """It is no JSON text that any reader takes, so nothing is accepted; the answer says what to look for."""
    for number, text in enumerate(('"\\ud800"', '"a\\udc00b"', '"\\ud800\\u0041"', '{"\\udfff": 1}')):
        args = f'[["\\ud83d\\ude00"], [{text}], ["after"]]'.encode()
        code, message = refusal(lambda n=number, a=args: client.submit_calls(f"lone-{n}", "values.echo", a))  # type: ignore[misc]
        assert code == "INVALID_ARGUMENT"
        assert "function_call_config.config" in message
        assert "from \\ud800 to \\udfff must be one of a pair" in message


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1.", "01", "'a'", "undefined", '"\x01"', ""]
)
def test_arguments_that_are_not_json_are_refused_with_the_task(client, text):
    """What is not JSON is not accepted, whatever a lenient reader would make of it."""
    config = f"[[1], [[{text}], 2]]" if text else "[[1], "
    code, message = refusal(lambda: client.submit_calls("no-json", "values.echo", config.encode()))
    assert code == "INVALID_ARGUMENT"
    assert "function_call_config.config" in message
    assert "JSON" in message


def test_arguments_too_deep_to_be_read_at_all_are_refused_with_the_task(client):
    deep = b"[[" + b"[" * 200_000 + b"]" * 200_000 + b"]]"
    code, message = refusal(lambda: client.submit_calls("abyss", "values.echo", deep))
    assert code == "INVALID_ARGUMENT"
    assert "nested too deep" in message


def test_messages_of_user_errors_arrive_whatever_is_in_them(client):
    """An exception is shown as far as text can be shown, and cut where it is too long."""
    shown = {
        "surrogate": "a\\ud800b",
        "nul": "a\0b",
        "astral": "\U0001f600" * 100,
        "long": "x" * 400,
        "no text": "NoText: <not shown",
        "group": "two at once",
    }
    client.submit_calls("errors", "values.fail", [[name] for name in shown], call_failure_policy=2)
    failed = failed_calls(client, "errors")
    for text, call in zip(shown.values(), failed.values(), strict=True):
        assert call.error_kind == "USER_ERROR"
        assert text in call.message, call
        assert len(call.message) <= 500


def test_a_row_with_a_long_negative_int_inside_a_list_is_kept_exactly(client, tmp_path):
    """Lists are kept as JSON text, in which an int has all its digits."""
    value = [-MAX_INT, {"a": MAX_INT}, 1.5]
    client.submit_rows("nested-int", "values.row", [["k", value]], handler(tmp_path))
    result = client.wait("nested-int")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    [(text,)] = rows(tmp_path, "value")
    assert_same([json.loads(text)], [value])


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no row": (5, "bad row: output 1: expected a row (an object), a list of rows or null, got 5"),
    "no row in a list": ([{"key": 1}, "x"], 'bad row: output 1, row 1: expected an object, got "x"'),
    "no columns": ({}, "bad row: output 1: the row has no columns"),
    "nul": ({"a\0b": 1}, "bad row: output 1, column"),
    "nameless": ({"": 1}, "bad row: output 1, column"),
    "alike": ({"key": 1, "KEY": 2}, 'column "KEY": SQLite does not tell it from the column "key"'),
    "unknown": ({"key": 1, "other": 2}, 'column "other": table "t" has no such column, it has key'),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_no_table_can_hold_fails_the_task_by_output_and_column(client, tmp_path, name):
    """Nothing of its transaction stays."""
    row, expected = BAD_ROWS[name]
    with closing(sqlite3.connect(tmp_path / "values.db")) as connection:
        connection.execute("CREATE TABLE t (key)")
    client.submit_rows(f"bad-{name}", "values.echo", [[{"key": 0}], [row], [{"key": 2}]], handler(tmp_path))
    result = client.wait(f"bad-{name}")
    assert (state_name(result.state), result.failure.code) == ("FAILED", "PLUGIN_FAILED")
    assert expected in result.failure.message
    assert rows(tmp_path, "key") == []


def test_an_int_that_a_numeric_column_would_round_fails_the_task_by_column(client, tmp_path):
    """A table that somebody else made may have types; what does not fit them exactly is not written."""
    with closing(sqlite3.connect(tmp_path / "values.db")) as connection:
        connection.execute("CREATE TABLE t (key TEXT, value INTEGER)")
    client.submit_rows("rounded", "values.row", [["k", 1], ["k", 2**256 - 1]], handler(tmp_path))
    failure = client.wait("rounded").failure
    assert failure.code == "PLUGIN_FAILED"
    assert 'bad row: output 1, column "value": 1157920892373' in failure.message
    assert "declare it TEXT" in failure.message
    assert rows(tmp_path, "key, value") == []


# --- helpers ------------------------------------------------------------------------------------------------------


def echoed(client: OfficialClient, task_id: str, values: list[Any], *, ensure_ascii: bool) -> list[Any]:
    args = json.dumps([[value] for value in values], ensure_ascii=ensure_ascii).encode()
    client.submit_calls(task_id, "values.echo", args)
    result = client.wait(task_id)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    return client.outputs(task_id)


def exact(value: Any) -> Any:
    """A form in which only the very same value is equal: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}, list(value)
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value), value, isinstance(value, float) and math.copysign(1, value)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Equal to the last digit; the message shows the first difference, shortened."""
    assert len(found) == len(expected)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert exact(one) == exact(other), f"{index}: {one!r:.200} is not {other!r:.200}"


def failed_calls(client: OfficialClient, task_id: str) -> dict[int, Any]:
    """The failed calls of a task by index."""
    result = client.wait(task_id)
    assert (state_name(result.state), result.failure.code) == ("FAILED", "CALLS_FAILED")
    return {call.index: call for call in result.failed_calls}


def handler(folder: Path) -> dict[str, Any]:
    return {"target": f"sqlite:///{folder}/values.db", "table": "t"}


def rows(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "values.db")) as connection:
        return connection.execute(f"SELECT {columns} FROM t ORDER BY rowid").fetchall()


def from_column(cell: Any, value: Any) -> Any:
    """What a reader makes of a cell who knows the kind of value that was written."""
    if isinstance(value, bool):
        return {0: False, 1: True}.get(cell)
    if isinstance(value, int) and isinstance(cell, str):
        return int(cell)
    if isinstance(value, list | dict):
        return json.loads(cell)
    return cell
