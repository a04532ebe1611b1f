"""The JSON rules: values survive exactly, or fail with a sentence that names the place."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_executor.wire.json_reading import ArgsInvalid, decode_args, decode_rows, decode_value
from blockx_executor.wire.json_rules import (
    MAX_JSON_DEPTH,
    MAX_OUTPUT_BYTES,
    OutputNotJson,
    OutputTooLarge,
    encode_output,
    encode_request,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_plain_values_survive_both_ways(value: object) -> None:
    """What a function returns is what the next one receives."""
    [back] = decode_args(b"[" + encode_output(value) + b"]")
    assert back == value
    assert repr(back) == repr(value)  # 1, 1.0 and True are equal, but not the same


@pytest.mark.parametrize(
    "number",
    [2**256 - 1, -(2**200), 2**63, -(2**63) - 1, 2**64, 10**4300 - 1, -(10**4300) + 1],
    ids=lambda number: hex(number)[:20],
)
def test_integers_keep_every_digit(number: int) -> None:
    """Up to 4300 digits, as output and as argument."""
    assert encode_output({"n": [number]}) == b'{"n":[%d]}' % number
    args = decode_args(b"[%d]" % number)
    assert args == [number]
    assert type(args[0]) is int


@pytest.mark.parametrize("number", [10**4300, -(10**4300)], ids=["positive", "negative"])
def test_integers_with_more_digits_fail(number: int) -> None:
    """4301 digits."""
    with pytest.raises(OutputNotJson, match=r"at \$: the int has more than 4300 digits"):
        encode_output(number)
    text = ("-" if number < 0 else "") + "1" + "0" * 4300
    with pytest.raises(ArgsInvalid, match="more than 4300 digits"):
        decode_args(f"[{text}]".encode())


class _Scalar:
    """Like a numpy scalar."""

    ndim = 0
    dtype = collections.namedtuple("dtype", "kind")("f")  # noqa: PYI024 - a stand-in

    def __init__(self, value: object) -> None:
        self._value = value

    def item(self) -> object:
        return self._value


class _Array(_Scalar):
    ndim = 1

    def tolist(self) -> list[object]:
        return [self._value]


@dataclasses.dataclass
class _Row:
    a: int


class _Colour(enum.IntEnum):
    RED = 1


class _Struct(msgspec.Struct):
    a: int


_UTC = dt.UTC
_Point = collections.namedtuple("_Point", "x y")  # noqa: PYI024 - the plain kind is meant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00\xff", '"0x00ff"'),
        (bytearray(b"\x01"), '"0x01"'),
        (memoryview(b"\x02"), '"0x02"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=_UTC), '"2024-01-02T03:04:05Z"'),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=2))), '"2024-01-02T03:04:05.000006+02:00"'),
        (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(seconds=30))), '"2024-01-02T03:03:35Z"'),
        (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=_UTC).replace(tzinfo=None), '"2024-01-02T03:04:05"'),
        (dt.date(2024, 1, 2), '"2024-01-02"'),
        (dt.time(3, 4, 5), '"03:04:05"'),
        ((1, (2, 3)), "[1,[2,3]]"),
        (_Point(1, 2), "[1,2]"),
        ({1: "a", b"\x01": "b"}, '{"1":"a","0x01":"b"}'),
        (collections.OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (_Scalar(1.5), "1.5"),
        (_Scalar(7), "7"),
        (type("MyStr", (str,), {})("x"), '"x"'),
        (type("MyInt", (int,), {})(2**70), str(2**70)),
        (-0.0, "-0.0"),
        ("ünï😀\u2028\x00", '"ünï😀\u2028\\u0000"'),
    ],
)  # fmt: skip
def test_richer_values_have_one_text(value: object, text: str) -> None:
    """Bytes as hex, decimals and times as strings, tuples as arrays, numpy scalars as numbers."""
    assert encode_output(value).decode() == text


_CYCLE: list[object] = [1]
_CYCLE.append({"me": _CYCLE})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"rows": [0, 1, 2, {"value": math.nan}]}, "at $.rows[3].value: nan is not a JSON number"),
        ([math.inf], "at $[0]: inf is not a JSON number"),
        ({"a b": [math.nan]}, 'at $["a b"][0]: nan'),
        (decimal.Decimal("NaN"), "at $: Decimal NaN"),
        (_Scalar(math.nan), "at $: nan is not a JSON number"),
        ({"s": "a\ud800"}, "at $.s: the string has a lone surrogate (U+D800) at position 1"),
        ({"a": {"\udfff": 1}}, "at $.a: a key cannot be written: the string has a lone surrogate (U+DFFF)"),
        ([{1: "a", "1": "b"}], "at $[0]: the keys 1 and '1' would both be written as '1'"),
        ({b"\x01": 1, "0x01": 2}, "would both be written as '0x01'"),
        ({None: 1}, "the key None is of type NoneType; keys must be str, int or bytes"),
        ({True: 1}, "the key True is of type bool"),
        ({1.5: 1}, "the key 1.5 is of type float"),
        ({(1, 2): 1}, "the key (1, 2) is of type tuple"),
        ({"x": {1, 2}}, "at $.x: a value of type set cannot be written as JSON; a set has no order"),
        (frozenset(), "type frozenset"),
        (object(), "a value of type object cannot be written as JSON; return a dict"),
        ((n for n in [1]), "type generator cannot be written as JSON; return a list"),
        (range(3), "type range cannot be written as JSON; return a list"),
        (_Row(1), "type _Row cannot be written as JSON; return a dict of its fields"),
        (_Struct(1), "type _Struct cannot be written as JSON; return a dict of its fields"),
        (_Colour.RED, "is an Enum member; return its .value"),
        (_Array(1), "return its tolist()"),
        (dt.timedelta(1), "return its total_seconds()"),
        (1j, "type complex"),
        (_CYCLE, "$[1].me contains itself"),
    ],
)
def test_what_json_cannot_hold_fails_with_its_place(value: object, reason: str) -> None:
    """Never null, never rounded, never in some order."""
    with pytest.raises(OutputNotJson) as caught:
        encode_output(value)
    assert reason in str(caught.value)


def _nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_has_a_limit_both_ways() -> None:
    """The deepest allowed value passes, one level more does not, and no depth breaks the interpreter."""
    text = encode_output(_nested(MAX_JSON_DEPTH))
    assert decode_args(text) == _nested(MAX_JSON_DEPTH)
    with pytest.raises(OutputNotJson, match="nested more than 256 levels deep"):
        encode_output(_nested(MAX_JSON_DEPTH + 1))
    for levels in (MAX_JSON_DEPTH + 1, 100_000):
        with pytest.raises(ArgsInvalid, match="nested more than 256 levels deep"):
            decode_args(b"[" * levels + b"]" * levels)


def test_many_brackets_are_not_depth() -> None:
    """A wide value, and brackets inside strings."""
    wide: list[object] = [[] for _ in range(1000)] + ["[[" * 500]
    assert decode_args(json.dumps(wide).encode()) == wide


def test_an_output_beyond_the_limit_names_size_and_limit() -> None:
    """The limit leaves room for the rest of the message."""
    with pytest.raises(OutputTooLarge, match=r"has 12 bytes as JSON; a call may return at most 11 bytes"):
        encode_output("x" * 10, max_bytes=11)
    assert len(encode_output("x" * (MAX_OUTPUT_BYTES - 2))) == MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a":1}', 'must be a JSON array such as [1, 2]; they are {"a":1}'),
        (b"7", "must be a JSON array"),
        (b"null", "must be a JSON array"),
        (b"[1", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[NaN]", "not valid JSON"),
        (b"[1e999]", "not valid JSON"),
        (b'["\\ud800"]', "must be one of a pair"),
        (b'["\\udc00x"]', "must be one of a pair"),
        (b'["\xff"]', "not valid JSON"),
        (b"[" + b"1" * 4301 + b',"\\ud800"]', "more than 4300 digits"),
        (b"[-" + b"1" * 4300 + b',"\\ud800"]', "lone surrogate"),
        (b"[-" + b"1" * 4300 + b",NaN]", "NaN is not JSON"),
        (b'{"a":-' + b"1" * 4300 + b"}", "must be a JSON array"),
    ],
)
def test_arguments_that_cannot_be_read_exactly_fail(raw: bytes, reason: str) -> None:
    """Each says what is wrong."""
    with pytest.raises(ArgsInvalid) as caught:
        decode_args(raw)
    assert reason in str(caught.value)


def test_paired_surrogate_escapes_are_one_character() -> None:
    """JSON's own way to write a character beyond the first plane."""
    assert decode_args(b'["\\ud83d\\ude00"]') == ["😀"]


# --- requests and answers ---------------------------------------------------------------------------------------


def test_what_cannot_be_sent_is_named_with_its_place() -> None:
    """The sentence begins with what the caller was doing."""
    with pytest.raises(
        ValueError, match=r"^Arguments of m.f cannot be written as JSON: at \$\[1\].a: .* a set has no"
    ):
        encode_request([1, {"a": {2}}], "Arguments of m.f")
    with pytest.raises(
        ValueError, match=r"^Arguments of m\.f: 102 bytes as JSON; at most 100 bytes can be sent"
    ):
        encode_request("x" * 100, "Arguments of m.f", 100)
    with pytest.raises(ValueError, match="contains itself"):
        encode_request(_cyclic(), "Arguments of m.f")


def _cyclic() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@given(json_values)
def test_answers_are_read_exactly(value: object) -> None:
    """As a value, as an array of rows, as rows by line."""
    text = encode_output(value)
    assert decode_value(text) == value
    assert decode_rows(b"[" + text + b"," + text + b"]") == [value, value]
    row = b'{"a":' + text + b"}"
    assert decode_rows(row + b"\n\n" + row + b"\n") == [{"a": value}] * 2


def test_long_ints_in_answers_keep_every_digit() -> None:
    """Also a negative one of full length, in a line and in an array."""
    number = -(10**4300 - 1)
    assert decode_value(str(number).encode()) == number
    assert decode_rows(f'{{"a":1}}\n{{"a":{number}}}'.encode()) == [{"a": 1}, {"a": number}]
    assert decode_rows(f'[{{"a":{number}}}]'.encode()) == [{"a": number}]
    assert decode_rows(b"") == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a":1}\n{"b":}', "line 2: it is not valid JSON"),
        (b"[1", "it is not valid JSON"),
        (b'{"a":-1' + b"0" * 4300 + b"}", "line 1: an int has more than 4300 digits"),
        (b"[" * 100_000, "nested more than 256 levels deep"),
        (b'{"a":' + b"[" * 100_000 + b"}", "line 1: it is nested more than 256 levels deep"),
        (b'{"a":"\xff"}', "line 1"),
    ],
)
def test_answers_that_are_not_exact_say_why(raw: bytes, reason: str) -> None:
    """With the line, where there are lines."""
    with pytest.raises(ValueError, match=reason):
        decode_rows(raw)
