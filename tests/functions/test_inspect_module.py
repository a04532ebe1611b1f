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


def test_functions_of_an_initializer_belong_to_its_package() -> None:
    module = read_module("apps/chain/__init__.py", b"def f(): ...")
    assert module_name(module.path) == "apps.chain"
    assert [d.name for d in module.definitions] == ["f"]


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("\nasync def f(): ...", 2, "is an async def, which calls cannot run, so it is not offered"),
        ("def f():\n    for i in range(3):\n        yield i", 1, "is a generator function"),
        ("def f(x):\n    y = yield from x", 1, "is a generator function"),
        ("def f(): ...\nx = 1\ndef f(a): ...", 1, "is hidden by line 3"),
        ("def f(): ...\nclass f: ...", 1, "is hidden by line 2"),
        ("def f(): ...\nfrom m import f", 1, "is hidden by line 2"),
        ("def f(): ...\nimport f.g as f", 1, "is hidden by line 2"),
        ("def f(): ...\nf: int = 3", 1, "is hidden by line 2"),
    ],
)
def test_what_looks_wrong_is_found_with_its_line(source, line, reason) -> None:
    (finding,) = read_module("m.py", source.encode()).findings
    assert (finding.name, finding.line) == ("f", line)
    assert finding.reason.startswith(reason)


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    def g():\n        yield 1\n    return list(g())",
        "def f(): return sum(lambda: (yield))",
        "def f(): ...\nf = cached(f)",
        "def f(): ...\nf.limit = 3",
        "from m import f\ndef f(): ...",
        "@typing.overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(a): ...",
        "def f(): ...\nf: object",
        "def _f(): ...\ndef _f(): ...",
    ],
)
def test_what_is_fine_is_not_found(source) -> None:
    assert read_module("m.py", source.encode()).findings == ()


def test_an_expression_that_nests_deeply_is_looked_at_or_refused_but_never_a_crash() -> None:
    sums = "def f():\n    return " + "+".join(["x"] * 2500)
    assert read_module("m.py", sums.encode()).findings == ()
    with pytest.raises(ModuleError, match="nests too deeply"):
        read_module("m.py", b"def f(a=" + b"+".join([b"x"] * 2500) + b"): ...")


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
