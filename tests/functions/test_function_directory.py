"""Following a folder of modules."""

import os
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from blockx_worker.functions import DirectoryFunctionProvider, load_directory, scanner
from blockx_worker.ports import StepFailed
from tests.functions.helpers import Folder
from tests.plugins.helpers import TrioThreads


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_modules_and_nested_folders_become_functions(folder) -> None:
    folder.write("transfers.py", "def transfer(log): ...")
    folder.write("chain/erc20.py", "def balance(a): ...")
    view = await folder.look()
    assert view.epoch == 1
    assert view.function_ids == ("chain.erc20.balance", "transfers.transfer")
    assert view.code(view.resolve("chain.erc20.balance").digest).main == "chain/erc20.py"


async def test_hidden_private_linked_and_other_files_are_no_functions(folder, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "linked.py"
    outside.write_text("def f(): ...")
    for name in (".hidden.py", "_private.py", "__pycache__/m.py", ".git/m.py", "readme.txt", "m.pyc"):
        folder.write(name, "def f(): ...")
    (folder.path / "linked.py").symlink_to(outside)
    (folder.path / "folder").symlink_to(outside.parent)
    view = await folder.look()
    assert view.function_ids == ()
    assert view.problems() == ()


async def test_a_change_makes_an_epoch_and_running_tasks_keep_theirs(folder) -> None:
    folder.write("m.py", "def f(): return 1")
    old = await folder.look()
    folder.write("m.py", "def f(): return 2")
    new = await folder.look()
    assert (old.epoch, new.epoch) == (1, 2)
    assert old.code(old.resolve("m.f").digest).files == {"m.py": "def f(): return 1"}
    assert new.code(new.resolve("m.f").digest).files == {"m.py": "def f(): return 2"}


async def test_an_unchanged_text_makes_no_epoch(folder) -> None:
    path = folder.write("m.py", "def f(): return 1")
    old = await folder.look()
    os.utime(path, ns=(1, 1))
    folder.write("m.py", "def f(): return 1")
    assert (await folder.look()) is old


async def test_a_change_counts_only_when_two_looks_saw_the_same(folder) -> None:
    folder.write("m.py", "def f(): return 1")
    old = await folder.look()
    folder.write("m.py", "def f(): return")
    assert await folder.provider.refresh()
    folder.write("m.py", "def f(): return 2")
    assert await folder.provider.refresh()
    assert folder.provider.current() is old
    assert not await folder.provider.refresh()
    new = folder.provider.current()
    assert new.code(new.resolve("m.f").digest).files == {"m.py": "def f(): return 2"}


async def test_a_second_change_with_the_same_times_and_size_is_seen(folder, monkeypatch) -> None:
    monkeypatch.setattr(scanner, "_signature", lambda stat: (0, 0, 0, stat.st_size))
    folder.write("m.py", "def f(): return 1")
    await folder.look()
    folder.write("m.py", "def f(): return 2")
    view = await folder.look()
    assert view.code(view.resolve("m.f").digest).files == {"m.py": "def f(): return 2"}


async def test_a_file_that_cannot_be_read_keeps_its_last_good_version(folder, monkeypatch) -> None:
    path = folder.write("m.py", "def f(): return 1")
    await folder.look()

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        os.utime(path, ns=(2, 2))
        view = await folder.look()
    assert view.function_ids == ("m.f",)
    assert [str(p) for p in view.problems()] == [
        "m.py: cannot be read: Permission denied (its last good version stays in use)"
    ]
    os.utime(path, ns=(1, 1))
    view = await folder.look()
    assert (view.function_ids, view.problems()) == (("m.f",), ())


async def test_a_file_that_is_just_being_replaced_does_not_disappear(folder) -> None:
    path = folder.write("m.py", "def f(): ...")
    old = await folder.look()
    path.unlink()
    assert await folder.provider.refresh()
    folder.write("m.py", "def f(): ...")
    assert (await folder.look()) is old


async def test_an_atomic_rename_is_a_change(folder) -> None:
    folder.write("m.py", "def f(): return 1")
    await folder.look()
    folder.write(".m.py.tmp", "def g(): return 1").rename(folder.path / "m.py")
    assert (await folder.look()).function_ids == ("m.g",)


async def test_a_broken_file_keeps_its_last_good_version_and_is_reported_once(folder) -> None:
    folder.write("m.py", "def f(): return 1")
    old = await folder.look()
    with structlog.testing.capture_logs() as logs:
        folder.write("m.py", "def f(: return 2")
        view = await folder.look()
        await folder.look()
    assert view.resolve("m.f") == old.resolve("m.f")
    assert view.epoch == old.epoch
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["event"], warning["file"], warning["line"]) == ("function_problem", "m.py", 1)
    assert "its last good version stays in use" in warning["reason"]
    with structlog.testing.capture_logs() as logs:
        folder.write("m.py", "def f(): return 3")
        view = await folder.look()
    assert (view.epoch, view.problems()) == (2, ())
    assert [entry["event"] for entry in logs] == ["function_epoch"]


async def test_a_file_broken_from_the_start_explains_a_missing_function(folder) -> None:
    folder.write("m.py", "def f(")
    folder.write("good.py", "def g(): ...")
    view = await folder.look()
    with pytest.raises(StepFailed, match=r"files with problems: m.py, line 1: SyntaxError"):
        view.resolve("m.f")


async def test_a_deleted_file_disappears(folder) -> None:
    path = folder.write("m.py", "def f(): ...")
    folder.write("n.py", "def f(): ...")
    await folder.look()
    path.unlink()
    view = await folder.look()
    assert (view.epoch, view.function_ids) == (2, ("n.f",))


async def test_a_broken_file_that_is_deleted_is_forgotten_with_its_last_good_version(folder) -> None:
    path = folder.write("m.py", "def f(): ...")
    await folder.look()
    path.write_text("def")
    await folder.look()
    path.unlink()
    view = await folder.look()
    assert (view.function_ids, view.problems()) == ((), ())


async def test_a_folder_that_vanishes_keeps_its_functions(folder, tmp_path_factory) -> None:
    folder.write("m.py", "def f(): ...")
    folder.write("sub/n.py", "def f(): ...")
    await folder.look()
    away = tmp_path_factory.mktemp("away") / "functions"
    folder.path.rename(away)
    view = await folder.look()
    assert view.function_ids == ("m.f", "sub.n.f")
    assert "cannot be listed" in str(view.problems()[0])
    away.rename(folder.path)
    assert (await folder.look()).problems() == ()


async def test_a_name_that_is_no_identifier_is_reported(folder) -> None:
    folder.write("my-module.py", "def f(): ...")
    os.close(os.open(bytes(folder.path) + b"/\xff.py", os.O_CREAT))
    view = await folder.look()
    assert sorted(str(p) for p in view.problems()) == [
        "\\udcff.py: '\\udcff' is no Python identifier, so its functions have no id: rename it",
        "my-module.py: 'my-module' is no Python identifier, so its functions have no id: rename it",
    ]


async def test_a_missing_folder_is_a_clear_error_at_start(tmp_path) -> None:
    provider = DirectoryFunctionProvider(tmp_path / "none", TrioThreads())
    with pytest.raises(FileNotFoundError, match="does not exist: create it"):
        await provider.refresh()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        load_directory(tmp_path / "file")


async def test_running_follows_changes(folder, autojump_clock, nursery) -> None:
    folder.write("m.py", "def f(): ...")
    await nursery.start(lambda task_status: folder.provider.run(task_status=task_status))
    assert folder.provider.current().epoch == 1
    folder.write("m.py", "def g(): ...")
    while folder.provider.current().epoch == 1:  # noqa: ASYNC110 - jumps the mock clock from look to look
        await trio.sleep(1)
    assert folder.provider.current().function_ids == ("m.g",)


async def test_the_view_is_there_only_after_the_first_look(folder) -> None:
    with pytest.raises(RuntimeError, match="start run"):
        folder.provider.current()


def test_describing_lists_what_people_want_to_know(tmp_path) -> None:
    (tmp_path / "m.py").write_text('@no_cache\ndef f(a: int) -> int:\n    """Add one."""\n')
    (function,) = load_directory(tmp_path).describe()
    shown = (
        function.function_id,
        function.signature,
        function.doc,
        function.no_cache,
        function.path,
        function.line,
    )
    assert shown == ("m.f", "f(a: int) -> int", "Add one.", True, "m.py", 2)
