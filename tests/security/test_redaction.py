"""Bearer tokens in texts that people see."""

from __future__ import annotations

import pytest

from blockx_worker.config import redact_url
from blockx_worker.security.tokens import new_token


@pytest.mark.parametrize(
    "shown", ["{}", "token {}.", "'authorization': 'Bearer {}'", "x={}&y=1", "({})", "Bearer {}"]
)
def test_our_own_tokens_are_masked_wherever_they_stand(shown):
    token = new_token()
    assert token[8:] not in redact_url(shown.format(token))


@pytest.mark.parametrize(
    "text",
    [
        "Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc",
        "authorization: bearer c2VjcmV0LXRva2Vu=",
        "BEARER 0123456789abcdef",
    ],
)
def test_other_tokens_are_masked_after_their_scheme(text):
    scheme, _, token = text.rpartition(" ")
    assert redact_url(text) == f"{scheme} ***"
    assert token not in redact_url(text)


@pytest.mark.parametrize(
    "text", ["the bearer of bad news", "blx_short", "bearer", "Bearer TOKEN", "forbearer 1"]
)
def test_words_are_left_alone(text):
    assert redact_url(text) == text


def test_masking_takes_no_longer_than_the_text():
    """A second for this would mean that the work grows with the square."""
    text = "Bearer blx_ bearer " * 200_000
    assert redact_url(text) == text
