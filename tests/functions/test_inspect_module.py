"""Reading modules without running them."""

import pytest

from blockx_worker.functions.inspect import (
    MAX_MODULE_BYTES,
    ModuleError,
    code_digest,
    module_name,
    read_module,
)

SOURCE = '''
"""Module."""
from blockx_executor.sdk import no_cache as fresh
import blockx_executor.sdk as sdk

raise SystemExit("running this would be a mistake")

def transfer(log: dict, *, strict: bool = True) -> dict | None:
    """The transfer of a log.

    More.
    """

@fresh
def now(): ...

@sdk.no_cache()
def later(a, /, b=1, *args, **kw): ...

def _helper(): ...

async def fetch(): ...

class Row:
    def method(self): ...

def twice(): ...
def twice(x): ...
'''


def test_public_functions_are_found_without_running_the_module() -> None:
    module = read_module("chain/erc20.py", SOURCE.encode())
    assert [(d.signature, d.doc, d.no_cache) for d in module.definitions] == [
        ("transfer(log: dict, *, strict: bool=True) -> dict | None", "The transfer of a log.", False),
        ("now()", "", True),
        ("later(a, /, b=1, *args, **kw)", "", True),
        ("twice(x)", "", False),
    ]


def test_async_functions_are_a_problem_with_their_line() -> None:
    (problem,) = read_module("m.py", SOURCE.encode()).problems
    assert str(problem) == "m.py, line 22: fetch is an async def, which calls cannot run; make it a plain def"


def test_functions_in_an_initializer_are_a_problem() -> None:
    module = read_module("chain/__init__.py", b"def f(): ...")
    assert module.definitions == ()
    assert str(module.problems[0]).startswith("chain/__init__.py, line 1: f: functions of __init__.py")


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"def f(:\n", 1, "SyntaxError: "),
        (b"x = 1\n\n  y = 2\n", 3, "IndentationError: unexpected indent"),
        (b"x = 1\nreturn x\n", 2, "SyntaxError: 'return' outside function"),
        (b"x = 1\ny = '\xff'\n", 2, "not utf-8 text: byte 0xff"),
        (b"# coding: klingon\n", 1, "its text cannot be decoded: "),
        (b"x = '\0'", None, "null bytes"),
        (b"x = " + b"(" * 5000 + b")" * 5000, None, "too many nested parentheses"),
        (b"#" * (MAX_MODULE_BYTES + 1), None, "is more than the 4194304 that a module may have"),
    ],
)
def test_a_module_that_cannot_be_compiled_names_line_and_reason(content, line, reason) -> None:
    with pytest.raises(ModuleError) as caught:
        read_module("m.py", content)
    assert reason in caught.value.reason
    assert line is None or caught.value.line == line


@pytest.mark.parametrize("path", ["my-module.py", "1st.py", "a/b c/d.py", "x.y.py"])
def test_a_path_that_makes_no_dotted_name_is_refused(path) -> None:
    with pytest.raises(ModuleError, match="is no Python identifier"):
        module_name(path)


def test_the_source_is_text_whatever_its_encoding() -> None:
    latin = "# coding: latin-1\nx = 'é'\r\n".encode("latin-1")
    assert read_module("m.py", latin).source == "# coding: latin-1\nx = 'é'\n"
    assert read_module("m.py", b"\xef\xbb\xbfx = 1\n").source == "x = 1\n"


def test_the_digest_covers_paths_and_texts_and_not_their_order() -> None:
    files = {"a.py": "x", "b.py": "y"}
    assert code_digest(files) == code_digest({"b.py": "y", "a.py": "x"})
    others = [{"a.py": "y", "b.py": "x"}, {"a.py": "x"}, {"a.py": "xb.pyy"}, {"a.p": "yx", "b.py": "y"}]
    assert len({code_digest(f) for f in [files, *others]}) == 5
    assert code_digest(files) == "675b12ec0cbbedcb1430ad0cadfe52f6360b463824139b23b36f231682f3cdca"
