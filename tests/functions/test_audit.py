"""The list of audited code: what it may hold, and how it is followed."""

from pathlib import Path

import pytest
import structlog

from blockx_worker.functions import AllowListFile, StaticFunctionProvider, audit, parse_allow_list
from blockx_worker.functions.audit import AllowList
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import StepFailed
from tests.functions.helpers import Folder

ONE = "def f(): return 1"
TWO = "def f(): return 2"


def digest(source: str) -> str:
    return StaticFunctionProvider({"m": source}).current().resolve("m.f").digest


class Gate(Folder):
    """A function folder behind a list; `allow` writes the list."""

    def __init__(self, tmp_path: Path) -> None:
        self.list = tmp_path / "audited.txt"
        self.allow()
        (tmp_path / "functions").mkdir()
        super().__init__(tmp_path / "functions", AllowListFile(self.list))
        self.write("m.py", ONE)

    def allow(self, *lines: str) -> None:
        self.list.write_text("\n".join(lines))

    async def may_run(self) -> bool:
        return not (await self.look()).unaudited()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_a_line_is_a_digest_and_comments_are_for_people() -> None:
    text = f"# audited in May\n\n  {'a' * 64}  # chain\r\n{'B' * 64}\n"
    allowed = parse_allow_list("list", text)
    assert allowed == AllowList(digests=frozenset({"a" * 64, "b" * 64}))


@pytest.mark.parametrize(
    "line", ["a" * 63, "a" * 65, "sha256:" + "a" * 64, "g" * 64, "a" * 64 + " x", "chain.f"]
)
def test_a_line_that_is_no_digest_allows_nothing_and_is_named(line) -> None:
    allowed = parse_allow_list("list", f"{'b' * 64}\n{line}\n")
    assert allowed.digests == {"b" * 64}
    (problem,) = allowed.problems
    assert str(problem).startswith(
        "list, line 2: expected a digest of 64 hex digits as `blockx functions list --digests`"
    )


async def test_only_code_on_the_list_runs(gate) -> None:
    assert not await gate.may_run()
    view = gate.provider.current()
    with pytest.raises(StepFailed) as caught:
        view.resolve("m.f")
    assert caught.value.code is TaskFailureCode.FUNCTION_NOT_AUDITED
    assert [function.function_id for function in view.unaudited()] == ["m.f"]
    assert view.function_ids == ("m.f",)


async def test_a_change_of_the_list_makes_an_epoch_and_running_tasks_keep_theirs(gate) -> None:
    old = await gate.look()
    gate.allow(digest(ONE))
    new = await gate.look()
    assert (old.epoch, new.epoch) == (1, 2)
    assert await gate.may_run()
    gate.allow()
    assert not await gate.may_run()
    assert new.resolve("m.f").digest == digest(ONE)


async def test_a_comment_makes_no_epoch(gate) -> None:
    old = await gate.look()
    gate.allow("# nothing yet")
    assert await gate.look() is old


async def test_new_code_does_not_run_until_it_is_audited(gate) -> None:
    gate.allow(digest(ONE))
    assert await gate.may_run()
    gate.write("m.py", TWO)
    assert not await gate.may_run()
    gate.allow(digest(ONE), digest(TWO))
    assert await gate.may_run()


async def test_a_half_written_list_is_not_taken(gate) -> None:
    gate.allow(digest(ONE), digest(TWO))
    assert await gate.may_run()
    gate.allow(digest(TWO)[:20])
    assert await gate.provider.refresh()
    assert gate.provider.current().unaudited() == ()
    gate.allow(digest(TWO), digest(ONE))
    assert await gate.may_run()
    assert gate.provider.current().epoch == 1


async def test_a_list_that_is_replaced_with_the_same_size_is_seen(gate) -> None:
    gate.allow(digest(ONE))
    assert await gate.may_run()
    gate.allow(digest(TWO))
    assert not await gate.may_run()


async def test_a_list_that_is_gone_stays_in_force_and_is_reported_once(gate) -> None:
    gate.allow(digest(ONE))
    assert await gate.may_run()
    gate.list.unlink()
    with structlog.testing.capture_logs() as logs:
        assert await gate.may_run()
        gate.write("m.py", TWO)
        assert not await gate.may_run()
    (problem,) = gate.provider.problems()
    assert str(problem) == (
        f"{gate.list}: cannot be read: No such file or directory; the list that was read before stays in force"
    )
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["function_problem"]
    gate.allow(digest(TWO))
    assert await gate.may_run()
    assert gate.provider.problems() == ()


async def test_a_link_to_the_list_is_followed(gate, tmp_path) -> None:
    """As orchestrators mount configuration: a link that is put in place of another."""
    (tmp_path / "v2").write_text(digest(ONE))
    gate.list.unlink()
    gate.list.symlink_to(tmp_path / "v2")
    assert await gate.may_run()


@pytest.mark.parametrize(
    ("make", "reason"), [("nothing", "No such file"), ("folder", "Is a directory"), ("large", "larger")]
)
async def test_a_list_that_cannot_be_read_at_start_is_an_error(tmp_path, monkeypatch, make, reason) -> None:
    path = tmp_path / "list"
    if make == "folder":
        path.mkdir()
    elif make == "large":
        monkeypatch.setattr(audit, "MAX_LIST_BYTES", 10)
        path.write_text("#" * 11)
    (tmp_path / "functions").mkdir()
    folder = Folder(tmp_path / "functions", AllowListFile(path))
    with pytest.raises(OSError, match=rf"{path} \(functions_allow_list\) cannot be read: .*{reason}"):
        await folder.look()
