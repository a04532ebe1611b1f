"""The tokens file while the worker runs: changes come into force, and a broken file changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio

from blockx_worker.rpc.token_file import TokenFile
from blockx_worker.security.tokens import digest_of
from blockx_worker.surroundings import WorkerThreads

POLL_MS = 10


def write(path: Path, *tokens: str) -> None:
    entries = (
        f'[[token]]\nname = "{token}"\nsha256 = "{digest_of(token).hex()}"\nscopes = ["read"]\n'
        for token in tokens
    )
    path.write_text("".join(entries))
    path.chmod(0o600)


async def until(look: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not look():  # noqa: ASYNC110 - the file is polled, nobody announces a change
            await trio.sleep(POLL_MS / 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    write(path, "first")
    return path


def follow(path: Path) -> TokenFile:
    return TokenFile(str(path), WorkerThreads(limit=1), poll_interval_ms=POLL_MS)


async def test_a_change_comes_into_force(path, nursery):
    tokens = follow(path)
    await nursery.start(tokens.run)
    assert tokens.current().find("first")
    write(path, "second")
    await until(lambda: tokens.current().find("second"))
    assert tokens.current().find("first") is None


async def test_a_broken_file_is_told_once_and_the_last_good_one_stays(path):
    tokens = follow(path)
    await tokens.refresh()
    with structlog.testing.capture_logs() as logs:
        path.write_text("[[token]")
        await tokens.refresh()
        await tokens.refresh()
        path.unlink()
        await tokens.refresh()
        await tokens.refresh()
        assert tokens.current().find("first")
        write(path, "first")
        await tokens.refresh()
    assert [(line["log_level"], line.get("problem", "")[:17]) for line in logs] == [
        ("error", "is not valid TOML"),
        ("error", "no such file"),
        ("info", ""),
    ]
    assert logs[-1]["names"] == ["first"]


async def test_a_file_that_others_may_read_from_now_on_is_not_used(path):
    tokens = follow(path)
    await tokens.refresh()
    write(path, "second")
    path.chmod(0o644)
    await tokens.refresh()
    assert tokens.current().find("second") is None
    path.chmod(0o600)
    await tokens.refresh()
    assert tokens.current().find("second")


async def test_two_changes_of_the_same_length_at_the_same_time_are_both_seen(path):
    """Time stamps would not tell them apart."""
    tokens = follow(path)
    for name in ("aaaaa", "bbbbb", "ccccc"):
        write(path, name)
        await tokens.refresh()
        assert tokens.current().find(name)


async def test_a_file_that_cannot_be_used_at_the_start_is_an_error(tmp_path, nursery):
    with pytest.raises(OSError, match=r"tokens file .*none: no such file"):
        await follow(tmp_path / "none").run()
