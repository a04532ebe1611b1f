"""`blockx token new`: a token for a client, and its entry for the worker's tokens file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.cli.options import DURATION
from blockx_worker.security.tokens import TokensError, digest_of, new_token, parse_tokens

__all__ = ["token"]


@click.group()
def token() -> None:
    """Make tokens, which clients show to a worker that runs with --tokens."""


@token.command()
@click.option("--name", required=True, help="Whose token it is; shown in errors and logs.")
@click.option("--scopes", required=True, metavar="submit,read|admin", help="What it allows.")
@click.option("--expires", type=DURATION, help="How long it is good for, e.g. 90d; default for ever.")
@click.option("--out", type=click.Path(path_type=Path), metavar="F", help="Write the token to a new file.")
def new(name: str, scopes: str, expires: int | None, out: Path | None) -> None:
    """Print a new token, once, and the entry that makes a worker accept it.

    The entry goes to stdout, so that `>> tokens.toml` adds it to the worker's file. The token goes to stderr, or with
    --out to a file for --token-file that only you can read. The worker keeps no token, only its digest: a lost one
    cannot be shown again.
    """
    secret = new_token()
    entry = _entry(name, scopes, secret, expires)
    if out is None:
        click.echo(f"token (shown this once): {secret}", err=True)
    else:
        _write(out, secret)
    click.echo(entry)


def _entry(name: str, scopes: str, secret: str, expires_ms: int | None) -> str:
    wanted = [scope.strip() for scope in scopes.split(",")]
    lines = [
        "[[token]]",
        f"name = {_toml(name)}",
        f'sha256 = "{digest_of(secret).hex()}"',
        f"scopes = [{', '.join(map(_toml, wanted))}]",
    ]
    if expires_ms is not None:
        end = datetime.now(UTC) + timedelta(milliseconds=expires_ms)
        lines.append(f"expires = {end:%Y-%m-%dT%H:%M:%SZ}")
    entry = "\n".join(lines) + "\n"
    try:
        parse_tokens(entry.encode())
    except TokensError as error:
        raise CommandFailed(str(error).partition(": ")[2]) from None
    return entry


def _toml(text: str) -> str:
    """A TOML string is written like one of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _write(path: Path, secret: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret + "\n")
    except FileExistsError:
        raise CommandFailed(
            f"--out {path}: the file exists, and another token may be in it; name a new one"
        ) from None
    except OSError as error:
        raise CommandFailed(f"--out {path}: {error.strerror}") from None
