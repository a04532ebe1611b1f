"""Calls from a list of argument lists."""

import msgspec
import pytest
import trio

from blockx_worker.builders.call_list import SLICE_ELEMENTS, CallListBuilder
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import StepFailed
from tests.builders.helpers import build, calls, first_batch, source_of


async def refused(config: object) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        await build(CallListBuilder(), config)
    return caught.value


async def test_each_element_becomes_a_call_with_its_text_as_it_stands() -> None:
    big = b"[115792089237316195423570985008687907853269984665640564039457584007913129639935, 1.10 ]"
    text = b'{"argsList": [ [1], ' + big + b' ,[],["\xc3\xa9\\u00e9", [null]]], "functionId": "m.f"}'
    result = await build(CallListBuilder(), text)
    assert calls(result) == [b"[1]", big, b"[]", b'["\xc3\xa9\\u00e9", [null]]']
    assert (source_of(result).function.function_id, result.blocks) == ("m.f", None)


async def test_an_empty_list_is_a_task_without_calls() -> None:
    assert calls(await build(CallListBuilder(), {"functionId": "m.f", "argsList": []})) == []


async def test_batches_keep_the_limits_of_the_context() -> None:
    config = {"functionId": "m.f", "argsList": [[i] for i in range(10)]}
    rows = await build(CallListBuilder(), config, batch_max_rows=4)
    assert len(first_batch(rows).args) == 4
    size = await build(CallListBuilder(), config, batch_max_args_bytes=7)
    assert len(first_batch(size).args) == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"", "functionCallConfig.functionId: is missing: expected the id of a function"),
        (b"{", "functionCallConfig: not valid JSON: Input data was truncated"),
        (b"[1]", "functionCallConfig: expected a JSON object, got [1]"),
        (
            b'{"functionId": "m.f"}',
            "functionCallConfig.argsList: is missing: expected a list of argument lists",
        ),
        (
            {"functionId": 5, "argsList": []},
            "functionCallConfig.functionId: expected the id of a function, got 5",
        ),
        (
            {"functionId": "", "argsList": []},
            'functionCallConfig.functionId: expected the id of a function, got ""',
        ),
        (
            {"functionId": None, "argsList": []},
            "functionCallConfig.functionId: is missing: expected the id of a function",
        ),
        (
            {"functionId": "m.f", "argsList": {"0": [1]}},
            'functionCallConfig.argsList: expected a list of argument lists, got {"0": [1]}',
        ),
        (
            {"functionId": "m.f", "argslist": []},
            "functionCallConfig.argslist: unknown field: did you mean argsList?",
        ),
        (
            {"functionId": "m.f", "argsList": [], "x": 1},
            "functionCallConfig.x: unknown field: accepted are functionId, argsList",
        ),
        (
            {"functionId": "m.f", "argsList": [[1], 7, [2], "x"]},
            "functionCallConfig.argsList[1]: expected a list of arguments such as [1] (write [[…]] for one argument",
        ),
        (b'{"functionId": "m.f", "argsList": [["\xff"]]}', "functionCallConfig: not valid UTF-8 at byte 37"),
        (b'{"functionId": "\xff", "argsList": []}', "functionCallConfig.functionId: not readable: "),
        (b'{"functionId": "m.f", "argsList": [[1],]}', "functionCallConfig: not valid JSON: "),
        (b'{"functionId": "m.f", "argsList": [[NaN]]}', "functionCallConfig: not valid JSON: "),
    ],
)
async def test_a_bad_configuration_names_the_field(config, message) -> None:
    failed = await refused(config)
    assert failed.code is TaskFailureCode.BUILDER_FAILED
    assert failed.message.startswith(message)


async def test_an_unknown_function_fails_the_task() -> None:
    failed = await refused({"functionId": "m.g", "argsList": [[1]]})
    assert failed.code is TaskFailureCode.FUNCTION_NOT_FOUND
    assert "did you mean m.f?" in failed.message


async def test_a_large_bad_value_is_shown_shortened() -> None:
    failed = await refused({"functionId": "m.f", "argsList": ["x" * 100_000]})
    assert "(100002 characters)" in failed.message
    failed = await refused({"functionId": "m.f", "argsList": "x" * 100_000})
    assert "(100002 bytes)" in failed.message
    assert len(failed.message) < 300


async def test_a_large_list_is_checked_in_slices_so_that_others_run() -> None:
    count = 5 * SLICE_ELEMENTS
    text = b'{"functionId": "m.f", "argsList": [%b]}' % b",".join([b"[1]"] * count)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        result = await build(CallListBuilder(), text)
        nursery.cancel_scope.cancel()
    assert turns >= 3
    assert source_of(result).total == count


async def test_a_bad_element_in_a_later_slice_is_named_by_its_index() -> None:
    args: list[object] = [[1]] * (SLICE_ELEMENTS + 5)
    args[SLICE_ELEMENTS + 2] = {"x": 1}
    failed = await refused({"functionId": "m.f", "argsList": args})
    assert f"argsList[{SLICE_ELEMENTS + 2}]: " in failed.message


async def test_arguments_stay_views_into_the_one_text() -> None:
    text = b'{"functionId": "m.f", "argsList": [[1],[2]]}'
    batch = first_batch(await build(CallListBuilder(), text))
    assert all(isinstance(raw, msgspec.Raw) for raw in batch.args)
    assert bytes(batch.args[1]) == b"[2]"
