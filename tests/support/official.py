"""The official gRPC client (grpcio) with its default limits, and protobuf's own messages.

The message classes come from the committed descriptor set, so that nothing of the worker's own generated code is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import blockx_worker.rpc.pb

_SERVICE = "blockx.worker.v1.WorkerService"
_STREAMS = {"WatchTasks"}


def _load() -> tuple[dict[str, Any], Any]:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString((Path(blockx_worker.rpc.pb.__file__).parent / "worker.desc").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    own = [file.name for file in files.file if file.package == "blockx.worker.v1"]
    classes = message_factory.GetMessageClassesForFiles(own, pool)
    return {name.rpartition(".")[2]: cls for name, cls in classes.items()}, pool.FindServiceByName(_SERVICE)


messages, _descriptor = _load()


class OfficialClient:
    """One channel and a method for each RPC: ``client.SubmitTask(task_id="t", …)``."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None = None, **channel_options: Any
    ) -> None:
        options = list(channel_options.items())
        self.channel = (
            grpc.secure_channel(address, credentials, options=options)
            if credentials
            else grpc.insecure_channel(address, options=options)
        )
        self._methods = {method.name: self._method(method) for method in _descriptor.methods}

    def _method(self, method: Any) -> Any:
        kind = self.channel.unary_stream if method.name in _STREAMS else self.channel.unary_unary
        return kind(
            f"/{_SERVICE}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages[method.output_type.name].FromString,
        )

    def __getattr__(self, name: str) -> Any:
        if name not in self._methods:
            raise AttributeError(name)
        request = messages[_descriptor.methods_by_name[name].input_type.name]

        def call(*, rpc_timeout: float | None = 30, compression: Any = None, **fields: Any) -> Any:
            return self._methods[name](request(**fields), timeout=rpc_timeout, compression=compression)

        return call

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- conveniences over the plain RPCs ------------------------------------------------------------------------

    def submit_calls(self, task_id: str, function_id: str, args_list: Any, **fields: Any) -> Any:
        """Submit a call list whose values come back; ``args_list``: Python lists or JSON bytes."""
        args = args_list if isinstance(args_list, bytes) else json.dumps(args_list).encode()
        config = b'{"functionId": %s, "argsList": %s}' % (json.dumps(function_id).encode(), args)
        fields.setdefault(
            "result_handler", messages["TypedConfig"](type="ReturnValueResultHandler", config=b"{}")
        )
        return self.SubmitTask(
            task_id=task_id,
            function_call_config=messages["TypedConfig"](type="CallListCallConfig", config=config),
            **fields,
        )

    def submit_rows(
        self, task_id: str, function_id: str, args_list: Any, handler: dict[str, Any], **fields: Any
    ) -> Any:
        """Submit a call list whose outputs are written as rows."""
        return self.SubmitTask(
            task_id=task_id,
            function_call_config=typed(
                "CallListCallConfig", {"functionId": function_id, "argsList": args_list}
            ),
            result_handler=typed("BlockWriteHandler", handler),
            **fields,
        )

    def submit_table(
        self,
        task_id: str,
        function_id: str,
        block: Any,
        sources: list[str],
        handler: dict[str, Any],
        *,
        rows_per_call: int | None = None,
        **fields: Any,
    ) -> Any:
        """Submit a table task whose rows are written."""
        config = {
            "functionId": function_id,
            "block": block,
            "triggerSources": sources,
            "rowsPerCall": rows_per_call,
        }
        return self.SubmitTask(
            task_id=task_id,
            function_call_config=typed("BlockTableCallConfig", config),
            result_handler=typed("BlockWriteHandler", handler),
            **fields,
        )

    def wait(self, task_id: str, *, timeout: float = 120, observe: bool = True) -> Any:
        """Watch a task to its end; its TaskResult."""
        for event in self.WatchTasks(task_ids=[task_id], observe=observe, rpc_timeout=timeout):
            if event.WhichOneof("event") == "result":
                return event.result
            if event.WhichOneof("event") == "not_found":
                raise AssertionError(f"task {task_id} is not known")
        raise AssertionError("the watch ended without a result")

    def output_text(self, task_id: str) -> bytes:
        """All output lines of a task, joined, page by page."""
        return b"".join(self.pages(task_id))

    def pages(self, task_id: str) -> Iterator[bytes]:
        """The output of a task, a page at a time."""
        offset = 0
        while True:
            page = self.GetTaskResult(task_id=task_id, output_offset=offset)
            if not page.HasField("outputs"):
                return
            yield page.outputs.json_lines
            offset = page.next_offset

    def outputs(self, task_id: str) -> list[Any]:
        """The decoded outputs of a task."""
        return [json.loads(line) for line in self.output_text(task_id).splitlines()]


def typed(kind: str, config: Any) -> Any:
    """A TypedConfig of that type; ``config`` is a JSON value, or bytes that go out as they are."""
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    return messages["TypedConfig"](type=kind, config=text)


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    """Status name and message of a call that is refused."""
    try:
        answer = call()
        if isinstance(answer, grpc.Call):  # a stream tells its status at its end
            list(answer)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError(f"not refused: {answer}")


def state_name(state: int) -> str:
    """``SUCCEEDED`` for ``TASK_STATE_SUCCEEDED``."""
    enum = messages["TaskResult"].DESCRIPTOR.fields_by_name["state"].enum_type
    return str(enum.values_by_number[state].name).removeprefix("TASK_STATE_")
