"""The mapping of one epoch."""

import pytest

from blockx_worker.dispatch.source import ResolvedFunction
from blockx_worker.functions import StaticFunctionProvider
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import StepFailed

SOURCES = {"transfers": "def transfer(log): ...\ndef swap(log): ...", "chain/erc20.py": "def balance(a): ..."}


def test_ids_are_dotted_paths() -> None:
    view = StaticFunctionProvider(SOURCES).current()
    assert view.function_ids == ("chain.erc20.balance", "transfers.swap", "transfers.transfer")


def test_functions_of_one_module_share_its_code() -> None:
    view = StaticFunctionProvider(SOURCES).current()
    transfer, swap = view.resolve("transfers.transfer"), view.resolve("transfers.swap")
    assert transfer == ResolvedFunction("transfers.transfer", swap.digest, "transfer")
    code = view.code(transfer.digest)
    assert (dict(code.files), code.main) == ({"transfers.py": SOURCES["transfers"]}, "transfers.py")
    with pytest.raises(KeyError):
        view.code("0" * 64)


def test_the_same_text_in_two_modules_is_two_units_of_code() -> None:
    view = StaticFunctionProvider({"a": "def f(): ...", "b": "def f(): ..."}).current()
    assert view.resolve("a.f").digest != view.resolve("b.f").digest


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("transfers.transfr", "did you mean transfers.transfer"),
        ("erc20.balance", "did you mean chain.erc20.balance?"),
        ("other.swap", "transfers.swap"),
        ("zzz", "is not among the 3 functions of epoch 1"),
        ("", 'function "" is not'),
        ("x" * 100_000, "(100000 characters)"),
    ],
)
def test_an_unknown_function_is_answered_with_near_misses(asked, hint) -> None:
    view = StaticFunctionProvider(SOURCES).current()
    with pytest.raises(StepFailed) as caught:
        view.resolve(asked)
    assert caught.value.code is TaskFailureCode.FUNCTION_NOT_FOUND
    assert hint in caught.value.message
    assert len(caught.value.message) < 500


def test_an_async_function_is_not_found_for_a_reason_that_is_told() -> None:
    view = StaticFunctionProvider({"m": "async def fetch(): ...\ndef fetcher(): ..."}).current()
    with pytest.raises(StepFailed) as caught:
        view.resolve("m.fetch")
    assert caught.value.message.endswith(
        "m.py, line 1: fetch is an async def, which calls cannot run, so it is not offered: make it a plain def"
    )


def test_unaudited_code_is_listed_but_does_not_resolve() -> None:
    free = StaticFunctionProvider(SOURCES).current().resolve("chain.erc20.balance")
    view = StaticFunctionProvider(SOURCES, audited=frozenset({free.digest})).current()
    assert view.resolve("chain.erc20.balance") == free
    with pytest.raises(StepFailed, match="not on the list of audited code") as caught:
        view.resolve("transfers.swap")
    assert caught.value.code is TaskFailureCode.FUNCTION_NOT_AUDITED
    assert "transfers.swap" in view.function_ids


def test_no_cache_reaches_the_dispatcher() -> None:
    view = StaticFunctionProvider({"m": "@no_cache\ndef now(): ...\ndef f(): ..."}).current()
    assert (view.resolve("m.now").no_cache, view.resolve("m.f").no_cache) == (True, False)


def test_replacing_makes_an_epoch_and_leaves_the_old_view_as_it_was() -> None:
    provider = StaticFunctionProvider(SOURCES)
    old = provider.current()
    new = provider.replace({"transfers": "def transfer(log, more): ..."})
    assert (old.epoch, new.epoch, provider.current()) == (1, 2, new)
    assert old.resolve("transfers.transfer").digest != new.resolve("transfers.transfer").digest
    assert old.code(old.resolve("transfers.swap").digest).main == "transfers.py"


def test_static_code_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"transfers.py, line 1: SyntaxError"):
        StaticFunctionProvider({"transfers": "def"})
