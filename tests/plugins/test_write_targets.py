"""Naming databases."""

from pathlib import Path

import pytest

from blockx_worker.model.fields import FieldError
from blockx_worker.plugins.targets import PostgresTarget, SqliteTarget, Targets

NAMES = {"main": "sqlite:////data/main.db", "warehouse": "postgresql://etl:s3cret@db/chain"}


def test_a_configured_name_is_found_with_or_without_urls() -> None:
    for allow_urls in (True, False):
        targets = Targets(NAMES, allow_urls=allow_urls)
        assert targets.resolve("main") == SqliteTarget(label="main", path="/data/main.db")


def test_three_slashes_are_relative_and_four_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    targets = Targets({}, allow_urls=True)
    relative = targets.resolve("sqlite:///out/a b%20c.db")
    assert relative == SqliteTarget(label="sqlite:///out/a b%20c.db", path=f"{Path.cwd()}/out/a b%20c.db")
    url = f"sqlite:///{tmp_path}/x.db"
    assert targets.resolve(url) == SqliteTarget(label=url, path=f"{tmp_path}/x.db")


@pytest.mark.parametrize(
    ("target", "allow_urls", "message"),
    [
        ("mian", False, 'no target is called "mian"; targets of this worker: main, warehouse'),
        ("mian", True, "targets of this worker: main, warehouse; or a URL such as sqlite:///FILE"),
        (
            "sqlite:///x.db",
            False,
            'this worker takes no URLs from tasks, and "sqlite:///x.db" is one; targets of',
        ),
        (
            "mysql://u:p@h/d",
            True,
            '"mysql://u:***@h/d" names no database; expected sqlite:///FILE or postgresql://',
        ),
        (
            "sqlite://x.db",
            True,
            '"sqlite://x.db" names no database; expected sqlite:///FILE or postgresql://',
        ),
        ("sqlite:///", True, '"sqlite:///" names no database'),
        ("sqlite:///:memory:", True, "expected the path of a file, without options"),
        ("sqlite:///x.db?mode=ro", True, "expected the path of a file, without options"),
        ("sqlite:///x\0y", True, "expected the path of a file, without options"),
    ],
)
def test_what_names_no_database_is_refused_and_shows_no_password(target, allow_urls, message) -> None:
    with pytest.raises(FieldError) as caught:
        Targets(NAMES, allow_urls=allow_urls).resolve(target)
    assert str(caught.value).startswith("resultHandler.target: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("target", ["warehouse", NAMES["warehouse"]])
def test_a_postgresql_target_shows_no_password(target) -> None:
    found = Targets(NAMES, allow_urls=True).resolve(target)
    shown = "postgresql://etl:***@db/chain"
    label = target if target == "warehouse" else shown
    assert found == PostgresTarget(label=label, url=NAMES["warehouse"], shown=shown)
    assert "s3cret" not in repr(found)


def test_a_worker_without_targets_says_so() -> None:
    with pytest.raises(FieldError, match="targets of this worker: none"):
        Targets({}, allow_urls=False).resolve("main")
