"""Requests at and over their limits, broken ones, and configurations that are wrong: who is told what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, messages, refusal, state_name, typed
from tests.support.worker_process import WorkerProcess

MIB = 1024 * 1024
SERVICE = "/blockx.worker.v1.WorkerService"

FUNCTIONS = '''
def add(a, b):
    return a + b


def size(text):
    return len(text)


def row(key):
    return {"key": key, "block_number": 1}


def where(item):
    """Fails for items with a 3 in them."""
    if "3" in str(item):
        raise LookupError(f"no {item} here")
    return item
'''

RETRIES = '''
import os
import time

from blockx_executor import sdk


def after(attempts, folder):
    """Asks to be tried again until it has been tried so often; returns the number of its attempt."""
    with open(os.path.join(folder, "tries"), "a") as file:
        file.write("x")
    if sdk.current().attempt < attempts:
        raise sdk.Retryable("not yet")
    return sdk.current().attempt


def broken(folder):
    """Fails in a way that no second try would mend."""
    with open(os.path.join(folder, "tries"), "a") as file:
        file.write("x")
    raise ValueError("broken")


def slow(seconds):
    time.sleep(seconds)
    return sdk.current().remaining_budget_ms
'''


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One table: block 1 has two rows, block 2 one whose JSON no reader takes."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "logs").mkdir()
    (folder / "logs" / "1.jsonl").write_text('{"block_number": 1, "a": 1}\n{"block_number": 1, "a": 2}\n')
    (folder / "logs" / "2.jsonl").write_text('{"block_number": 2, "a": "\\ud800"}\n')
    return folder


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, blocks: Path) -> WorkerProcess:
    return start_worker({"f": FUNCTIONS, "r": RETRIES}, blocks=blocks)


# --- size and form ------------------------------------------------------------------------------------------------


def test_a_request_over_the_limit_is_refused_at_its_header(client, worker):
    """The answer names both numbers, and the worker has taken in no more than a window of it.

    The first test of the module, since a large request that was taken would hide the peak of one that should not be.
    """
    before = peak_kib(worker)
    args = json.dumps([["a" * (96 * MIB)]]).encode()
    code, message = refusal(lambda: client.submit_calls("over", "f.size", args))
    assert code == "RESOURCE_EXHAUSTED"
    assert message.startswith("REQUEST_TOO_LARGE: the request has 1006")
    assert "the worker takes at most 67108864 (max_request_bytes)" in message
    assert "split the task or raise the limit" in message
    assert peak_kib(worker) - before < 8 * 1024
    assert refusal(lambda: client.GetTaskResult(task_id="over"))[0] == "NOT_FOUND"


def test_a_request_of_just_under_the_limit_is_taken(client):
    """64 MiB less 1 KiB, the rest of the message included; every argument arrives."""
    text = "a" * (4 * MIB)
    count, rest = 15, 64 * MIB - 1024 - 15 * (4 * MIB + 5) - 200
    args = [[text]] * count + [["b" * rest]]
    reply = client.submit_calls("under", "f.size", args, wait_ms=60_000, rpc_timeout=90)
    assert state_name(reply.task.state) == "SUCCEEDED"
    assert client.outputs("under") == [4 * MIB] * count + [rest]


def test_the_connection_that_carried_too_large_a_request_goes_on(client):
    """Only that request ends; what else the client does on its channel is not disturbed."""
    watch = client.WatchTasks(task_ids=["nobody-yet"], observe=True)
    args = json.dumps([["a" * (65 * MIB)]]).encode()
    assert refusal(lambda: client.submit_calls("over-2", "f.size", args))[0] == "RESOURCE_EXHAUSTED"
    assert [event.WhichOneof("event") for event in watch] == ["not_found"]
    assert client.submit_calls("after-over", "f.add", [[1, 2]], wait_ms=30_000).outputs == b"3\n"


def test_a_compressing_client_is_told_so(client):
    code, message = refusal(
        lambda: client.submit_calls("gzip", "f.size", [["a" * 10_000]], compression=grpc.Compression.Gzip)
    )
    assert code == "UNIMPLEMENTED"
    assert "compressed requests are not supported; turn compression off" in message


@pytest.mark.parametrize(
    "body",
    [b"\xff\xff\xff\xff", b"\x0a\x05abc", b"\x0a\x02\xff\xfe", b"\x0b", b"hello, worker"],
    ids=["tag", "truncated", "not utf-8", "group", "text"],
)
@pytest.mark.parametrize(
    "method", ["SubmitTask", "RequestTaskSlot", "WatchTasks", "GetTaskResult", "CancelTask"]
)
def test_bytes_that_are_no_message_are_refused(client, method, body):
    """Never an internal error, whatever stands in the body."""
    code, message = refusal(lambda: raw_call(client, method, body))
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("INVALID_ARGUMENT: ")


def test_a_field_of_another_wire_type_is_refused(client):
    """timeout_ms as text and task_id as a number: the runtime of protobuf skips them, and what is left is judged."""
    as_text = messages["SubmitTaskRequest"](task_id="t").SerializeToString() + b"\x32\x03abc"
    assert refusal(lambda: raw_call(client, "SubmitTask", as_text))[0] == "INVALID_ARGUMENT"
    assert refusal(lambda: raw_call(client, "SubmitTask", b"\x08\x05"))[0] == "INVALID_ARGUMENT"


def test_an_unknown_method_is_unimplemented(client):
    assert refusal(lambda: raw_call(client, "DropAllTasks", b""))[0] == "UNIMPLEMENTED"


# --- fields -------------------------------------------------------------------------------------------------------

WRONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "empty id": ({"task_id": ""}, "task_id is ''; accepted: 1 to 256 printable characters"),
    "long id": ({"task_id": "x" * 257}, "task_id"),
    "unprintable id": ({"task_id": "a\nb"}, "task_id is 'a\\nb'"),
    "negative time-out": (
        {"timeout_ms": -1},
        "timeout_ms is -1; accepted: a whole number from 0 to 86400000",
    ),
    "long time-out": ({"timeout_ms": 86_400_001}, "timeout_ms is 86400001"),
    "negative budget": ({"call_budget_ms": -5}, "call_budget_ms is -5"),
    "negative wait": ({"wait_ms": -1}, "wait_ms is -1"),
    "long wait": ({"wait_ms": 600_001}, "wait_ms is 600001; accepted: a whole number from 0 to 600000"),
    "unknown policy": (
        {"call_failure_policy": 7},
        "call_failure_policy is 7; accepted: CALL_FAILURE_POLICY_FAST_FAIL (1)",
    ),
    "negative policy": ({"call_failure_policy": -1}, "call_failure_policy is "),
    "negative attempts": (
        {"call_retry_policy": {"max_attempts": -1}},
        "call_retry_policy.max_attempts is -1",
    ),
    "many attempts": ({"call_retry_policy": {"max_attempts": 101}}, "a whole number from 0 to 100"),
    "negative back-off": (
        {"call_retry_policy": {"base_backoff_ms": -1}},
        "call_retry_policy.base_backoff_ms is -1",
    ),
    "no type": ({"function_call_config": {"config": b"{}"}}, "function_call_config.type is ''"),
    "no config": ({"function_call_config": None}, "function_call_config"),
    "config is a list": (
        {"function_call_config": {"type": "T", "config": b"[]"}},
        "function_call_config.config is b'[]'; accepted: the text of a JSON object",
    ),
    "config is not UTF-8": (
        {"function_call_config": {"type": "T", "config": b'{"a": "\xff"}'}},
        "function_call_config.config",
    ),
    "handler is not JSON": (
        {"result_handler": {"type": "T", "config": b"{'a': 1}"}},
        "result_handler.config",
    ),
    "many labels": (
        {"labels": {str(i): "" for i in range(65)}},
        "labels is '65 entries'; accepted: at most 64",
    ),
    "empty label": ({"labels": {"": "x"}}, "labels is ''; accepted: keys of 1 to 256 bytes"),
    "long label": ({"labels": {"k": "é" * 2049}}, "labels['k']"),
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_a_wrong_field_is_refused_by_name(client, name):
    """INVALID_ARGUMENT with the field, the value and what is accepted; nothing is left of the request."""
    fields, expected = WRONG_FIELDS[name]
    base = {"task_id": "wrong", "function_call_config": {"type": "CallListCallConfig", "config": b"{}"}}
    code, message = refusal(lambda: client.SubmitTask(**{**base, **fields}))
    assert code == "INVALID_ARGUMENT"
    assert expected in message
    assert refusal(lambda: client.GetTaskResult(task_id="wrong"))[0] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "fields", "expected"),
    [
        ("RequestTaskSlot", {"task_id": ""}, "task_id is ''"),
        ("RequestTaskSlot", {"task_id": "t", "ttl_ms": -1}, "ttl_ms is -1"),
        ("RequestTaskSlot", {"task_id": "t", "ttl_ms": 600_001}, "ttl_ms is 600001"),
        ("GetTaskResult", {"task_id": ""}, "task_id is ''"),
        ("GetTaskResult", {"task_id": "t", "output_offset": -1}, "output_offset is -1"),
        ("CancelTask", {"task_id": ""}, "task_id is ''"),
        ("CancelTask", {"task_id": "t", "reason": "x" * 1001}, "reason is"),
        ("WatchTasks", {"task_ids": []}, "task_ids is []; accepted: name 1 to 1000 tasks"),
        ("WatchTasks", {"task_ids": ["a", ""]}, "task_ids is ''"),
        (
            "WatchTasks",
            {"task_ids": [str(i) for i in range(1001)]},
            "task_ids is '1001 ids'; accepted: name 1 to 1000 tasks (max_watch_ids)",
        ),
    ],
)
def test_wrong_fields_of_the_other_methods_are_refused_by_name(client, method, fields, expected):
    code, message = refusal(lambda: getattr(client, method)(**fields))
    assert code == "INVALID_ARGUMENT"
    assert expected in message


def test_an_offset_beyond_the_outputs_is_refused_with_their_size(client):
    client.submit_calls("offset", "f.add", [[1, 2]], wait_ms=30_000)
    assert not client.GetTaskResult(task_id="offset", output_offset=2).HasField("outputs")
    code, message = refusal(lambda: client.GetTaskResult(task_id="offset", output_offset=3))
    assert code == "INVALID_ARGUMENT"
    assert "output_offset: expected 0 to 2" in message


def test_a_thousand_watched_ids_and_an_id_of_256_characters_are_taken(client):
    ids = [f"{i}-" + "é" * 200 for i in range(1000)]
    assert len(list(client.WatchTasks(task_ids=ids))) == 1000
    longest = "x" * 256
    assert client.submit_calls(longest, "f.add", [[1, 2]], wait_ms=30_000).outputs == b"3\n"


# --- configurations -----------------------------------------------------------------------------------------------

CALLS, TABLE = "CallListCallConfig", "BlockTableCallConfig"

WRONG_CONFIGS: list[tuple[str, Any, str, str]] = [
    (
        "NoSuchBuilder",
        {},
        "BUILDER_NOT_FOUND",
        'functionCallConfig.type: this worker has no builder "NoSuchBuilder"',
    ),
    (CALLS, {"argsList": []}, "BUILDER_FAILED", "functionCallConfig.functionId: is missing"),
    (CALLS, {"functionId": 1, "argsList": []}, "BUILDER_FAILED", "functionCallConfig.functionId: expected"),
    (CALLS, {"functionId": "f.add"}, "BUILDER_FAILED", "functionCallConfig.argsList: is missing"),
    (
        CALLS,
        {"functionId": "f.add", "argsList": {}},
        "BUILDER_FAILED",
        "functionCallConfig.argsList: expected",
    ),
    (
        CALLS,
        {"functionId": "f.add", "argsList": [[1], 2]},
        "BUILDER_FAILED",
        "functionCallConfig.argsList[1]: expected",
    ),
    (
        CALLS,
        {"functionId": "f.add", "argList": []},
        "BUILDER_FAILED",
        "argList: unknown field: did you mean argsList?",
    ),
    (CALLS, {"functionId": "f.sub", "argsList": []}, "FUNCTION_NOT_FOUND", "f.sub"),
    (CALLS, {"functionId": "f", "argsList": []}, "FUNCTION_NOT_FOUND", "f"),
    (
        TABLE,
        {"functionId": "f.row", "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block: is missing",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": "1", "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block: expected",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": -1, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block: expected an integer ≥ 0",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1.5, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block: expected",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": {"from": 2, "to": 1}, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block.to: expected at least 2",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": {"from": 1}, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block.to: is missing",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": {"from": 1, "till": 2}, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "functionCallConfig.block.till: unknown field",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1, "triggerSources": "logs"},
        "BUILDER_FAILED",
        "functionCallConfig.triggerSources: expected",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1, "triggerSources": ["logs", "logs"]},
        "BUILDER_FAILED",
        'functionCallConfig.triggerSources[1]: "logs" is named twice',
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1, "triggerSources": ["log"]},
        "BUILDER_FAILED",
        'functionCallConfig.triggerSources[0]: no table "log"',
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1, "triggerSources": ["logs"], "rowsPerCall": 0},
        "BUILDER_FAILED",
        "functionCallConfig.rowsPerCall: expected an integer ≥ 1",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 1, "triggerSources": ["logs"], "rows": 1},
        "BUILDER_FAILED",
        "functionCallConfig.rows: unknown field",
    ),
    (
        TABLE,
        {"functionId": "f.row", "block": 2, "triggerSources": ["logs"]},
        "BUILDER_FAILED",
        "2.jsonl, line 1: ",
    ),
]


@pytest.mark.parametrize("wrong", WRONG_CONFIGS, ids=lambda wrong: wrong[3][:60])
def test_a_wrong_call_configuration_fails_the_task_by_field(client, wrong, tmp_path):
    """Accepted, and then FAILED with the path of the field, before any call runs."""
    kind, config, code, expected = wrong
    reply = client.SubmitTask(task_id=tmp_path.name, function_call_config=typed(kind, config), wait_ms=30_000)
    failure = reply.task.result.failure
    assert (state_name(reply.task.state), failure.code) == ("FAILED", code)
    assert expected in failure.message
    assert reply.task.result.statistic.calls_total == 0


WRONG_HANDLERS: list[tuple[str, Any, str, str]] = [
    ("NoSuchPlugin", {}, "PLUGIN_NOT_FOUND", 'resultHandler.type: this worker has no writer "NoSuchPlugin"'),
    ("ReturnValueResultHandler", {"limit": 1}, "PLUGIN_FAILED", "resultHandler.limit: unknown field"),
    ("BlockWriteHandler", {"table": "t"}, "PLUGIN_FAILED", "resultHandler.target: is missing"),
    (
        "BlockWriteHandler",
        {"target": "db", "table": "t"},
        "PLUGIN_FAILED",
        'resultHandler.target: no target is called "db"',
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///no/such/folder/x.db", "table": "t"},
        "PLUGIN_FAILED",
        "resultHandler.target: the folder",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:////tmp", "table": "t"},
        "PLUGIN_FAILED",
        "resultHandler.target: /tmp is a folder",
    ),
    (
        "BlockWriteHandler",
        {"target": "mysql://me:secret@db/x", "table": "t"},
        "PLUGIN_FAILED",
        "resultHandler.target: ",
    ),
    ("BlockWriteHandler", {"target": "sqlite:///x.db"}, "PLUGIN_FAILED", "resultHandler.table: is missing"),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": ""},
        "PLUGIN_FAILED",
        "resultHandler.table: expected",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "blockx_write_ledger"},
        "PLUGIN_FAILED",
        "resultHandler.table: ",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "t", "mode": "upsert"},
        "PLUGIN_FAILED",
        'resultHandler.mode: expected "append" or "replace_block"',
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "t", "mode": "replace_block"},
        "PLUGIN_FAILED",
        "resultHandler.mode: replace_block is for tasks over block tables",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "t", "columns": []},
        "PLUGIN_FAILED",
        "resultHandler.columns: expected",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "t", "columns": [1]},
        "PLUGIN_FAILED",
        "resultHandler.columns[0]: expected",
    ),
    (
        "BlockWriteHandler",
        {"target": "sqlite:///x.db", "table": "t", "batch": 5},
        "PLUGIN_FAILED",
        "resultHandler.batch: unknown field",
    ),
]


@pytest.mark.parametrize("wrong", WRONG_HANDLERS, ids=lambda wrong: wrong[3][:60])
def test_a_wrong_result_handler_fails_the_task_by_field(client, wrong, tmp_path):
    """Before any call runs, so that nothing is computed in vain; no password in the message."""
    kind, config, code, expected = wrong
    reply = client.SubmitTask(
        task_id=tmp_path.name,
        function_call_config=typed(CALLS, {"functionId": "f.row", "argsList": [[1]]}),
        result_handler=typed(kind, config),
        wait_ms=30_000,
    )
    failure = reply.task.result.failure
    assert (state_name(reply.task.state), failure.code) == ("FAILED", code)
    assert expected in failure.message
    assert "secret" not in failure.message
    assert reply.task.result.statistic.calls_total == 0


# --- what a request can ask for -----------------------------------------------------------------------------------


def test_waiting_brings_result_and_outputs_in_one_round_trip(client):
    """Up to a segment of outputs; larger ones are fetched page by page."""
    small = client.submit_calls("wait", "f.add", [[1, 2], [3, 4]], wait_ms=30_000)
    assert (state_name(small.task.state), small.outputs, small.task.result.output_count) == (
        "SUCCEEDED",
        b"3\n7\n",
        2,
    )
    large = client.submit_calls("wait-large", "f.add", [["a" * MIB, "b"]], wait_ms=30_000)
    assert state_name(large.task.state) == "SUCCEEDED"
    assert not large.HasField("outputs")
    assert client.outputs("wait-large") == ["a" * MIB + "b"]


def test_a_wait_that_is_too_short_answers_with_the_task_as_it_stands(client):
    reply = client.submit_calls("short-wait", "r.slow", [[0.5]], wait_ms=1)
    assert state_name(reply.task.state) in {"ALLOCATED", "RUNNING"}
    assert not reply.HasField("outputs")
    assert state_name(client.wait("short-wait").state) == "SUCCEEDED"


def test_without_a_result_handler_outputs_are_dropped(client):
    reply = client.submit_calls("dropped", "f.add", [[1, 2]], wait_ms=30_000, result_handler=None)
    assert (state_name(reply.task.state), reply.outputs) == ("SUCCEEDED", b"")
    assert reply.task.result.statistic.calls_succeeded == 1
    assert client.outputs("dropped") == []


def test_collect_all_runs_every_call_and_lists_the_failed_ones(client):
    """Outputs keep their positions; at most 1000 failures are listed, the others counted."""
    args = [[i] for i in range(10_000)]
    result = submit_and_wait(client, "collect", "f.where", args, call_failure_policy=2)
    bad = [i for i in range(10_000) if "3" in str(i)]
    statistic = result.statistic
    assert (
        statistic.calls_total,
        statistic.calls_failed,
        statistic.calls_succeeded,
        statistic.calls_cancelled,
    ) == (10_000, len(bad), 10_000 - len(bad), 0)
    assert [call.index for call in result.failed_calls] == bad[:1000]
    assert result.failed_calls_omitted == len(bad) - 1000
    first = result.failed_calls[0]
    assert (first.error_kind, first.args_preview, first.attempts) == ("USER_ERROR", "[3]", 1)
    assert "LookupError: no 3 here" in first.message
    assert client.outputs("collect") == [None if "3" in str(i) else i for i in range(10_000)]


def test_fast_fail_stops_at_the_first_failure(client):
    """The failure tells which call of which function failed with which arguments, and where in the user's code."""
    items = [i for i in range(50_000) if "3" not in str(i)]
    items.insert(500, 3)  # the one that fails: which of several fails first would be chance
    result = submit_and_wait(client, "fast", "f.where", [[i] for i in items])
    failure = result.failure
    assert (failure.code, failure.error_kind, failure.function_id) == (
        "CALLS_FAILED",
        "USER_ERROR",
        "f.where",
    )
    assert (failure.args_preview, failure.locals["item"]) == ("[3]", "3")
    assert "LookupError: no 3 here" in failure.message
    assert "raise LookupError" in failure.stack
    statistic = result.statistic
    assert statistic.calls_cancelled > 0
    assert statistic.calls_succeeded + statistic.calls_failed + statistic.calls_cancelled == len(items)


def test_retryable_failures_are_tried_again_as_often_as_the_task_allows(client, tmp_path):
    result = submit_and_wait(
        client,
        "retry",
        "r.after",
        [[3, str(tmp_path)]],
        call_retry_policy={"max_attempts": 4, "base_backoff_ms": 1},
    )
    assert state_name(result.state) == "SUCCEEDED"
    assert client.outputs("retry") == [3]
    assert (result.statistic.attempts, result.statistic.retries) == (3, 2)
    assert (tmp_path / "tries").read_text() == "xxx"


def test_attempts_run_out(client, tmp_path):
    result = submit_and_wait(
        client,
        "spent",
        "r.after",
        [[3, str(tmp_path)]],
        call_retry_policy={"max_attempts": 2, "base_backoff_ms": 0},
    )
    assert (state_name(result.state), result.failure.error_kind) == ("FAILED", "USER_ERROR")
    assert "Retryable" in result.failure.message
    assert (tmp_path / "tries").read_text() == "xx"


def test_other_failures_are_not_tried_again(client, tmp_path):
    result = submit_and_wait(
        client, "once", "r.broken", [[str(tmp_path)]], call_retry_policy={"max_attempts": 100}
    )
    assert (state_name(result.state), result.statistic.attempts) == ("FAILED", 1)
    assert (tmp_path / "tries").read_text() == "x"


def test_no_budget_means_no_limit(client):
    """0 is not the default: the call may take as long as it likes, and is told so."""
    limited = submit_and_wait(client, "budget", "r.slow", [[0.3]], call_budget_ms=100)
    assert limited.failure.error_kind == "BUDGET_EXCEEDED"
    free = submit_and_wait(client, "no-budget", "r.slow", [[0.3]], call_budget_ms=0)
    assert state_name(free.state) == "SUCCEEDED"
    assert client.outputs("no-budget") == [None]


def test_labels_are_told_in_the_log(client, worker):
    client.submit_calls("labels", "f.add", [[1, 2]], labels={"run": "nightly", "ключ": "值"}, wait_ms=30_000)
    [line] = worker.log_events("task_finished", task_id="labels")
    assert line["labels"] == {"run": "nightly", "ключ": "值"}


# --- helpers ------------------------------------------------------------------------------------------------------


def submit_and_wait(client: OfficialClient, task_id: str, function_id: str, args: Any, **fields: Any) -> Any:
    client.submit_calls(task_id, function_id, args, **fields)
    return client.wait(task_id)


def raw_call(client: OfficialClient, method: str, body: bytes) -> Any:
    """Call a method with bytes that no message class has made."""
    kind = client.channel.unary_stream if method == "WatchTasks" else client.channel.unary_unary
    return kind(f"{SERVICE}/{method}", request_serializer=None, response_deserializer=None)(body, timeout=30)


def peak_kib(worker: WorkerProcess) -> int:
    """The most memory that the worker has had so far."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
