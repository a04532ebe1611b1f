"""What people and programs are told of a task."""

from __future__ import annotations

import json

import attrs
import pytest

from blockx_worker.cli.show import describe_result, describe_snapshot, result_json, snapshot_json
from blockx_worker.cli.words import NEXT_STEPS, binary_size, counted, milliseconds
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import (
    FailedCall,
    TaskFailure,
    TaskPhase,
    TaskResult,
    TaskSnapshot,
    TaskState,
    TaskStatistic,
)

SUCCEEDED = TaskResult(
    task_id="t-1",
    state=TaskState.SUCCEEDED,
    statistic=TaskStatistic(calls_total=1000, calls_succeeded=1000, call_ms=1200, retries=3),
    plugin_results=b'{"table":"transfers","rows":7}',
    output_count=1000,
)

FAILED = TaskResult(
    task_id="t-2",
    state=TaskState.FAILED,
    failure=TaskFailure(
        code=TaskFailureCode.CALLS_FAILED,
        message="call 17 failed: KeyError: 'topics'",
        call_id="t-2/17",
        function_id="transfers.transfer",
        args_preview='[{"block_number":3}]',
        error_kind="USER_ERROR",
        stack='File "transfers.py", line 12, in transfer\n    log["topics"]\n',
        locals={"log": "{'block_number': 3}", "long": "x" * 1000},
    ),
    failed_calls=tuple(
        FailedCall(index=i, error_kind="USER_ERROR", message=f"m{i}", attempts=2) for i in range(8)
    ),
    failed_calls_omitted=92,
    statistic=TaskStatistic(calls_total=200, calls_succeeded=100, calls_failed=100),
)


def test_success_is_one_summary_and_what_was_written():
    assert describe_result(SUCCEEDED) == (
        'task t-1 SUCCEEDED: 1,000 calls in 1.2 s, 3 retries\n  written: {"table":"transfers","rows":7}'
    )


def test_what_the_block_writer_reports_is_told_in_words():
    report = b'{"table":"t","target":"main","mode":"append","rowsWritten":1,"database":"/data/out.db"}'
    assert "written: 1 row into t of /data/out.db (append)" in describe_result(
        attrs.evolve(SUCCEEDED, plugin_results=report)
    )


def test_a_failure_tells_what_where_why_and_what_to_do():
    text = describe_result(FAILED)
    for part in (
        "task t-2 FAILED, CALLS_FAILED",
        "KeyError: 'topics'",
        'call: t-2/17 of transfers.transfer, arguments: [{"block_number":3}]',
        '    File "transfers.py", line 12, in transfer',
        "    log = {'block_number': 3}",
        "100 succeeded, 100 failed, 0 cancelled, of 200",
        "failed calls (100):",
        "#0  USER_ERROR after 2 attempts: m0",
        "… 95 more",
        "what to do: mend the function",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 250


def test_advice_on_the_kind_of_call_failure_wins_over_that_on_the_task():
    failure = TaskFailure(code=TaskFailureCode.CALLS_FAILED, message="m", error_kind="BUDGET_EXCEEDED")
    text = describe_result(TaskResult(task_id="t", state=TaskState.FAILED, failure=failure))
    assert "--budget" in text


@pytest.mark.parametrize("code", TaskFailureCode)
def test_there_is_advice_for_every_failure_code(code):
    assert NEXT_STEPS[code]
    failure = TaskFailure(code=code, message="m", error_kind="SOMETHING_NEW")
    assert "what to do" in describe_result(TaskResult(task_id="t", state=TaskState.FAILED, failure=failure))


def test_json_has_the_documented_keys_in_camel_case():
    line = json.loads(result_json(FAILED))
    assert list(line) == ["taskId", "state", "failure", "outputs", "statistic", "writer"]
    assert line["failure"]["callId"] == "t-2/17"
    assert line["failure"]["locals"]["log"] == "{'block_number': 3}"
    assert line["statistic"]["callsTotal"] == 200
    assert line["writer"] is None
    assert json.loads(result_json(SUCCEEDED))["writer"] == {"table": "transfers", "rows": 7}
    assert json.loads(result_json(SUCCEEDED))["failure"] is None
    assert json.loads(result_json(SUCCEEDED))["outputs"] == 1000


def test_json_is_one_line():
    assert b"\n" not in result_json(FAILED)


def test_an_unfinished_task_is_told_by_state_and_phase():
    running = TaskSnapshot(task_id="t", slot_id="s", state=TaskState.RUNNING, phase=TaskPhase.CALLS)
    leased = TaskSnapshot(task_id="t", slot_id="s-1", state=TaskState.ALLOCATED, lease_remaining_ms=1500)
    assert describe_snapshot(running) == "task t: RUNNING, phase CALLS"
    assert describe_snapshot(leased) == "task t: ALLOCATED, slot s-1 leased for another 1.5 s"
    assert json.loads(snapshot_json(running))["phase"] == "CALLS"


def test_numbers_are_made_for_people():
    assert [counted(n, "call") for n in (0, 1, 2000)] == ["0 calls", "1 call", "2,000 calls"]
    assert [milliseconds(ms) for ms in (0, 740, 12_345, 320_000, 7_260_000)] == [
        "0 ms",
        "740 ms",
        "12.3 s",
        "5 min 20 s",
        "2 h 1 min",
    ]
    assert [binary_size(n) for n in (5, 2048, 3 << 20, 5 << 40)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]
