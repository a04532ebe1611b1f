"""Packages: several files that are one unit of code."""

import shutil
from pathlib import Path

import pytest

from blockx_worker.functions import StaticFunctionProvider, load_directory, units
from blockx_worker.functions.view import LoadedView
from tests.functions.helpers import Folder

CHAIN = {
    "chain/__init__.py": "def total(): ...",
    "chain/erc20.py": "from chain._abi import decode\ndef transfer(log): ...",
    "chain/_abi.py": "def decode(log): ...",
    "chain/swaps/v2.py": "def swap(log): ...",
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def write(folder: Folder, files: dict[str, str]) -> None:
    for name, source in files.items():
        folder.write(name, source)


def chain(view: LoadedView) -> dict[str, str]:
    return dict(view.code(view.resolve("chain.erc20.transfer").digest).files)


async def test_all_modules_of_a_package_are_one_unit_of_code(folder) -> None:
    write(folder, CHAIN)
    view = await folder.look()
    functions = [view.resolve(name) for name in view.function_ids]
    assert {f.function_id: f.entry_selector for f in functions} == {
        "chain.erc20.transfer": "chain.erc20:transfer",
        "chain.swaps.v2.swap": "chain.swaps.v2:swap",
        "chain.total": "chain:total",
    }
    (digest,) = {f.digest for f in functions}
    code = view.code(digest)
    assert (dict(code.files), code.main) == (CHAIN, "chain/__init__.py")


async def test_a_folder_without_initializer_is_a_namespace_of_single_modules(folder) -> None:
    write(folder, {"apps/a.py": "def f(): ...", "apps/b.py": "def f(): ...", "apps/_c.py": "def f(): ..."})
    view = await folder.look()
    assert view.function_ids == ("apps.a.f", "apps.b.f")
    a = view.resolve("apps.a.f")
    assert (a.entry_selector, view.code(a.digest).main, len(view.code(a.digest).files)) == (
        "f",
        "apps/a.py",
        1,
    )


async def test_a_package_in_a_namespace_and_a_package_in_a_package(folder) -> None:
    write(
        folder,
        {"apps/chain/__init__.py": "", "apps/chain/x/__init__.py": "", "apps/chain/x/y.py": "def f(): ..."},
    )
    view = await folder.look()
    f = view.resolve("apps.chain.x.y.f")
    assert f.entry_selector == "apps.chain.x.y:f"
    code = view.code(f.digest)
    assert (code.main, len(code.files)) == ("apps/chain/__init__.py", 3)


async def test_any_change_in_a_package_makes_a_new_digest_for_it_alone(folder) -> None:
    write(folder, {**CHAIN, "other/__init__.py": "def g(): ...", "single.py": "def h(): ..."})
    old = await folder.look()
    folder.write("chain/_abi.py", "def decode(log): return 2")
    new = await folder.look()
    assert (old.epoch, new.epoch) == (1, 2)
    changed = {name for name in new.function_ids if old.resolve(name) != new.resolve(name)}
    assert changed == {"chain.erc20.transfer", "chain.swaps.v2.swap", "chain.total"}
    assert chain(old) == CHAIN


async def test_a_new_module_and_a_deleted_one_change_the_package(folder) -> None:
    write(folder, CHAIN)
    await folder.look()
    folder.write("chain/erc721.py", "def mint(): ...")
    (folder.path / "chain/swaps/v2.py").unlink()
    view = await folder.look()
    assert view.function_ids == ("chain.erc20.transfer", "chain.erc721.mint", "chain.total")


async def test_a_broken_file_keeps_the_last_good_version_of_the_whole_package(folder) -> None:
    write(folder, CHAIN)
    old = await folder.look()
    folder.write("chain/_abi.py", "def decode(log: return 2")
    folder.write("chain/erc20.py", "def renamed(log): ...")
    view = await folder.look()
    assert (view.epoch, view.function_ids, chain(view)) == (1, old.function_ids, CHAIN)
    (problem,) = view.problems()
    assert str(problem).startswith("chain/_abi.py, line 1: SyntaxError: ")
    assert str(problem).endswith("(the last good version of the package chain stays in use)")
    folder.write("chain/_abi.py", "def decode(log): return 2")
    view = await folder.look()
    assert (view.epoch, view.problems()) == (2, ())
    assert "chain.erc20.renamed" in view.function_ids


async def test_a_package_that_is_broken_from_the_start_offers_nothing_and_hurts_nobody(folder) -> None:
    write(folder, {**CHAIN, "chain/bad.py": "def", "good.py": "def f(): ..."})
    view = await folder.look()
    assert view.function_ids == ("good.f",)
    assert [str(problem) for problem in view.problems()] == [
        "chain/bad.py, line 1: SyntaxError: invalid syntax"
    ]
    (folder.path / "chain/bad.py").unlink()
    assert len((await folder.look()).function_ids) == 4


async def test_a_package_waits_until_all_its_files_have_settled(folder) -> None:
    """Two files that belong together are written one after the other: no version holds one new and one old."""
    write(folder, CHAIN)
    old = await folder.look()
    folder.write("chain/erc20.py", "from chain._abi import decode2\ndef transfer(log): ...")
    assert await folder.provider.refresh()
    folder.write("chain/_abi.py", "def decode2(log): ...")
    assert await folder.provider.refresh()
    assert folder.provider.current() is old
    assert not await folder.provider.refresh()
    new = folder.provider.current()
    assert chain(new) == {
        **CHAIN,
        "chain/erc20.py": "from chain._abi import decode2\ndef transfer(log): ...",
        "chain/_abi.py": "def decode2(log): ...",
    }


async def test_a_half_written_file_is_not_taken(folder) -> None:
    write(folder, CHAIN)
    old = await folder.look()
    text = "def decode(log):\n    return log['data']\n"
    for length in range(0, len(text), 10):
        folder.write("chain/_abi.py", text[:length])
        assert await folder.provider.refresh()
        assert folder.provider.current() is old
    folder.write("chain/_abi.py", text)
    assert chain(await folder.look())["chain/_abi.py"] == text


async def test_a_package_that_is_being_copied_in_appears_when_it_is_complete(folder) -> None:
    folder.write("m.py", "def f(): ...")
    await folder.look()
    for name, source in CHAIN.items():
        folder.write(name, source)
        assert await folder.provider.refresh()
        assert folder.provider.current().function_ids == ("m.f",)
    assert chain(await folder.look()) == CHAIN


async def test_a_package_that_is_replaced_by_renaming_folders_is_one_change(folder, tmp_path_factory) -> None:
    write(folder, CHAIN)
    await folder.look()
    fresh = Folder(tmp_path_factory.mktemp("fresh"))
    write(fresh, {**CHAIN, "chain/erc20.py": "def transfer(log): return 2"})
    (folder.path / "chain").rename(fresh.path / "old")
    assert await folder.provider.refresh()
    (fresh.path / "chain").rename(folder.path / "chain")
    view = await folder.look()
    assert (view.epoch, chain(view)["chain/erc20.py"]) == (2, "def transfer(log): return 2")


async def test_a_deleted_package_disappears(folder) -> None:
    write(folder, {**CHAIN, "m.py": "def f(): ..."})
    await folder.look()
    shutil.rmtree(folder.path / "chain")
    assert (await folder.look()).function_ids == ("m.f",)


async def test_a_namespace_becomes_a_package_and_back(folder) -> None:
    write(folder, {"chain/erc20.py": "def transfer(log): ..."})
    single = await folder.look()
    initializer = folder.write("chain/__init__.py", "")
    package = await folder.look()
    assert package.resolve("chain.erc20.transfer").entry_selector == "chain.erc20:transfer"
    initializer.unlink()
    again = await folder.look()
    assert again.resolve("chain.erc20.transfer") == single.resolve("chain.erc20.transfer")


async def test_modules_stay_until_the_package_that_they_become_can_be_used(folder) -> None:
    folder.write("chain/erc20.py", "def transfer(log): ...")
    old = await folder.look()
    folder.write("chain/__init__.py", "def")
    broken = await folder.look()
    assert broken.resolve("chain.erc20.transfer") == old.resolve("chain.erc20.transfer")
    folder.write("chain/__init__.py", "")
    assert (await folder.look()).resolve("chain.erc20.transfer").entry_selector == "chain.erc20:transfer"


async def test_a_module_that_no_import_would_find_is_left_out_and_reported(folder) -> None:
    write(folder, {**CHAIN, "chain.py": "def f(): ...", "chain/swaps.py": "def g(): ..."})
    view = await folder.look()
    assert view.function_ids == ("chain.erc20.transfer", "chain.swaps.g", "chain.total")
    assert [str(problem) for problem in view.problems()] == [
        "chain.py: is hidden by chain/__init__.py, which an import finds first: rename one of them",
        "chain/swaps/v2.py: is hidden by chain/swaps.py, which an import finds first: rename one of them",
    ]
    assert set(chain(view)) == {"chain/__init__.py", "chain/_abi.py", "chain/erc20.py", "chain/swaps.py"}


async def test_a_misnamed_file_is_no_part_of_its_package(folder) -> None:
    write(folder, {**CHAIN, "chain/my-notes.py": "def f(): ..."})
    view = await folder.look()
    assert chain(view) == CHAIN
    assert "'my-notes' is no Python identifier" in str(view.problems()[0])


async def test_the_function_folder_itself_is_no_package(folder) -> None:
    write(folder, {"__init__.py": "def f(): ...", "m.py": "def g(): ..."})
    view = await folder.look()
    assert view.function_ids == ("m.g",)
    assert str(view.problems()[0]).startswith("__init__.py, line 1: its functions have no id")


async def test_a_package_has_a_largest_size(folder, monkeypatch) -> None:
    write(folder, CHAIN)
    await folder.look()
    monkeypatch.setattr(units, "MAX_UNIT_JSON_BYTES", 1000)
    folder.write("chain/big.py", "#" * 1000)
    view = await folder.look()
    assert chain(view) == CHAIN
    (problem,) = view.problems()
    assert problem.path == "chain"
    assert (
        "are more than the 1000 that a package may have (the last good version of the package"
        in problem.reason
    )
    assert await folder.look() is view


def warnings(tmp_path: Path, files: dict[str, str]) -> list[str]:
    folder = Folder(tmp_path)
    write(folder, files)
    view = load_directory(tmp_path)
    assert view.problems() == ()
    return [str(warning) for warning in view.warnings()]


def test_code_that_would_not_find_what_it_imports_is_warned_of(tmp_path) -> None:
    found = warnings(
        tmp_path,
        {
            "a.py": "import b\nfrom pkg.m import f\nimport json, requests\ndef f():\n    import sub.c",
            "b.py": "from . import a",
            "json.py": "",
            "sub/c.py": "",
            "pkg/__init__.py": "from .m import f",
            "pkg/m.py": "import pkg.other\nfrom pkg import f",
        },
    )
    assert found == [
        f"a.py, line {line}: imports {name}, but {unit} is another unit of code, which this one does not see; "
        "a folder with an __init__.py makes its modules one unit"
        for line, name, unit in [(1, "b", "b.py"), (2, "pkg.m", "pkg"), (5, "sub.c", "sub/c.py")]
    ] + ["b.py, line 1: a relative import works only in a package: a folder with an __init__.py"]


def test_names_that_hide_each_other_are_warned_of(tmp_path) -> None:
    found = warnings(tmp_path, {"json/__init__.py": "def dumps(): ...\ndef x(): ...", "json/x.py": ""})
    assert found == [
        "json/__init__.py: its folder has the name of the standard library's json, which this code then cannot import",
        "json/__init__.py, line 2: x is hidden by the module of that name once that is imported; rename one of them",
    ]


def test_only_what_is_offered_is_warned_of(tmp_path) -> None:
    assert warnings(tmp_path, {"p/__init__.py": "", "p/_m.py": "async def f(): ..."}) == []


def test_packages_may_be_given_as_texts() -> None:
    view = StaticFunctionProvider({**CHAIN, "single": "def f(): ..."}).current()
    assert chain(view) == CHAIN
    assert view.resolve("single.f").entry_selector == "f"
    with pytest.raises(ValueError, match=r"chain\.py: is hidden by chain/__init__\.py"):
        StaticFunctionProvider({**CHAIN, "chain": ""})
    with pytest.raises(ValueError, match=r"chain/bad\.py, line 1: SyntaxError"):
        StaticFunctionProvider({**CHAIN, "chain.bad": "def"})
