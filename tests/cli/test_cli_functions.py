"""`blockx functions`: what a folder holds, and what is wrong with it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from blockx_worker.cli.main import main
from blockx_worker.functions import load_directory, parse_allow_list


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["functions", *map(str, arguments)])


def write(folder: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    write(
        folder,
        {
            "transfers.py": 'def transfer(log):\n    """One row.\n\n    More."""\n',
            "chain/__init__.py": "def total(): ...",
            "chain/erc20.py": '@no_cache\ndef price(token: str, *, at: int = 0) -> float:\n    """Now."""\n',
        },
    )
    return folder


def test_list_shows_id_parameters_digest_selector_and_the_first_line_of_the_docstring(folder):
    view = load_directory(folder)
    chain, transfers = (view.resolve(name).digest[:12] for name in ("chain.total", "transfers.transfer"))
    result = run("list", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"chain.erc20.price(token: str, *, at: int=0) -> float  {chain}  chain.erc20:price  [no cache] Now.",
        f"chain.total()                                         {chain}  chain:total",
        f"transfers.transfer(log)                               {transfers}  transfer           One row.",
    ]


def test_list_as_json_has_everything(folder):
    [price, *_] = json.loads(run("list", folder, "--json").stdout)
    assert price == {
        "functionId": "chain.erc20.price",
        "signature": "price(token: str, *, at: int=0) -> float",
        "doc": "Now.",
        "noCache": True,
        "path": "chain/erc20.py",
        "line": 2,
        "digest": load_directory(folder).resolve("chain.total").digest,
        "entrySelector": "chain.erc20:price",
    }


def test_the_digests_are_a_list_of_audited_code(folder):
    result = run("list", folder, "--digests")
    allowed = parse_allow_list("list", result.stdout)
    assert allowed.problems == ()
    assert {function.digest for function in load_directory(folder).describe()} == allowed.digests
    assert [line.split("  ")[1] for line in result.stdout.splitlines()] == [
        "# chain: chain.erc20.price, chain.total",
        "# transfers.py: transfers.transfer",
    ]
    assert run("list", folder, "--digests", "--json").exit_code == 2


def test_list_of_nothing_says_what_a_function_is(tmp_path):
    result = run("list", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "a function is a public module-level `def`" in result.stderr
    assert json.loads(run("list", tmp_path, "--json").stdout) == []


def test_list_names_problems_beside_what_can_be_used(folder):
    write(folder, {"bad.py": "def f(:\n"})
    result = run("list", folder)
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "problem: bad.py, line 1: SyntaxError: invalid syntax\n"


def test_check_is_content_with_good_code(folder):
    result = run("check", folder)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "3 functions, 0 problems\n")


def test_check_fails_for_code_that_cannot_be_used(folder):
    write(folder, {"bad.py": "def f(:\n", "chain/worse.py": "def"})
    result = run("check", folder)
    assert (result.exit_code, result.stderr) == (1, "1 function, 2 problems\n")
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "bad.py, line 1",
        "chain/worse.py, line 1",
    ]
    report = json.loads(run("check", folder, "--json").stdout)
    assert report["functions"] == 1
    assert report["problems"][0] == {"path": "bad.py", "line": 1, "reason": "SyntaxError: invalid syntax"}


def test_check_warns_of_code_that_can_be_used_but_hardly_as_it_was_meant(folder):
    write(
        folder,
        {"m.py": "import transfers\nasync def a(): ...\ndef g(): yield 1\ndef h(): ...\ndef h(x): ..."},
    )
    result = run("check", folder)
    assert (result.exit_code, result.stderr) == (0, "5 functions, 0 problems, 4 warnings\n")
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == ["warning: m.py"] * 4
    report = json.loads(run("check", folder, "--json").stdout)
    assert [warning["line"] for warning in report["warnings"]] == [2, 3, 4, 1]


def test_check_against_a_list_of_audited_code(folder, tmp_path):
    allowed = tmp_path / "audited.txt"
    allowed.write_text(run("list", folder, "--digests").stdout)
    assert run("check", folder, "--allow-list", allowed).exit_code == 0
    write(folder, {"chain/erc20.py": "def price(): ..."})
    digest = load_directory(folder).resolve("chain.total").digest
    result = run("check", folder, "--allow-list", allowed)
    assert (result.exit_code, result.stdout) == (
        1,
        f"chain: its code (digest {digest}) is not on the list of audited code\n",
    )
    missing = run("check", folder, "--allow-list", tmp_path / "none")
    assert (missing.exit_code, "none (functions_allow_list) cannot be read" in missing.stderr) == (2, True)


@pytest.mark.parametrize("command", ["list", "check"])
def test_a_missing_folder_is_exit_code_2(command):
    result = run(command, "/nowhere/at/all")
    assert result.exit_code == 2
    assert "/nowhere/at/all" in result.stderr
