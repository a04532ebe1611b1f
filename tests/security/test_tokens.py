"""The tokens file: what it may say, what is wrong with it in one clause, and how a token is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from blockx_worker.security.tokens import (
    MAX_FILE_BYTES,
    Scope,
    TokensError,
    digest_of,
    new_token,
    parse_tokens,
    read_tokens,
)

TOKEN = "blx_an-example-of-a-long-random-token"
SHA = hashlib.sha256(TOKEN.encode()).hexdigest()


def entry(**fields: str) -> str:
    """One entry; fields are TOML texts, an empty one is left out."""
    values = {"name": "'ci'", "sha256": f"'{SHA}'", "scopes": "['submit']"} | fields
    return "[[token]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items() if value)


def problem(text: str) -> str:
    with pytest.raises(TokensError) as caught:
        parse_tokens(text.encode())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_token_is_found_by_its_digest_and_by_nothing_else():
    table = parse_tokens((entry(name="'other'", sha256=f"'{'0' * 64}'") + entry()).encode())
    found = table.find(TOKEN)
    assert found is not None
    assert found.name == "ci"
    for wrong in ("", TOKEN[:-1], TOKEN + " ", SHA, TOKEN.upper(), "\udcff"):
        assert table.find(wrong) is None


def test_what_a_token_allows():
    [token] = parse_tokens(entry(scopes="['submit', 'read']").encode()).tokens
    assert [token.allows(scope) for scope in Scope] == [True, True, False]
    [admin] = parse_tokens(entry(scopes="['admin']").encode()).tokens
    assert all(map(admin.allows, Scope))


def test_an_end_of_validity_is_a_moment_in_time():
    [token] = parse_tokens(entry(expires="2027-01-31T01:00:00+01:00").encode()).tokens
    assert token.expires_ms == 1_801_353_600_000


def test_an_empty_file_has_no_tokens():
    """So the last one can be taken away."""
    assert parse_tokens(b"").tokens == ()


WRONG = {
    "token = 1": "is not a list of [[token]] tables",
    "[token]\nname = 'x'": "is not a list of [[token]] tables",
    "[[tokens]]": "has something beside [[token]] tables",
    "[[token": "is not valid TOML",
    entry(name=""): "token 1: name must be 1 to 64 printable characters",
    entry(name='"a\\u0007"'): "token 1: name must be",
    entry(name="''"): "token 1: name must be",
    entry(name="'" + "x" * 65 + "'"): "token 1: name must be",
    entry(sha256=""): "token 1 ('ci'): sha256 must be the 64 hexadecimal digits",
    entry(sha256=f"'{TOKEN}'"): "sha256 must be the 64 hexadecimal digits",
    entry(sha256="1"): "sha256 must be the 64 hexadecimal digits",
    entry(scopes=""): "scopes must be a list of one or more of submit, read, admin",
    entry(scopes="[]"): "scopes must be a list",
    entry(scopes="'submit'"): "scopes must be a list",
    entry(scopes="['write']"): "scopes must be a list",
    entry(scopes="[1]"): "scopes must be a list",
    entry(scopes="[['read']]"): "scopes must be a list",
    entry(expires="2027-01-31"): "expires must be a time with its zone, such as",
    entry(expires="2027-01-31T00:00:00"): "expires must be a time with its zone",
    entry(expires="'soon'"): "expires must be a time with its zone",
    entry(secret="'x'"): "token 1: has a key that is none of expires, name, scopes, sha256",
    entry() + entry(sha256=f"'{'1' * 64}'"): "token 2: has the same name as token 1",
    entry() + entry(name="'b'"): "token 2: has the same sha256 as token 1",
}


@pytest.mark.parametrize(("text", "expected"), WRONG.items())
def test_what_is_wrong_is_named_and_no_value_is_quoted(text, expected):
    told = problem(text)
    assert expected in told
    assert TOKEN not in told
    assert SHA not in told


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(TokensError, match="not UTF-8"):
        parse_tokens(b"\xff\xfe")


@pytest.mark.parametrize("mode", [0o604, 0o640 | 0o020, 0o602, 0o644, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path, mode):
    path = tmp_path / "tokens.toml"
    path.write_text(entry())
    path.chmod(mode)
    with pytest.raises(TokensError, match=f"permissions {mode:04o}.*chmod 600"):
        read_tokens(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_the_group_may_read(tmp_path, mode):
    path = tmp_path / "tokens.toml"
    path.write_text(entry())
    path.chmod(mode)
    assert read_tokens(path) == entry().encode()


def test_a_file_that_is_missing_a_folder_or_too_large_is_refused(tmp_path: Path):
    with pytest.raises(TokensError, match="no such file"):
        read_tokens(tmp_path / "none")
    with pytest.raises(TokensError, match="cannot be read: Is a directory"):
        read_tokens(tmp_path)
    large = tmp_path / "large"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    large.chmod(0o600)
    with pytest.raises(TokensError, match=f"more than {MAX_FILE_BYTES} bytes"):
        read_tokens(large)


def test_new_tokens_are_long_printable_and_all_different():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("blx_") and token.isprintable() and len(token) == 47 for token in tokens)
    assert len({digest_of(token) for token in tokens}) == 100


def test_a_token_does_not_show_its_digest():
    [token] = parse_tokens(entry().encode()).tokens
    assert SHA[:16] not in repr(token)
    assert str(digest_of(TOKEN)) not in repr(token)
