"""Durations, sizes, addresses and masking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_worker.config import format_address, is_loopback, is_wildcard, parse_address, redact_url
from blockx_worker.config.values import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("5s", 5000), ("1.5s", 1500), ("10m", 600_000), ("1h", 3_600_000), ("2d", 172_800_000)],
)
def test_durations_with_a_unit_are_read(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["0s", "0ms", "0.0s", " 0 s "])
def test_a_duration_may_be_zero(text):
    assert parse_duration(text) == 0


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 seconds", "-5s", "1e3s", "0.0001s", "5s5s", "\u0665s", "1_0s"]
)
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match=r"expected a number and a unit|not a whole number"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("100B", 100),
        ("64MiB", 67_108_864),
        ("1GiB", 1 << 30),
        ("10MB", 10_000_000),
        ("1.5kib", 1536),
    ],
)
def test_sizes_with_a_unit_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "64M", "MiB", "-1B", "0.3B", "64 mebibytes"])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(ValueError, match=r"expected a number and a unit|not a whole number"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_what_is_shown_of_a_duration_reads_as_the_same_duration(ms):
    assert parse_duration(format_duration(ms)) == ms


@given(st.integers(min_value=0, max_value=1 << 50))
def test_what_is_shown_of_a_size_reads_as_the_same_size(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7420", "127.0.0.1", 7420),
        ("worker-3.example:0", "worker-3.example", 0),
        ("[::1]:80", "::1", 80),
    ],
)
def test_addresses_are_split_and_put_together_again(text, host, port):
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7420",
        ":7420",
        "host",
        "host:",
        "host:http",
        "host:65536",
        "::1:80",
        "[x]:1",
        "http://h:1",
        "a b:1",
    ],
)
def test_other_texts_are_no_addresses(text):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_address(text)


def test_hosts_are_told_apart_by_who_can_reach_them():
    assert [is_loopback(h) for h in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "10.0.0.1", "::", "worker.example")] == [False] * 4
    assert [is_wildcard(h) for h in ("0.0.0.0", "::", "10.0.0.1", "localhost")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://bob:pw@db/prod", "postgresql://bob:***@db/prod"),
        ("postgresql://bob:p@s:s/w@db/prod", "postgresql://bob:***@db/prod"),
        ("postgresql://:pw@db", "postgresql://:***@db"),
        ("postgresql://db/x?user=bob&password=pw&a=1", "postgresql://db/x?user=bob&password=***&a=1"),
        ("host=db password='p w' user=bob", "host=db password=*** user=bob"),
        ("failed: 'https://k:pw@h/x' and more", "failed: 'https://k:***@h/x' and more"),
    ],
)
def test_passwords_are_masked(text, shown):
    assert redact_url(text) == shown


@pytest.mark.parametrize(
    "text",
    ["sqlite:////data/out.db", "http://127.0.0.1:8545", "postgresql://bob@db/prod", "a:b@c", "12:30@noon"],
)
def test_texts_without_secrets_stay_as_they_are(text):
    assert redact_url(text) == text


@pytest.mark.parametrize("piece", ["y", "://", "a://b:", "a://b:c@", "password=", "://x:@"])
def test_masking_a_long_text_takes_time_in_proportion(piece):
    """A function may print anything; if this were quadratic, the test would run for hours."""
    text = piece * (4_000_000 // len(piece))
    assert len(redact_url(text)) <= len(text)
