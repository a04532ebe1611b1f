"""Function code of several files: who finds whom, under which names, and in which version."""

from __future__ import annotations

import pytest

from blockx_executor.wire.messages import CallFailedPayload
from tests.executor.driver import ExecutorDriver, module, running_executor

CHAIN = {
    "chain/__init__.py": module("""
        from . import erc20
        from .limits import LIMIT

        VERSION = "one"

        def total(): return LIMIT + erc20.transfer(1)
    """),
    "chain/erc20.py": module("""
        import dataclasses
        import pickle

        import chain.util
        import chain.deep.inner as inner
        from chain import util as again
        from chain.util import double
        from .util import Row
        from .deep.inner import NAME

        def transfer(x): return double(x)
        def names(): return [NAME, inner.NAME, chain.deep.inner.NAME, again is chain.util, __name__.split(".")[1:]]
        def version():
            import chain
            return chain.VERSION
        def pickled():
            row = pickle.loads(pickle.dumps(Row(3)))
            return [row == Row(3), dataclasses.asdict(row)]
        def lazy():
            from .late import WHEN
            import chain.late
            from . import late
            return [WHEN, chain.late is late]
        def dynamic():
            import importlib
            return importlib.import_module(".late", __package__).WHEN
        def missing():
            import chain.nothing
        def missing_relative():
            from . import nothing
        def where(): return [__file__.split(" ")[0], transfer.__code__.co_filename.split(" ")[0]]
        def spawned():
            import multiprocessing
            with multiprocessing.get_context("spawn").Pool(1) as pool: return pool.map(transfer, [1, 2])
        def source():
            import inspect
            return inspect.getsource(transfer)
    """),
    "chain/util.py": module("""
        import dataclasses

        from chain import erc20  # a circle

        @dataclasses.dataclass
        class Row:
            a: int

        def double(x): return 2 * x
        def back(x): return erc20.transfer(x)
        def fail(x): return x / 0
    """),
    "chain/limits.py": "LIMIT = 40\n",
    "chain/late.py": "WHEN = 'late'\nloads = 1\n",
    "chain/deep/inner.py": "NAME = 'inner'\n",
    "chain/broken.py": "def f(:\n    pass\n",
    "chain/raises.py": "from .util import double\nimport no_such_library\n",
    "chain/notes.txt": "no module",
}


def chain(executor: ExecutorDriver, **changed: str) -> str:
    files = CHAIN | {f"chain/{name}.py": text for name, text in changed.items()}
    return executor.define_package(files, "chain/__init__.py")


def fail(executor: ExecutorDriver, digest: str, entry: str) -> CallFailedPayload:
    return executor.fail(digest, entry).payload


@pytest.mark.parametrize(
    ("entry", "args", "value"),
    [
        ("total", [], 42),
        ("chain:total", [], 42),
        ("chain.erc20:transfer", [4], 8),
        ("chain.util:back", [5], 10),
        ("chain.erc20:names", [], ["inner", "inner", "inner", True, ["chain", "erc20"]]),
        ("chain.erc20:pickled", [], [True, {"a": 3}]),
        ("chain.erc20:lazy", [], ["late", True]),
        ("chain.erc20:dynamic", [], "late"),
        ("chain.erc20:version", [], "one"),
        ("chain.erc20:where", [], ["chain/erc20.py", "chain/erc20.py"]),
        ("chain.erc20:spawned", [], [2, 4]),
        ("chain.erc20:source", [], "def transfer(x): return double(x)\n"),
    ],
)
def test_modules_of_a_package_find_each_other(
    executor: ExecutorDriver, entry: str, args: list[object], value: object
) -> None:
    """Relatively and by the package's own name, in a circle, late, by pickle, and in a spawned process."""
    assert executor.call(chain(executor), entry, *args) == value


def test_each_version_sees_itself_only(executor: ExecutorDriver) -> None:
    """Two versions side by side, also where they import late."""
    old = chain(executor)
    new = chain(executor, late="WHEN = 'later'\n", limits="LIMIT = 50\n")
    for _ in range(2):
        assert [executor.call(digest, "total") for digest in (old, new)] == [42, 52]
        assert [executor.call(digest, "chain.erc20:dynamic") for digest in (old, new)] == ["late", "later"]
        assert [executor.call(digest, "chain.erc20:lazy") for digest in (old, new)] == [
            ["late", True],
            ["later", True],
        ]


def test_other_code_does_not_see_a_package(executor: ExecutorDriver) -> None:
    """Neither its own name nor a private one leads there from outside."""
    executor.call(chain(executor), "total")
    stranger = executor.define("def f():\n    import chain\n")
    assert "No module named 'chain'" in fail(executor, stranger, "f").error_message


def test_a_lone_module_does_not_shadow_what_it_imports(executor: ExecutorDriver) -> None:
    """Functions in json.py may use the json of the standard library."""
    digest = executor.define_package({"json.py": "import json\ndef f(): return json.dumps([1])\n"}, "json.py")
    assert executor.call(digest, "f") == "[1]"


def test_folders_without_init_are_packages_too(executor: ExecutorDriver) -> None:
    """A module in folders, and a package in a folder."""
    files = {
        "apps/chain/__init__.py": "from apps.chain.util import f\n",
        "apps/chain/util.py": "def f(): return 1\n",
    }
    assert executor.call(executor.define_package(files, "apps/chain/__init__.py"), "apps.chain.util:f") == 1
    lone = {"apps/lone.py": "from apps import lone\ndef f(): return lone.f is f\n"}
    assert executor.call(executor.define_package(lone, "apps/lone.py"), "f") is True


@pytest.mark.parametrize(
    ("entry", "kind", "reasons"),
    [
        ("chain.broken:f", "SYNTAX_ERROR", ["chain/broken.py", "line 1", "def f(:"]),
        ("chain.raises:f", "IMPORT_ERROR", ["No module named 'no_such_library'"]),
        ("chain.nowhere:f", "IMPORT_ERROR", ["has no module 'chain.nowhere'", "chain.erc20"]),
        ("chain.notes:f", "IMPORT_ERROR", ["has no module 'chain.notes'"]),
        ("chain.util:nothing", "FUNCTION_NOT_FOUND", ["'nothing' in chain/util.py", "double, back, fail"]),
        ("chain.erc20:missing", "USER_ERROR", ["No module named 'chain.nothing'"]),
        ("chain.erc20:missing_relative", "USER_ERROR", ["cannot import name 'nothing' from 'chain'"]),
    ],
)
def test_what_cannot_be_imported_is_named_as_people_know_it(
    executor: ExecutorDriver, entry: str, kind: str, reasons: list[str]
) -> None:
    """The same sentence twice, without a private name; the rest of the package goes on working."""
    digest = chain(executor)
    first, second = fail(executor, digest, entry), fail(executor, digest, entry)
    assert first.error_kind == kind
    assert all(reason in first.error_message for reason in reasons), first.error_message
    assert first.error_message == second.error_message
    assert "_blockx_fn_" not in first.error_message + first.error_stack
    assert executor.call(digest, "total") == 42


def test_a_broken_init_fails_all_of_the_package(executor: ExecutorDriver) -> None:
    """As in Python, a module comes after its package."""
    digest = chain(executor, __init__="1 / 0\n")
    assert "ZeroDivisionError" in fail(executor, digest, "chain.util:double").error_message
    assert "ZeroDivisionError" in fail(executor, digest, "chain:total").error_message


def test_stacks_show_the_users_files(executor: ExecutorDriver) -> None:
    """With their lines, each frame in its file; classes without a private name."""
    files = {
        "chain/__init__.py": "from .util import fail\nclass Bad(Exception): pass\ndef f(x):\n    try:\n        fail(x)\n    except ZeroDivisionError as e:\n        raise Bad(repr(Bad)) from e\n",
        "chain/util.py": CHAIN["chain/util.py"].replace("from chain import erc20", "erc20 = None"),
    }
    failure = fail_with(executor, executor.define_package(files, "chain/__init__.py"), "chain:f", 1)
    assert 'File "chain/__init__.py [' in failure.error_stack
    assert 'File "chain/util.py [' in failure.error_stack
    assert "def fail(x): return x / 0" in failure.error_stack
    assert "chain.Bad: <class 'chain.Bad'>" in failure.error_stack
    assert failure.error_message == "Bad: <class 'chain.Bad'>"


def fail_with(executor: ExecutorDriver, digest: str, entry: str, *args: object) -> CallFailedPayload:
    return executor.fail(digest, entry, *args).payload


def test_a_late_import_is_not_interrupted() -> None:
    """It takes longer than the budget; the call fails for that, and the module is whole for the next one."""
    files = {
        "chain/__init__.py": "def f():\n    from .slow import done\n    return done\n",
        "chain/slow.py": "import time\ntime.sleep(0.3)\ndone = 'whole'\n",
    }
    with running_executor() as executor:
        digest = executor.define_package(files, "chain/__init__.py")
        failure = executor.fail(digest, "chain:f", budget_ms=60).payload
        assert failure.error_kind == "BUDGET_EXCEEDED"
        assert failure.budget_used_ms >= 300
        assert executor.call(digest, "chain:f", budget_ms=60) == "whole"


def test_a_late_import_of_a_library_is_not_interrupted() -> None:
    """Also where the library imports in turn."""
    source = module("""
        import sys, types
        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "slow_library":
                    from importlib.machinery import ModuleSpec
                    return ModuleSpec(name, self)
            def create_module(self, spec): return None
            def exec_module(self, module):
                import time
                time.sleep(0.3)
                module.done = "whole"
        sys.meta_path.append(Slow())
        def f(dynamic):
            if dynamic:
                import importlib
                return importlib.import_module("slow_library").done
            import slow_library
            return slow_library.done
        def forget(): sys.modules.pop("slow_library")
    """)
    with running_executor() as executor:
        digest = executor.define(source)
        for dynamic in (False, True):
            assert executor.fail(digest, "f", dynamic, budget_ms=60).payload.error_kind == "BUDGET_EXCEEDED"
            assert executor.call(digest, "f", dynamic, budget_ms=60) == "whole"
            executor.call(digest, "forget")


def test_the_sdk_is_refused_while_a_module_is_imported_late(executor: ExecutorDriver) -> None:
    """As at the top level of any module."""
    files = {
        "chain/__init__.py": "def f():\n    from . import early\n",
        "chain/early.py": "from blockx_executor import sdk\nsdk.sleep(0)\n",
    }
    failure = fail(executor, executor.define_package(files, "chain/__init__.py"), "chain:f")
    assert "was used where no call runs, such as the top level of a module" in failure.error_message


def test_packages_that_were_put_aside_are_loaded_again() -> None:
    """More of them than the cache holds; nothing of the old ones is left."""
    with running_executor() as executor:
        digests = [chain(executor, limits=f"LIMIT = {i}\n") for i in range(66)]
        assert [executor.call(digest, "total") for digest in digests] == list(range(2, 68))
        assert executor.call(digests[0], "total") == 2
        count = executor.define(
            "import sys\ndef f(): return len({n.split('.')[0] for n in sys.modules if n.startswith('_blockx_fn_')})\n"
        )
        assert executor.call(count, "f") == 64
