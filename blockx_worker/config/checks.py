"""Rules over more than one setting, and rules about the machine: folders that must exist, addresses that must be safe."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from blockx_worker.config.addresses import is_loopback, is_wildcard, parse_address
from blockx_worker.config.errors import problem_line
from blockx_worker.config.fields import value_at
from blockx_worker.config.redact import redact_url
from blockx_worker.config.security_settings import TlsSettings
from blockx_worker.config.settings import Settings
from blockx_worker.config.shown import shown_value
from blockx_worker.security.tls import TlsFileError, server_context
from blockx_worker.security.tokens import TokensError, parse_tokens, read_tokens

__all__ = ["check_settings"]

# A Unix socket path holds 107 bytes; the executor's folder and the socket's name need the rest.
MAX_RUNTIME_DIR_BYTES = 60

_REGISTRY_PREFIX = re.compile(r"/([A-Za-z0-9._-]+/)+", re.ASCII)
_TARGET_URL = re.compile(r"sqlite:///.+|postgres(ql)?://.+", re.ASCII)

_ETCD_NEEDS = (
    ("user", "password"),
    ("password", "user"),
    ("tls_cert", "tls_ca"),
    ("tls_cert", "tls_key"),
    ("tls_key", "tls_cert"),
)

_ORDERED = (
    ("default_ttl_ms", "max_ttl_ms"),
    ("default_timeout_ms", "max_timeout_ms"),
    ("rpc.max_wait_ms", "max_timeout_ms"),
    ("stream_build.batch_max_args_bytes", "rpc.max_request_bytes"),
)


def check_settings(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """One line for each rule that the settings break. ``origins`` holds what did not stay at its default."""

    def bad(path: str, what: str) -> str:
        return problem_line(path, shown_value(settings, path), origins.get(path, "default"), what)

    for low, high in _ORDERED:
        if value_at(settings, low) > value_at(settings, high):
            limit = value_at(settings, high)
            yield bad(low, f"expected at most {high} = {limit} ({origins.get(high, 'default')})")
    dispatcher = settings.dispatcher
    if dispatcher.instance_fairness_quantum > 1 and not dispatcher.instance_fairness:
        yield bad("dispatcher.instance_fairness_quantum", "needs dispatcher.instance_fairness = true")
    if dispatcher.heartbeat_timeout_ms < 2 * dispatcher.heartbeat_interval_ms:
        yield bad(
            "dispatcher.heartbeat_timeout_ms",
            f"expected at least twice dispatcher.heartbeat_interval_ms = {dispatcher.heartbeat_interval_ms}",
        )
    yield from _check_addresses(settings, origins)
    yield from _check_folders(settings, origins)
    yield from _check_block_source(settings, origins)
    yield from _check_targets(settings, origins)
    yield from _check_cluster(settings, bad)
    yield from _check_tls(settings.tls, bad)
    if settings.tokens is not None:
        try:
            parse_tokens(read_tokens(settings.tokens))
        except TokensError as error:
            yield bad("tokens", str(error))


def _check_cluster(settings: Settings, bad: Callable[[str, str], str]) -> Iterator[str]:
    etcd, shadow = settings.etcd, settings.shadow
    if not _REGISTRY_PREFIX.fullmatch(settings.worker_registry_prefix):
        yield bad(
            "worker_registry_prefix",
            "expected names of letters, digits, '.', '_' and '-' between /, as in /a/b/",
        )
    for name, needed in _ETCD_NEEDS:
        if getattr(etcd, name) is not None and getattr(etcd, needed) is None:
            yield bad(f"etcd.{name}", f"needs etcd.{needed}")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        file = getattr(etcd, name)
        if file is not None and not Path(file).is_file():
            yield bad(f"etcd.{name}", "no such file")
    if shadow.target is not None and parse_address(shadow.target)[1] == 0:
        yield bad("shadow.target", "port 0 is only for listening")
    if shadow.sample_rate > 0 and shadow.target is None:
        yield bad("shadow.sample_rate", "needs shadow.target")


def _check_tls(tls: TlsSettings, bad: Callable[[str, str], str]) -> Iterator[str]:
    given = [name for name in ("cert", "key", "client_ca") if getattr(tls, name) is not None]
    missing = [name for name in ("cert", "key") if given and name not in given]
    if missing:
        yield bad(f"tls.{given[0]}", "needs " + " and ".join(f"tls.{name}" for name in missing))
    elif tls.cert is not None and tls.key is not None:
        try:
            server_context(tls.cert, tls.key, tls.client_ca)
        except TlsFileError as error:
            yield bad("tls.client_ca" if error.file == "ca" else f"tls.{error.file}", error.what)


def _check_addresses(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    origin = origins.get("listen", "default")
    host, _port = parse_address(settings.listen)
    if not is_loopback(host) and not settings.insecure and settings.tls.cert is None:
        yield problem_line(
            "listen",
            settings.listen,
            origin,
            "other machines could reach the worker in plain text; give it a certificate with --tls-cert and --tls-key, or "
            "listen on 127.0.0.1; if every machine on that network may run code here, say so with --insecure",
        )
    if is_wildcard(host) and settings.advertise is None:
        yield problem_line(
            "listen",
            settings.listen,
            origin,
            "clients cannot connect to a wildcard; set advertise (BLOCKX_ADVERTISE) to the HOST:PORT that they can reach",
        )
    if settings.advertise is not None and is_wildcard(parse_address(settings.advertise)[0]):
        yield problem_line(
            "advertise",
            settings.advertise,
            origins.get("advertise", "default"),
            "clients cannot connect to a wildcard; name the host that they can reach",
        )


def _check_folders(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    for path in ("functions_dir", "blocks_dir"):
        folder = value_at(settings, path)
        if folder is not None and not Path(folder).is_dir():
            what = "is not a folder" if Path(folder).exists() else "no such folder"
            yield problem_line(path, folder, origins[path], what)
    if settings.ready_file is not None and not Path(settings.ready_file).parent.is_dir():
        yield problem_line(
            "ready_file", settings.ready_file, origins["ready_file"], "its folder does not exist"
        )
    if settings.runtime_dir is not None and len(settings.runtime_dir.encode()) > MAX_RUNTIME_DIR_BYTES:
        yield problem_line(
            "runtime_dir",
            settings.runtime_dir,
            origins["runtime_dir"],
            f"too long for socket paths: expected at most {MAX_RUNTIME_DIR_BYTES} bytes",
        )


def _check_block_source(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    name = settings.blocks_target
    if name is None:
        return
    if settings.blocks_dir is not None:
        yield problem_line(
            "blocks_target", name, origins["blocks_target"], "blocks_dir is set as well: give one"
        )
    if not settings.targets.get(name, "").startswith("postgres"):
        accepted = (
            ", ".join(n for n, url in settings.targets.items() if url.startswith("postgres")) or "none there"
        )
        yield problem_line(
            "blocks_target",
            name,
            origins["blocks_target"],
            f"expected a PostgreSQL database of [targets]: {accepted}",
        )


def _check_targets(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    for name, url in settings.targets.items():
        if (problem := _target_problem(url)) is not None:
            yield problem_line(f"targets.{name}", redact_url(url), origins[f"targets.{name}"], problem)


def _target_problem(url: str) -> str | None:
    """Why tasks could not write there, as far as it can be told before one does."""
    if not _TARGET_URL.fullmatch(url):
        return "expected a database URL: sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    if url.startswith("postgres"):
        missing = importlib.util.find_spec("psycopg") is None
        return "needs the PostgreSQL driver: install blockx-worker[postgres]" if missing else None
    folder = Path(url.removeprefix("sqlite:///")).parent
    return None if folder.is_dir() else f"its folder {folder} does not exist"
