"""What comes in: request fields are judged, defaults filled in, and the model's words made of them.

Every refusal is INVALID_ARGUMENT and names the field, the value (shortened) and what is accepted.

Trap: betterproto puts a value of another type into a field when a client sends it with another wire type, so types
are judged as well as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from blockx_worker.model.errors import ErrorCode, WorkerError
from blockx_worker.model.tasks import CallFailurePolicy, CallRetryPolicy, TaskRequest, TypedConfig
from blockx_worker.rpc.config import RequestLimits
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

__all__ = ["to_count", "to_reason", "to_task_id", "to_task_ids", "to_task_request", "to_ttl_ms", "to_wait_ms"]

_PREVIEW_CHARS = 60
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

_POLICIES = {
    0: CallFailurePolicy.FAST_FAIL,
    1: CallFailurePolicy.FAST_FAIL,
    2: CallFailurePolicy.COLLECT_ALL,
}

_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def to_task_request(request: pb.SubmitTaskRequest, limits: RequestLimits) -> TaskRequest:
    """The task to run, all defaults filled in."""
    return TaskRequest(
        task_id=to_task_id(request.task_id, limits),
        slot_id=_optional_id("slot_id", request.slot_id, limits),
        instance_id=_id("instance_id", request.instance_id, limits, empty=True),
        function_call_config=_config("function_call_config", request.function_call_config, limits),
        result_handler=None
        if request.result_handler is None
        else _config("result_handler", request.result_handler, limits),
        timeout_ms=_number("timeout_ms", request.timeout_ms, limits.max_timeout_ms)
        or limits.default_timeout_ms,
        call_failure_policy=_policy(request.call_failure_policy),
        call_retry_policy=_retry_policy(request.call_retry_policy, limits),
        call_budget_ms=_number_or(
            limits.default_call_budget_ms, "call_budget_ms", request.call_budget_ms, limits.max_call_budget_ms
        ),
        labels=_labels(request.labels, limits),
        is_shadow=bool(request.is_shadow),
    )


def to_task_id(value: Any, limits: RequestLimits) -> str:
    """A task id: 1 to ``max_id_chars`` printable characters."""
    return _id("task_id", value, limits)


def to_task_ids(values: Iterable[Any], limits: RequestLimits) -> list[str]:
    """The ids to watch, each once, in order of first mention."""
    if not isinstance(values, list) or not values:
        _refuse("task_ids", values, f"name 1 to {limits.max_watch_ids} tasks")
    ids = list(dict.fromkeys(_id("task_ids", value, limits) for value in values))
    if len(ids) > limits.max_watch_ids:
        _refuse("task_ids", f"{len(ids)} ids", f"name 1 to {limits.max_watch_ids} tasks (max_watch_ids)")
    return ids


def to_ttl_ms(value: Any, limits: RequestLimits) -> int:
    """How long a lease lasts in ms; 0 = the worker's default."""
    return _number("ttl_ms", value, limits.max_ttl_ms)


def to_wait_ms(value: Any, limits: RequestLimits) -> int:
    """How long a submit waits for the end, in ms."""
    return _number("wait_ms", value, limits.max_wait_ms)


def to_count(field: str, value: Any) -> int:
    """A number of bytes or the like, 0 or more."""
    return _number(field, value, 2**63 - 1)


def to_reason(value: Any, limits: RequestLimits) -> str:
    """Why a task is cancelled, for people; may be empty."""
    text = _text("reason", value)
    if len(text) > limits.max_reason_chars:
        _refuse("reason", text, f"at most {limits.max_reason_chars} characters")
    return text


def _optional_id(field: str, value: Any, limits: RequestLimits) -> str | None:
    return _id(field, value, limits) if value not in (None, "") else None


def _id(field: str, value: Any, limits: RequestLimits, *, empty: bool = False) -> str:
    text = _text(field, value)
    if not (text or empty) or len(text) > limits.max_id_chars or not text.isprintable():
        least = 0 if empty else 1
        _refuse(field, text, f"{least} to {limits.max_id_chars} printable characters")
    return text


def _config(field: str, config: Any, limits: RequestLimits) -> TypedConfig:
    if not isinstance(config, pb.TypedConfig):
        _refuse(field, config, "a type and its configuration")
    kind = _text(f"{field}.type", config.type)
    if not kind or len(kind) > limits.max_type_chars or not kind.isprintable():
        _refuse(f"{field}.type", kind, f"1 to {limits.max_type_chars} printable characters")
    return TypedConfig(kind, _json_text(f"{field}.config", config.config))


def _json_text(field: str, data: Any) -> bytes:
    """Checks the text and leaves it as it is; values are decoded by the owner of the configuration."""
    if not isinstance(data, bytes):
        _refuse(field, data, "bytes")
    if not data:
        return b"{}"
    try:
        if not data.isascii():
            data.decode()
        _json_object.decode(data)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        _refuse(field, data, f"the text of a JSON object in UTF-8 ({_why_no_json(error, data)})")
    return data


def _why_no_json(error: Exception, data: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep to be read"
    hint = (
        "; an escape from \\ud800 to \\udfff must be one of a pair" if _SURROGATE_ESCAPE.search(data) else ""
    )
    return f"{error}{hint}"


def _retry_policy(policy: Any, limits: RequestLimits) -> CallRetryPolicy:
    field = "call_retry_policy"
    if policy is None:
        policy = pb.CallRetryPolicy()
    if not isinstance(policy, pb.CallRetryPolicy):
        _refuse(field, policy, "max_attempts and base_backoff_ms")
    return CallRetryPolicy(
        max_attempts=_number(f"{field}.max_attempts", policy.max_attempts, limits.max_max_attempts)
        or limits.default_max_attempts,
        base_backoff_ms=_number_or(
            limits.default_base_backoff_ms,
            f"{field}.base_backoff_ms",
            policy.base_backoff_ms,
            limits.max_base_backoff_ms,
        ),
    )


def _policy(value: Any) -> CallFailurePolicy:
    policy = _POLICIES.get(value) if isinstance(value, int) else None
    if policy is None:
        _refuse(
            "call_failure_policy",
            int(value) if isinstance(value, int) else value,  # an unknown number has no name to show
            "CALL_FAILURE_POLICY_FAST_FAIL (1) or CALL_FAILURE_POLICY_COLLECT_ALL (2)",
        )
    return policy


def _labels(labels: Mapping[Any, Any], limits: RequestLimits) -> dict[str, str]:
    if len(labels) > limits.max_labels:
        _refuse("labels", f"{len(labels)} entries", f"at most {limits.max_labels} entries")
    for key, value in labels.items():
        if not 0 < len(_text("labels", key).encode()) <= limits.max_label_key_bytes:
            _refuse("labels", key, f"keys of 1 to {limits.max_label_key_bytes} bytes")
        if len(_text(f"labels[{_shorten(key)}]", value).encode()) > limits.max_label_value_bytes:
            _refuse(f"labels[{_shorten(key)}]", value, f"at most {limits.max_label_value_bytes} bytes")
    return dict(labels)


def _number_or(default: int, field: str, value: Any, most: int) -> int:
    return default if value is None else _number(field, value, most)


def _number(field: str, value: Any, most: int) -> int:
    """0 to ``most``; absent is 0."""
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value <= most:
        _refuse(field, value, f"a whole number from 0 to {most}")
    return value


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(field, value, "text")
    return value


def _refuse(field: str, value: Any, accepted: str) -> NoReturn:
    raise WorkerError(ErrorCode.INVALID_ARGUMENT, f"{field} is {_shorten(value)}; accepted: {accepted}")


def _shorten(value: Any) -> str:
    """A repr of at most about sixty characters that never renders a large value whole."""
    if isinstance(value, str | bytes | list):
        value = value[: _PREVIEW_CHARS + 1]
    text = repr(value)
    return text if len(text) <= _PREVIEW_CHARS else text[:_PREVIEW_CHARS] + "…"
