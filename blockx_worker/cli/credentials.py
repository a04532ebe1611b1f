"""How a command proves who it is and that it talks to the right worker: certificates and a token, from files.

The options store what they get in the click context, which a group shares with its commands: so they may stand before or
after the command, and no function in between passes them on. A token never stands on the command line, where every user
of the machine could read it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from blockx_worker.cli.errors import CommandFailed
from blockx_worker.security.files import too_open
from blockx_worker.security.tls import TlsFileError, client_context

__all__ = ["client_credentials", "credentials_options"]

F = TypeVar("F", bound=Callable[..., Any])

MAX_TOKEN_BYTES = 4096

_KEY = "blockx_worker.credentials"


def credentials_options(command: F) -> F:
    """``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--token-file``."""
    options = (
        _option(
            "--tls-ca", help="Connect with TLS; the worker's certificate is signed by one of these (PEM)."
        ),
        _option("--tls-cert", help="Your own certificate, where the worker asks for one."),
        _option("--tls-key", help="Its key."),
        _option("--token-file", help="File with your token.", envvar="BLOCKX_TOKEN_FILE"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def client_credentials() -> dict[str, Any]:
    """What the running command was given, as options of the client; `CommandFailed` for a file that cannot be used."""
    context = click.get_current_context(silent=True)
    given: dict[str, Path] = {} if context is None else context.meta.get(_KEY, {})
    credentials: dict[str, Any] = {}
    if "token_file" in given:
        credentials["token"] = _read_token(given["token_file"])
    ca, cert, key = (given.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    if ca is not None:
        try:
            credentials["tls"] = client_context(ca, cert, key)
        except TlsFileError as error:
            raise CommandFailed(f"--tls-{error.file} {error}") from None
    elif cert is not None or key is not None:
        raise CommandFailed("--tls-cert and --tls-key need --tls-ca: without it the connection is plain text")
    return credentials


def _option(name: str, **options: Any) -> Callable[[F], F]:
    return click.option(
        name, type=click.Path(path_type=Path), metavar="F", expose_value=False, callback=_store, **options
    )


def _store(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None and parameter.name is not None:
        context.meta.setdefault(_KEY, {})[parameter.name] = value


def _read_token(path: Path) -> str:
    try:
        problem = too_open(path.stat())
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise CommandFailed(f"--token-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token or len(token) > MAX_TOKEN_BYTES:
        raise CommandFailed(f"--token-file {path}: expected one token, alone in the file")
    if problem:
        click.echo(f"warning: {path} {problem}", err=True)
    return token
