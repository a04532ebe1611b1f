"""Request fields: defaults, limits, and errors that name the field, the value and what is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TypedConfig
from blockx_worker.rpc import requests
from blockx_worker.rpc.config import RequestLimits
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

LIMITS = RequestLimits()


def submit(**fields: Any) -> pb.SubmitTaskRequest:
    config = fields.pop("config", pb.TypedConfig(type="X", config=b'{"a": 1}'))
    return pb.SubmitTaskRequest(**{"task_id": "t1", "function_call_config": config} | fields)


def refusal(**fields: Any) -> str:
    with pytest.raises(WorkerError) as caught:
        requests.to_task_request(submit(**fields), LIMITS)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    return caught.value.message


def test_a_full_request_arrives_as_it_is() -> None:
    task = requests.to_task_request(
        submit(
            slot_id="slot-3",
            instance_id="chain",
            result_handler=pb.TypedConfig(type="H"),
            timeout_ms=86_400_000,
            call_failure_policy=pb.CallFailurePolicy.COLLECT_ALL,
            call_retry_policy=pb.CallRetryPolicy(max_attempts=100, base_backoff_ms=0),
            call_budget_ms=0,
            labels={"team": "数据"},
            is_shadow=True,
        ),
        LIMITS,
    )
    assert (task.slot_id, task.instance_id, task.timeout_ms, task.call_budget_ms) == (
        "slot-3",
        "chain",
        86_400_000,
        0,
    )
    assert task.result_handler == TypedConfig("H", b"{}")
    assert task.call_failure_policy is CallFailurePolicy.COLLECT_ALL
    assert task.call_retry_policy == CallRetryPolicy(max_attempts=100, base_backoff_ms=0)
    assert task.labels == {"team": "数据"}
    assert task.is_shadow


def test_zero_means_default_where_zero_makes_no_sense() -> None:
    task = requests.to_task_request(
        submit(timeout_ms=0, slot_id="", call_retry_policy=pb.CallRetryPolicy(max_attempts=0)), LIMITS
    )
    assert (task.timeout_ms, task.slot_id, task.call_retry_policy) == (600_000, None, CallRetryPolicy())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task_id": ""}, "task_id is ''; accepted: 1 to 256 printable characters"),
        ({"task_id": "x" * 257}, "task_id is '" + "x" * 59 + "…; accepted: 1 to 256 printable characters"),
        ({"task_id": "a\nb"}, "task_id is 'a\\nb'; accepted: 1 to 256 printable characters"),
        ({"slot_id": "\x00"}, "slot_id is '\\x00'; accepted: 1 to 256 printable characters"),
        ({"instance_id": "\t"}, "instance_id is '\\t'; accepted: 0 to 256 printable characters"),
        ({"timeout_ms": -1}, "timeout_ms is -1; accepted: a whole number from 0 to 86400000"),
        ({"timeout_ms": 86_400_001}, "timeout_ms is 86400001; accepted: a whole number from 0 to 86400000"),
        ({"call_budget_ms": -5}, "call_budget_ms is -5; accepted: a whole number from 0 to 86400000"),
        (
            {"call_retry_policy": pb.CallRetryPolicy(max_attempts=101)},
            "call_retry_policy.max_attempts is 101; accepted: a whole number from 0 to 100",
        ),
        (
            {"call_retry_policy": pb.CallRetryPolicy(base_backoff_ms=60_001)},
            "call_retry_policy.base_backoff_ms is 60001; accepted: a whole number from 0 to 60000",
        ),
        ({"labels": {"": "x"}}, "labels is ''; accepted: keys of 1 to 256 bytes"),
        ({"labels": {"k": "v" * 4097}}, "labels['k'] is '" + "v" * 59 + "…; accepted: at most 4096 bytes"),
        ({"labels": {str(i): "" for i in range(65)}}, "labels is '65 entries'; accepted: at most 64 entries"),
    ],
)
def test_a_bad_value_is_named_with_what_is_accepted(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == message


def test_an_unknown_policy_is_refused_and_none_is_the_default() -> None:
    unknown = pb.SubmitTaskRequest.FromString(bytes(submit()) + b"\x38\x09").call_failure_policy
    assert refusal(call_failure_policy=unknown).startswith("call_failure_policy is 9; accepted: ")
    task = requests.to_task_request(submit(call_failure_policy=pb.CallFailurePolicy.UNSPECIFIED), LIMITS)
    assert task.call_failure_policy is CallFailurePolicy.FAST_FAIL


@pytest.mark.parametrize("text", [b"[1]", b"{", b'{"a":1}x', b"nul", b'{"\xff":1}', b"1", b'{"a":tru}'])
def test_a_configuration_is_the_text_of_a_json_object(text: bytes) -> None:
    message = refusal(config=pb.TypedConfig(type="X", config=text))
    assert message.startswith(
        f"function_call_config.config is {text!r}; accepted: the text of a JSON object in UTF-8"
    )


def test_a_configuration_keeps_its_text() -> None:
    text = '{"b": 115792089237316195423570985008687907853269984665640564039457584007913129639935, "a": "数"}'.encode()
    task = requests.to_task_request(submit(config=pb.TypedConfig(type="X", config=text)), LIMITS)
    assert task.function_call_config.config == text


def test_a_task_needs_a_configuration_with_a_type() -> None:
    assert refusal(config=pb.TypedConfig()).startswith("function_call_config.type is ''")
    assert refusal(result_handler=pb.TypedConfig(type="x" * 257)).startswith("result_handler.type is 'xxx")


def test_ids_to_watch_are_merged_and_counted() -> None:
    assert requests.to_task_ids(["b", "a", "b"], LIMITS) == ["b", "a"]
    assert len(requests.to_task_ids([str(i % 1000) for i in range(5000)], LIMITS)) == 1000
    for ids in ([], ["a", ""], [str(i) for i in range(1001)]):
        with pytest.raises(WorkerError, match=r"task_ids is .*; accepted: "):
            requests.to_task_ids(ids, LIMITS)


def test_waits_leases_reasons_and_offsets_have_limits() -> None:
    assert requests.to_wait_ms(600_000, LIMITS) == 600_000
    assert requests.to_ttl_ms(0, LIMITS) == 0
    assert requests.to_reason("x" * 1000, LIMITS)
    assert requests.to_count("output_offset", 2**62) == 2**62
    with pytest.raises(WorkerError, match="wait_ms is 600001; accepted: a whole number from 0 to 600000"):
        requests.to_wait_ms(600_001, LIMITS)
    with pytest.raises(WorkerError, match="ttl_ms is -1"):
        requests.to_ttl_ms(-1, LIMITS)
    with pytest.raises(WorkerError, match=r"reason is 'xxx.*at most 1000 characters"):
        requests.to_reason("x" * 1001, LIMITS)
    with pytest.raises(WorkerError, match="output_offset is -1"):
        requests.to_count("output_offset", -1)
