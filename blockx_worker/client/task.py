"""What a client submits: a task of one call configuration and one result handler.

The values of arguments follow the rules of the worker's wire: integers of any size, bytes as ``0x…`` text, and what
JSON cannot hold exactly (NaN, sets, objects) is an error here instead of something else there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import attrs

from blockx_executor.wire.json_rules import OutputNotJson, encode_output
from blockx_worker.model.tasks import CallFailurePolicy
from blockx_worker.rpc.pb.blockx.worker import v1 as pb

__all__ = [
    "BlockTableCallConfig",
    "BlockWriteHandler",
    "CallConfig",
    "CallListCallConfig",
    "EncodedConfig",
    "Function",
    "ResultHandler",
    "ReturnValueResultHandler",
    "Task",
    "TaskBuilder",
]


class CallConfig(Protocol):
    """What to compute."""

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""


class ResultHandler(Protocol):
    """What to do with the outputs."""

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""


@attrs.frozen
class Function:
    """A function that the worker knows, ``package.module.name``."""

    function_id: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """The id of a function that is imported here under the same module name as there."""
        return cls(f"{function.__module__}.{function.__qualname__}")


def _function_id(function: str | Function) -> str:
    return function.function_id if isinstance(function, Function) else function


@attrs.frozen
class EncodedConfig:
    """A configuration or handler as it travels: its type, and the text of a JSON object."""

    type: str
    config: bytes

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""
        return pb.TypedConfig(type=self.type, config=self.config)


@attrs.frozen
class CallListCallConfig:
    """One call for each list of arguments. ``args_list`` may be the ready JSON text of the whole list, as bytes."""

    function_id: str = attrs.field(converter=_function_id)
    args_list: Sequence[Sequence[Any]] | bytes

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text; ValueError names the arguments that JSON cannot hold."""
        args = self.args_list if isinstance(self.args_list, bytes) else _encode_args(self.args_list)
        config = b'{"functionId":%b,"argsList":%b}' % (json.dumps(self.function_id).encode(), args)
        return pb.TypedConfig(type="CallListCallConfig", config=config)


@attrs.frozen
class BlockTableCallConfig:
    """Calls over the rows of block tables.

    ``block`` is one number or an inclusive (from, to). Without ``rows_per_call`` a call gets one row, with it a list
    of up to that many rows of one block.
    """

    function_id: str = attrs.field(converter=_function_id)
    block: int | tuple[int, int]
    trigger_sources: Sequence[str]
    rows_per_call: int | None = None

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""
        block = self.block if isinstance(self.block, int) else {"from": self.block[0], "to": self.block[1]}
        return _typed(
            "BlockTableCallConfig",
            functionId=self.function_id,
            block=block,
            triggerSources=list(self.trigger_sources),
            rowsPerCall=self.rows_per_call,
        )


@attrs.frozen
class BlockWriteHandler:
    """Write the outputs into a table. ``mode`` is ``append`` or ``replace_block``; left out, the worker chooses."""

    target: str
    table: str
    mode: str | None = None
    columns: Any = None

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""
        return _typed(
            "BlockWriteHandler", target=self.target, table=self.table, mode=self.mode, columns=self.columns
        )


@attrs.frozen
class ReturnValueResultHandler:
    """Keep the outputs for reading."""

    def to_typed_config(self) -> pb.TypedConfig:
        """Type and JSON text."""
        return pb.TypedConfig(type="ReturnValueResultHandler", config=b"{}")


@attrs.frozen(kw_only=True)
class Task:
    """One task. What is None is left to the worker's defaults; times are ms.

    ``task_id`` makes submitting safe to repeat; left out, it is a fresh one. ``call_budget_ms`` 0 = no limit.
    """

    config: CallConfig = attrs.field(kw_only=False)
    handler: ResultHandler | None = attrs.field(factory=ReturnValueResultHandler, kw_only=False)
    task_id: str = attrs.field(factory=lambda: f"task-{uuid.uuid4().hex}")
    slot_id: str | None = None
    instance_id: str = ""
    timeout_ms: int | None = None
    call_failure_policy: CallFailurePolicy = CallFailurePolicy.FAST_FAIL
    max_attempts: int | None = None
    base_backoff_ms: int | None = None
    call_budget_ms: int | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    is_shadow: bool = False

    def to_request(self, wait_ms: int = 0) -> pb.SubmitTaskRequest:
        """The protobuf request."""
        retry = pb.CallRetryPolicy(max_attempts=self.max_attempts, base_backoff_ms=self.base_backoff_ms)
        return pb.SubmitTaskRequest(
            task_id=self.task_id,
            slot_id=self.slot_id,
            instance_id=self.instance_id,
            function_call_config=self.config.to_typed_config(),
            result_handler=None if self.handler is None else self.handler.to_typed_config(),
            timeout_ms=self.timeout_ms,
            call_failure_policy=pb.CallFailurePolicy.from_string(self.call_failure_policy.value),
            call_retry_policy=retry,
            call_budget_ms=self.call_budget_ms,
            labels=dict(self.labels),
            is_shadow=self.is_shadow,
            wait_ms=wait_ms,
        )


class TaskBuilder:
    """Builds a `Task` step by step; every step returns the builder."""

    def __init__(self, task_id: str | None = None) -> None:
        self._config: CallConfig | None = None
        self._labels: dict[str, str] = {}
        self._fields: dict[str, Any] = {} if task_id is None else {"task_id": task_id}

    def calls(self, function: str | Function, args_list: Sequence[Sequence[Any]] | bytes) -> Self:
        """One call for each list of arguments."""
        self._config = CallListCallConfig(function, args_list)
        return self

    def table(
        self,
        function: str | Function,
        block: int | tuple[int, int],
        trigger_sources: Sequence[str],
        rows_per_call: int | None = None,
    ) -> Self:
        """Calls over the rows of block tables."""
        self._config = BlockTableCallConfig(function, block, trigger_sources, rows_per_call)
        return self

    def return_values(self) -> Self:
        """Keep the outputs for reading (the default)."""
        return self._set(handler=ReturnValueResultHandler())

    def write(self, target: str, table: str, mode: str | None = None, columns: Any = None) -> Self:
        """Write the outputs into a table."""
        return self._set(handler=BlockWriteHandler(target, table, mode, columns))

    def timeout_ms(self, timeout_ms: int) -> Self:
        """Time from submit to end."""
        return self._set(timeout_ms=timeout_ms)

    def call_budget_ms(self, call_budget_ms: int) -> Self:
        """Time one call may run; 0 = no limit."""
        return self._set(call_budget_ms=call_budget_ms)

    def attempts(self, max_attempts: int, base_backoff_ms: int | None = None) -> Self:
        """How often one call is tried, and the wait before its second try."""
        return self._set(max_attempts=max_attempts, base_backoff_ms=base_backoff_ms)

    def collect_all(self) -> Self:
        """Run every call and list the failures, instead of stopping at the first."""
        return self._set(call_failure_policy=CallFailurePolicy.COLLECT_ALL)

    def instance(self, instance_id: str) -> Self:
        """Whose work this is."""
        return self._set(instance_id=instance_id)

    def label(self, key: str, value: str) -> Self:
        """A word for people."""
        self._labels[key] = value
        return self

    def build(self) -> Task:
        """The task; ValueError if it has nothing to compute."""
        if self._config is None:
            raise ValueError("a task needs something to compute: use calls(...) or table(...)")
        return Task(self._config, labels=dict(self._labels), **self._fields)

    def _set(self, **fields: Any) -> Self:
        self._fields.update(fields)
        return self


def _encode_args(args_list: Sequence[Sequence[Any]]) -> bytes:
    return b"[" + b",".join(_encode_one(index, args) for index, args in enumerate(args_list)) + b"]"


def _encode_one(index: int, args: Sequence[Any]) -> bytes:
    if not isinstance(args, list | tuple):
        raise TypeError(f"args_list[{index}] is {str(args)[:60]!r}; accepted: a list or tuple of arguments")
    try:
        return encode_output(args)
    except OutputNotJson as error:
        raise ValueError(
            f"args_list[{index}]: {str(error).replace('The returned value', 'the value')}"
        ) from None


def _typed(kind: str, **fields: Any) -> pb.TypedConfig:
    present = {name: value for name, value in fields.items() if value is not None}
    return pb.TypedConfig(type=kind, config=json.dumps(present).encode())
