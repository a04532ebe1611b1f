"""Tasks as requests, and outputs as values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockx_worker.client import (
    BlockTableCallConfig,
    BlockWriteHandler,
    CallListCallConfig,
    Function,
    Outputs,
    ReturnValueResultHandler,
    Task,
    TaskBuilder,
)
from blockx_worker.client.outputs import LineJoiner, decode_line
from blockx_worker.client.task import CallConfig, ResultHandler
from blockx_worker.model.tasks import CallFailurePolicy
from blockx_worker.rpc.config import RequestLimits
from blockx_worker.rpc.requests import to_task_request


def config_of(part: CallConfig | ResultHandler) -> tuple[str, Any]:
    typed = part.to_typed_config()
    return typed.type, json.loads(typed.config)


def test_call_lists_keep_values_exactly() -> None:
    args = [[2**256 - 1, -(2**200), "数\U0001f600", None, True, 1.5, {"a": [b"\xff"]}], ()]
    kind, config = config_of(CallListCallConfig("demo.f", args))
    assert kind == "CallListCallConfig"
    assert config == {
        "functionId": "demo.f",
        "argsList": [[2**256 - 1, -(2**200), "数\U0001f600", None, True, 1.5, {"a": ["0xff"]}], []],
    }


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1, 2}, object(), "\ud800", 10**4300],
    ids=["nan", "set", "object", "surrogate", "long"],
)
def test_values_that_json_cannot_hold_name_the_arguments(value: object) -> None:
    with pytest.raises(ValueError, match=r"args_list\[1\]: the value cannot be written as JSON: at \$\[0\]"):
        CallListCallConfig("demo.f", [[1], [value]]).to_typed_config()


def test_arguments_that_are_no_list_are_named() -> None:
    with pytest.raises(TypeError, match=r"args_list\[0\] is 'abc'; accepted: a list or tuple"):
        CallListCallConfig("demo.f", ["abc"]).to_typed_config()


def test_ready_json_text_is_passed_on_as_it_is() -> None:
    typed = CallListCallConfig("demo.f", b"[[1], [2]]").to_typed_config()
    assert typed.config == b'{"functionId":"demo.f","argsList":[[1], [2]]}'


def test_table_configs_and_handlers() -> None:
    assert config_of(BlockTableCallConfig("demo.f", 7, ["logs"])) == (
        "BlockTableCallConfig",
        {"functionId": "demo.f", "block": 7, "triggerSources": ["logs"]},
    )
    assert config_of(BlockTableCallConfig(Function("demo.f"), (1, 9), ("logs", "blocks"), rows_per_call=5))[
        1
    ] == {
        "functionId": "demo.f",
        "block": {"from": 1, "to": 9},
        "triggerSources": ["logs", "blocks"],
        "rowsPerCall": 5,
    }
    assert config_of(BlockWriteHandler("main", "t")) == (
        "BlockWriteHandler",
        {"target": "main", "table": "t"},
    )
    assert config_of(BlockWriteHandler("main", "t", "append", ["a"]))[1] == {
        "target": "main",
        "table": "t",
        "mode": "append",
        "columns": ["a"],
    }
    assert config_of(ReturnValueResultHandler()) == ("ReturnValueResultHandler", {})


def test_a_function_knows_its_id() -> None:
    assert Function.of(json.dumps) == Function("json.dumps")
    assert CallListCallConfig(Function.of(json.dumps), []).function_id == "json.dumps"


def test_what_a_task_leaves_open_is_left_to_the_worker() -> None:
    request = Task(CallListCallConfig("f", [])).to_request()
    assert (request.timeout_ms, request.call_budget_ms, request.slot_id) == (None, None, None)
    task = to_task_request(request, RequestLimits())
    assert (task.timeout_ms, task.call_budget_ms, task.call_retry_policy.max_attempts) == (600_000, 5000, 3)
    assert task.result_handler is not None
    assert Task(CallListCallConfig("f", [])).task_id != task.task_id


def test_the_builder_sets_every_field() -> None:
    task = (
        TaskBuilder("t1")
        .table("demo.f", (1, 2), ["logs"], rows_per_call=3)
        .write("main", "t", mode="append")
        .timeout_ms(1000)
        .call_budget_ms(0)
        .attempts(5, base_backoff_ms=0)
        .collect_all()
        .instance("chain")
        .label("a", "b")
        .build()
    )
    request = to_task_request(task.to_request(wait_ms=5), RequestLimits())
    assert request.task_id == "t1"
    assert request.function_call_config.type == "BlockTableCallConfig"
    assert request.result_handler is not None
    assert request.result_handler.type == "BlockWriteHandler"
    assert (request.timeout_ms, request.call_budget_ms) == (1000, 0)
    assert (request.call_retry_policy.max_attempts, request.call_retry_policy.base_backoff_ms) == (5, 0)
    assert request.call_failure_policy is CallFailurePolicy.COLLECT_ALL
    assert (request.instance_id, request.labels) == ("chain", {"a": "b"})


def test_the_builder_needs_something_to_compute() -> None:
    assert TaskBuilder().calls("f", [[1]]).return_values().build().handler == ReturnValueResultHandler()
    with pytest.raises(ValueError, match=r"use calls\(...\) or table\(...\)"):
        TaskBuilder().build()


@pytest.mark.parametrize("size", range(1, 12))
def test_lines_come_out_whole_however_they_are_cut(size: int) -> None:
    text = b'1\n"ab"\n[1,2,3]\n\n{}\n'
    joiner = LineJoiner()
    lines = [line for at in range(0, len(text), size) for line in joiner.feed(text[at : at + size])]
    assert lines == [b"1", b'"ab"', b"[1,2,3]", b"", b"{}"]


EXACT = {
    "u64": 2**64,
    "u256": 2**256 - 1,
    "negative": -(2**200),
    "longest": 10**4300 - 1,
    "longest negative": -(10**4300 - 1),
    "float": 0.1,
    "text": "数",
    "null": None,
}


@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT)
def test_lines_decode_exactly(value: object) -> None:
    decoded = decode_line(json.dumps(value).encode())
    assert decoded == value
    assert type(decoded) is type(value)


def test_outputs_are_a_sequence_decoded_on_demand() -> None:
    outputs = Outputs([b"1", b"null", b'{"a":2}'])
    assert len(outputs) == 3
    assert list(outputs) == [1, None, {"a": 2}]
    assert outputs[-1] == {"a": 2}
    assert repr(outputs) == "<3 outputs>"
