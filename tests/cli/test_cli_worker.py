"""Commands that talk to a worker, through the real client and server: exit codes, output formats, interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from blockx_worker.cli.main import main
from blockx_worker.model.errors import ErrorCode, TaskFailureCode, WorkerError
from blockx_worker.model.tasks import CallFailurePolicy, FailedCall, TaskFailure, TaskState, TaskStatistic
from tests.cli.worker_thread import RunningWorker, running

CALLS = ("calls", "--function", "transfers.as_units", "--args", "[1]")
FAILURE = TaskFailure(
    code=TaskFailureCode.CALLS_FAILED, message="call 0 failed: boom", error_kind="USER_ERROR"
)


@pytest.fixture
def worker() -> Iterator[RunningWorker]:
    with running() as started:
        yield started


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def submit(worker: RunningWorker, *arguments: str, stdin: bytes | None = None) -> Result:
    return run("submit", "--to", worker.address, *arguments, stdin=stdin)


# --- submit calls -----------------------------------------------------------------------------------------------


def test_outputs_go_to_stdout_and_words_to_stderr(worker):
    worker.api.outputs = b'"1.0"\n{"a":2}\n'
    result = submit(worker, *CALLS)
    assert result.exit_code == 0
    assert result.stdout == '"1.0"\n{"a":2}\n'
    assert "SUCCEEDED" in result.stderr


def test_with_json_the_last_line_of_stdout_is_the_summary(worker):
    worker.api.outputs = b"1\n2\n"
    worker.api.result = {"statistic": TaskStatistic(calls_total=2, calls_succeeded=2)}
    result = submit(worker, "--json", "--task-id", "t-1", *CALLS)
    *outputs, last = result.stdout.splitlines()
    assert outputs == ["1", "2"]
    summary = json.loads(last)
    assert list(summary) == ["taskId", "state", "failure", "outputs", "statistic", "writer"]
    assert (summary["taskId"], summary["state"], summary["outputs"]) == ("t-1", "SUCCEEDED", 2)
    assert summary["statistic"]["callsTotal"] == 2


def test_outputs_go_to_a_file(worker, tmp_path):
    worker.api.outputs = b"1\n" * 10
    result = submit(worker, *CALLS, "--output", str(tmp_path / "out.jsonl"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "out.jsonl").read_bytes() == b"1\n" * 10


@pytest.mark.parametrize("ends", ["at once", "when watched"])
def test_outputs_larger_than_one_message_arrive_whole_and_in_order(worker, tmp_path, ends):
    """By pages when the task ends within the submit, by watching otherwise."""
    worker.api.ends = ends
    worker.api.outputs = b"".join(b"%d\n" % number for number in range(600_000))
    result = submit(worker, *CALLS, "--output", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == worker.api.outputs


def test_a_watched_task_is_owned(worker):
    owners: list[bool] = []
    worker.api.ends = "when watched"
    worker.api.when_watched = lambda: owners.extend(observe for _ids, observe in worker.api.watchers)
    assert submit(worker, *CALLS).exit_code == 0
    assert owners == [False]


def test_the_request_is_what_the_options_say(worker):
    arguments = ("--timeout", "1m", "--budget", "0s", "--attempts", "7", "--collect-all", "--task-id", "mine")
    submit(worker, *arguments, *CALLS, "--args", "[2, [3]]")
    request = worker.api.request
    assert request.task_id == "mine"
    assert (request.timeout_ms, request.call_budget_ms) == (60_000, 0)
    assert request.call_retry_policy.max_attempts == 7
    assert request.call_failure_policy is CallFailurePolicy.COLLECT_ALL
    config = json.loads(request.function_call_config.config)
    assert config == {"functionId": "transfers.as_units", "argsList": [[1], [2, [3]]]}


def test_options_may_also_stand_after_the_kind_of_task(worker):
    result = run("submit", *CALLS, "--to", worker.address, "--budget", "2s")
    assert result.exit_code == 0
    assert worker.api.request.call_budget_ms == 2000


def test_what_is_not_said_is_left_to_the_worker(worker):
    submit(worker, *CALLS)
    request = worker.api.request
    assert (request.timeout_ms, request.call_budget_ms) == (600_000, 5000)
    assert request.call_failure_policy is CallFailurePolicy.FAST_FAIL


def test_new_task_ids_are_readable_and_differ(worker):
    submit(worker, *CALLS)
    submit(worker, *CALLS)
    first, second = worker.api.tasks
    assert re.fullmatch(r"as_units-\d{8}-\d{6}-[0-9a-f]{6}", first)
    assert first != second


def test_arguments_come_from_a_file_or_from_stdin(worker, tmp_path):
    (tmp_path / "args.jsonl").write_text("[1]\n[2]\n")
    calls = ("calls", "--function", "m.f", "--args-file")
    submit(worker, "--task-id", "a", *calls, str(tmp_path / "args.jsonl"))
    submit(worker, "--task-id", "b", *calls, "-", stdin=b"[1]\n[2]\n")
    configs = [task.request.function_call_config.config for task in worker.api.tasks.values()]
    assert configs[0] == configs[1] == b'{"functionId":"m.f","argsList":[[1],[2]]}'


def test_a_failed_task_is_exit_code_1_and_tells_why(worker):
    worker.api.state = TaskState.FAILED
    worker.api.result = {"failure": FAILURE}
    result = submit(worker, "--json", *CALLS)
    assert result.exit_code == 1
    assert "CALLS_FAILED" in result.stderr
    assert "boom" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["failure"]["code"] == "CALLS_FAILED"


def test_a_task_that_stopped_at_its_first_failure_leaves_the_old_file(worker, tmp_path):
    (tmp_path / "out.jsonl").write_text("old\n")
    worker.api.outputs = b"1\nnull\nnull\n"
    worker.api.state = TaskState.FAILED
    worker.api.result = {"failure": FAILURE}
    assert submit(worker, *CALLS, "--output", str(tmp_path / "out.jsonl")).exit_code == 1
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


def test_outputs_of_a_task_that_collected_failures_are_written_with_null_where_a_call_failed(
    worker, tmp_path
):
    worker.api.state = TaskState.FAILED
    worker.api.outputs = b"1\nnull\n3\n"
    failed = (FailedCall(index=1, error_kind="USER_ERROR", message="boom"),)
    worker.api.result = {"failure": FAILURE, "failed_calls": failed}
    result = submit(worker, "--collect-all", *CALLS, "--output", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert (tmp_path / "out.jsonl").read_bytes() == b"1\nnull\n3\n"
    assert "#1  USER_ERROR: boom" in result.stderr


def test_no_wait_returns_the_id_at_once(worker):
    worker.api.ends = "never"
    result = submit(worker, "--no-wait", "--task-id", "t-1", *CALLS)
    assert (result.exit_code, result.stdout) == (0, "t-1\n")
    assert f"blockx watch --to {worker.address} t-1" in result.stderr
    as_json = submit(worker, "--no-wait", "--json", "--task-id", "t-1", *CALLS)
    assert json.loads(as_json.stdout)["state"] == "RUNNING"


def test_interrupting_cancels_the_task_and_waits_for_its_end(worker):
    worker.api.ends = "never"
    worker.api.when_watched = lambda: os.kill(os.getpid(), signal.SIGINT)
    result = submit(worker, "--json", *CALLS)
    assert result.exit_code == 1
    assert worker.api.cancel_reasons == ["interrupted at the command line"]
    assert "cancelling task" in result.stderr
    assert json.loads(result.stdout)["state"] == "CANCELLED"


# --- submit table -----------------------------------------------------------------------------------------------

TABLE = ("table", "--function", "transfers.transfer", "--tables", "logs,blocks")


def test_a_table_task_names_blocks_tables_target_and_table(worker):
    worker.api.result = {"plugin_results": b'{"rows":3}'}
    result = submit(
        worker, "--json", *TABLE, "--block", "5..9", "--write", "main", "--table", "t", "--mode", "append"
    )
    assert result.exit_code == 0
    request = worker.api.request
    assert request.function_call_config.type == "BlockTableCallConfig"
    assert json.loads(request.function_call_config.config) == {
        "functionId": "transfers.transfer",
        "block": {"from": 5, "to": 9},
        "triggerSources": ["logs", "blocks"],
    }
    assert request.result_handler is not None
    assert json.loads(request.result_handler.config) == {"target": "main", "table": "t", "mode": "append"}
    assert json.loads(result.stdout)["writer"] == {"rows": 3}


def test_a_relative_sqlite_file_means_the_current_directory(worker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    submit(worker, *TABLE, "--block", "5", "--write", "sqlite:///out.db", "--table", "t")
    handler = worker.api.request.result_handler
    assert handler is not None
    assert json.loads(handler.config)["target"] == f"sqlite:///{tmp_path}/out.db"


def test_a_table_task_may_return_values_instead(worker):
    worker.api.outputs = b"{}\n"
    result = submit(worker, *TABLE, "--block", "5", "--output", "-")
    assert result.stdout == "{}\n"
    assert worker.api.request.result_handler is not None
    assert worker.api.request.result_handler.type == "ReturnValueResultHandler"


# --- bad usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calls", "--function", "m.f"), "--args-file or with --args"),
        (("calls", "--args", "[1]"), "Missing option '--function'"),
        ((*CALLS, "--args-file", "x"), "--args-file or with --args"),
        (("calls", "--function", "m.f", "--args", "5"), "--args, line 1: 5 is not a JSON array"),
        (("--timeout", "60", *CALLS), "did you mean 60s?"),
        (("--attempts", "0", *CALLS), "0 is not in the range"),
        (("--no-wait", *CALLS, "--output", "x"), "--no-wait returns before there are outputs"),
        ((*CALLS, "--output", "/nowhere/out"), "cannot write /nowhere/out"),
        ((*TABLE, "--block", "5"), "say where the results go"),
        ((*TABLE, "--block", "5", "--write", "x"), "--write and --table belong together"),
        ((*TABLE, "--block", "5", "--output", "x", "--mode", "append"), "--mode only goes with --write"),
        ((*TABLE, "--block", "9..5", "--output", "x"), "ends before it begins"),
        ((*TABLE, "--block", "x", "--output", "x"), "no block such as"),
        (
            (*TABLE, "--block", "5", "--output", "x", "--write", "y", "--table", "z"),
            "say where the results go",
        ),
    ],
)
def test_bad_usage_is_exit_code_2_and_sends_nothing(worker, arguments, message):
    result = submit(worker, *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert worker.api.tasks == {}


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:0", "http://x:1"])
def test_a_bad_address_is_exit_code_2(address):
    assert run("status", "--to", address).exit_code == 2


def test_a_missing_address_is_exit_code_2():
    result = run("submit", *CALLS)
    assert result.exit_code == 2
    assert "--to HOST:PORT" in result.stderr


# --- refused, unreachable ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("submit", *CALLS), ("result", "t"), ("watch", "t"), ("cancel", "t"), ("status",), ("status", "t")],
)
def test_a_refusal_is_exit_code_2_with_the_workers_sentence(worker, arguments):
    worker.api.refuse_with = WorkerError(ErrorCode.NO_SLOT, "all 8 slots are taken; try again later")
    command, *rest = arguments
    result = run(command, "--to", worker.address, *rest)
    assert result.exit_code == 2
    assert "all 8 slots are taken; try again later (NO_SLOT)" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [("submit", *CALLS), ("result", "t"), ("watch", "t"), ("cancel", "t"), ("status",)]
)
def test_no_worker_is_exit_code_3_with_the_address_and_a_hint(arguments):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        command, *rest = arguments
        result = run(command, "--to", address, *rest)
    assert result.exit_code == 3
    assert f"no worker reachable at {address}" in result.stderr
    assert "blockx run" in result.stderr


# --- watch, result, cancel, status ------------------------------------------------------------------------------


def test_watch_observes_until_all_have_ended(worker):
    observed: list[bool] = []
    worker.api.when_watched = lambda: observed.extend(observe for _ids, observe in worker.api.watchers)
    worker.call(worker.api.add, "t-1")
    worker.call(worker.api.add, "t-2")
    result = run("watch", "--to", worker.address, "--json", "t-1", "t-2")
    assert result.exit_code == 0
    assert [json.loads(line)["taskId"] for line in result.stdout.splitlines()] == ["t-1", "t-2"]
    assert observed == [True]


def test_watch_is_exit_code_1_when_a_task_failed_and_2_when_one_is_unknown(worker):
    worker.call(worker.api.add, "good")
    worker.call(lambda: worker.api.add("bad", end=False))
    worker.call(lambda: worker.api.end("bad", TaskState.FAILED, failure=FAILURE))
    assert run("watch", "--to", worker.address, "good", "bad").exit_code == 1
    unknown = run("watch", "--to", worker.address, "--json", "nope", "bad")
    assert unknown.exit_code == 2
    assert json.loads(unknown.stdout.splitlines()[0]) == {"taskId": "nope", "state": "NOT_FOUND"}


def test_watch_without_ids_follows_what_runs(worker):
    assert "no task is leased or running" in run("watch", "--to", worker.address).stderr
    worker.call(lambda: worker.api.add("t-1", end=False))
    worker.api.ends = "when watched"
    result = run("watch", "--to", worker.address)
    assert "task t-1 SUCCEEDED" in result.stderr


def test_leaving_a_watch_cancels_nothing(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    worker.api.when_watched = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert run("watch", "--to", worker.address, "t-1").exit_code == 130
    assert worker.api.cancel_reasons == []


def test_result_reads_outputs_of_a_task_submitted_before(worker, tmp_path):
    outputs = b"".join(b"%d\n" % number for number in range(300_000))
    worker.call(lambda: worker.api.add("t-1", outputs=outputs))
    result = run("result", "--to", worker.address, "t-1", "--json", "--output", str(tmp_path / "o.jsonl"))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["outputs"] == 300_000
    assert (tmp_path / "o.jsonl").read_bytes() == outputs


def test_the_result_of_an_unfinished_task_is_exit_code_2_and_says_how_to_wait(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    result = run("result", "--to", worker.address, "t-1")
    assert result.exit_code == 2
    assert "RUNNING" in result.stderr
    assert f"blockx watch --to {worker.address} t-1" in result.stderr


def test_the_result_of_an_unknown_task_is_exit_code_2(worker):
    result = run("result", "--to", worker.address, "nope")
    assert result.exit_code == 2
    assert "NOT_FOUND" in result.stderr


def test_cancel_says_the_new_state(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    result = run("cancel", "--to", worker.address, "t-1")
    assert result.exit_code == 0
    assert "task t-1: CANCELLED" in result.stderr
    assert worker.api.cancel_reasons == ["cancelled at the command line"]


def test_status_shows_the_worker(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    text = run("status", "--to", worker.address).stdout
    for part in (
        "worker 127.0.0.1:7420",
        "1 running, 0 leased, 7 free of 8",
        "exec-0  RUNNING  pid 17",
        "task t-1: RUNNING",
    ):
        assert part in text


def test_status_as_json_is_camel_case(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    status = json.loads(run("status", "--to", worker.address, "--json").stdout)
    assert status["taskSlots"] == 8
    assert status["executors"][0]["executorId"] == "exec-0"
    assert status["admission"] == {"builder": {"inUse": 1, "waiting": 2, "limit": 4}}
    assert status["tasks"][0]["taskId"] == "t-1"
    assert status["dropped"] == {"TASK_ENDED": 6}


def test_status_of_one_task(worker):
    worker.call(lambda: worker.api.add("t-1", end=False))
    assert run("status", "--to", worker.address, "t-1").stdout == "task t-1: RUNNING, phase CALLS\n"
