"""Bearer tokens: the file that lists them, and how one that a client shows is found in it.

The file holds no token, only SHA-256 digests of long random ones, so whoever reads it can use nothing in it::

    [[token]]
    name = "nightly-backfill"                # for people, in errors and logs
    sha256 = "9f86d081884c7d65…"             # of the whole token, 64 hexadecimal digits
    scopes = ["submit", "read"]              # or "admin", which is everything
    expires = 2027-01-31T00:00:00Z           # optional

Trap: errors quote nothing of the file but names. Somebody may have written a token where its digest belongs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs

from blockx_worker.security.files import too_open

__all__ = [
    "Scope",
    "Token",
    "TokenTable",
    "TokensError",
    "digest_of",
    "new_token",
    "parse_tokens",
    "read_tokens",
]

MAX_FILE_BYTES = 1 << 20
MAX_NAME_CHARS = 64
PREFIX = "blx_"
"""Of tokens made here, so that a lost one is recognized, and masked in logs."""

_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_FIELDS = {"name", "sha256", "scopes", "expires"}


class Scope(StrEnum):
    """What a token allows."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


class TokensError(ValueError):
    """The file cannot be used; the message is one clause that says what is wrong with it."""


@attrs.frozen(kw_only=True)
class Token:
    """What is known of one token. ``expires_ms`` is wall time since the Unix epoch; None = never."""

    name: str
    digest: bytes = attrs.field(repr=False)
    scopes: frozenset[Scope]
    expires_ms: int | None = None

    def allows(self, scope: Scope) -> bool:
        """Whether the token is good for this."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


@attrs.frozen
class TokenTable:
    """All tokens of one file."""

    tokens: tuple[Token, ...] = ()

    def find(self, shown: str) -> Token | None:
        """The entry of a token, found in a time that does not tell how much of it was right."""
        digest, found = digest_of(shown), None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def new_token() -> str:
    """A token that nobody can guess: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """The SHA-256 digest of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_tokens(path: str | os.PathLike[str]) -> bytes:
    """The file's bytes; `TokensError` if it cannot be read or others could read or change it."""
    try:
        with Path(path).open("rb") as file:
            problem = too_open(os.fstat(file.fileno()))
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise TokensError("no such file") from None
    except OSError as error:
        raise TokensError(f"cannot be read: {error.strerror}") from None
    if problem:
        raise TokensError(problem)
    if len(data) > MAX_FILE_BYTES:
        raise TokensError(f"has more than {MAX_FILE_BYTES} bytes")
    return data


def parse_tokens(data: bytes) -> TokenTable:
    """The tokens of a file's bytes; `TokensError` names the entry and the field."""
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise TokensError("is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise TokensError(f"is not valid TOML: {error}") from None
    entries = document.pop("token", [])
    if document:
        raise TokensError("has something beside [[token]] tables")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TokensError("is not a list of [[token]] tables")
    tokens = tuple(_token(number, entry) for number, entry in enumerate(entries, 1))
    _check_unique("name", [token.name for token in tokens])
    _check_unique("sha256", [token.digest for token in tokens])
    return TokenTable(tokens)


def _token(number: int, entry: Mapping[str, Any]) -> Token:
    where = f"token {number}"
    if not entry.keys() <= _FIELDS:
        raise TokensError(f"{where}: has a key that is none of {', '.join(sorted(_FIELDS))}")
    name = entry.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise TokensError(f"{where}: name must be 1 to {MAX_NAME_CHARS} printable characters")
    where = f"token {number} ({name!r})"
    sha256 = entry.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise TokensError(f"{where}: sha256 must be the 64 hexadecimal digits of the token's SHA-256 digest")
    return Token(
        name=name,
        digest=bytes.fromhex(sha256),
        scopes=_scopes(where, entry.get("scopes")),
        expires_ms=_expires(where, entry.get("expires")),
    )


def _scopes(where: str, value: Any) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    if not isinstance(value, list) or not value or any(scope not in known for scope in value):
        raise TokensError(f"{where}: scopes must be a list of one or more of {', '.join(known)}")
    return frozenset(map(Scope, value))


def _expires(where: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TokensError(f"{where}: expires must be a time with its zone, such as 2027-01-31T00:00:00Z")
    return int(value.timestamp() * 1000)


def _check_unique(field: str, values: Sequence[object]) -> None:
    for number, value in enumerate(values, 1):
        first = values.index(value) + 1
        if first < number:
            raise TokensError(f"token {number}: has the same {field} as token {first}")
