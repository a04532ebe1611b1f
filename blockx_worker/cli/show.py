"""What people and programs are told of a task: one summary, a failure with its cause, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs
import msgspec

from blockx_worker.cli.words import NEXT_STEPS, counted, milliseconds
from blockx_worker.model.errors import CallErrorKind, TaskFailureCode
from blockx_worker.model.tasks import (
    FailedCall,
    TaskFailure,
    TaskResult,
    TaskSnapshot,
    TaskState,
    TaskStatistic,
)

__all__ = ["camel", "describe_result", "describe_snapshot", "not_found_json", "result_json", "snapshot_json"]

SHOWN_FAILED_CALLS = 5
SHOWN_LOCALS = 12
SHOWN_VALUE_CHARS = 200

_UNDERSCORE = re.compile(r"_([a-z])")


class _Written(msgspec.Struct):
    rowsWritten: int  # noqa: N815 - the name on the wire
    table: str
    database: str
    mode: str


def describe_result(result: TaskResult) -> str:
    """Some lines for people: what happened, where, why, and what to do."""
    return "\n".join(_describe_result(result))


def describe_snapshot(snapshot: TaskSnapshot) -> str:
    """One line for people about a task that may not have ended."""
    if snapshot.result is not None:
        return describe_result(snapshot.result)
    if snapshot.state is TaskState.ALLOCATED:
        lease = milliseconds(snapshot.lease_remaining_ms)
        return f"task {snapshot.task_id}: ALLOCATED, slot {snapshot.slot_id} leased for another {lease}"
    return f"task {snapshot.task_id}: {snapshot.state}, phase {snapshot.phase}"


def result_json(result: TaskResult) -> bytes:
    """The one line that ``--json`` prints last."""
    return msgspec.json.encode(
        {
            "taskId": result.task_id,
            "state": result.state,
            "failure": None if result.failure is None else camel(attrs.asdict(result.failure)),
            "outputs": result.output_count,
            "statistic": camel(attrs.asdict(result.statistic)),
            "writer": msgspec.Raw(result.plugin_results or b"null"),
        }
    )


def snapshot_json(snapshot: TaskSnapshot) -> bytes:
    """The line for a task that has not ended; the keys of `result_json` and its phase."""
    if snapshot.result is not None:
        return result_json(snapshot.result)
    return msgspec.json.encode(
        {
            "taskId": snapshot.task_id,
            "state": snapshot.state,
            "phase": snapshot.phase,
            "failure": None,
            "outputs": 0,
            "statistic": None,
            "writer": None,
        }
    )


def not_found_json(task_id: str) -> bytes:
    """The line for a task that the worker does not know."""
    return msgspec.json.encode({"taskId": task_id, "state": "NOT_FOUND"})


def camel(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its own keys in camelCase; keys further down (names of locals) are data and stay."""
    return {_UNDERSCORE.sub(lambda match: match[1].upper(), key): value for key, value in record.items()}


def _describe_result(result: TaskResult) -> Iterator[str]:
    statistic = result.statistic
    calls = counted(statistic.calls_total, "call")
    if result.state is TaskState.SUCCEEDED:
        took = milliseconds(statistic.queue_ms + statistic.build_ms + statistic.call_ms + statistic.write_ms)
        yield f"task {result.task_id} SUCCEEDED: {calls} in {took}{_extras(statistic)}"
        if result.plugin_results not in (b"", b"{}"):
            yield f"  written: {_written(result.plugin_results)}"
        return
    code = f", {result.failure.code}" if result.failure else ""
    yield f"task {result.task_id} {result.state}{code}"
    if result.failure is not None:
        yield from _describe_failure(result.failure)
    if statistic.calls_total:
        yield (
            f"  calls: {statistic.calls_succeeded} succeeded, {statistic.calls_failed} failed, "
            f"{statistic.calls_cancelled} cancelled, of {statistic.calls_total}"
        )
    yield from _describe_failed_calls(result)
    if result.plugin_results not in (b"", b"{}"):
        yield f"  already written: {_written(result.plugin_results)}"
    if result.failure is not None:
        yield f"  what to do: {_next_step(result.failure)}"


def _describe_failure(failure: TaskFailure) -> Iterator[str]:
    yield from _indented(failure.message, "  ")
    if failure.call_id:
        yield f"  call: {failure.call_id} of {failure.function_id}, arguments: {failure.args_preview}"
    if failure.stack:
        yield "  where:"
        yield from _indented(failure.stack, "    ")
    if failure.locals:
        yield "  locals:"
        for name, value in list(failure.locals.items())[:SHOWN_LOCALS]:
            yield f"    {name} = {_cut(value)}"
        if len(failure.locals) > SHOWN_LOCALS:
            yield f"    … {len(failure.locals) - SHOWN_LOCALS} more"


def _describe_failed_calls(result: TaskResult) -> Iterator[str]:
    total = len(result.failed_calls) + result.failed_calls_omitted
    if not total or (total == 1 and result.failure is not None and result.failure.call_id):
        return  # the one failure was just told
    yield f"  failed calls ({total}):"
    yield from map(_failed_call, result.failed_calls[:SHOWN_FAILED_CALLS])
    if total > SHOWN_FAILED_CALLS:
        yield f"    … {total - SHOWN_FAILED_CALLS} more"


def _failed_call(call: FailedCall) -> str:
    attempts = f" after {call.attempts} attempts" if call.attempts > 1 else ""
    args = f"  arguments: {call.args_preview}" if call.args_preview else ""
    message = _cut(call.message.partition("\n")[0])
    return f"    #{call.index}  {call.error_kind}{attempts}: {message}{args}"


def _next_step(failure: TaskFailure) -> str:
    if failure.error_kind in CallErrorKind.__members__:
        by_call = NEXT_STEPS.get(CallErrorKind(failure.error_kind))
        if by_call is not None:
            return by_call
    return NEXT_STEPS[TaskFailureCode(failure.code)]


def _extras(statistic: TaskStatistic) -> str:
    found = [
        (statistic.retries, "retries"),
        (statistic.cache_hits, "from the cache"),
        (statistic.subcalls, "subcalls"),
    ]
    return "".join(f", {count} {what}" for count, what in found if count)


def _written(plugin_results: bytes) -> str:
    """What a writer reports; only the words of `BlockWriteHandler` are known here, others are shown as they come."""
    try:
        written = msgspec.json.decode(plugin_results, type=_Written)
    except msgspec.DecodeError:
        return plugin_results.decode(errors="replace")
    return (
        f"{counted(written.rowsWritten, 'row')} into {written.table} of {written.database} ({written.mode})"
    )


def _indented(text: str, indent: str) -> Iterator[str]:
    return (f"{indent}{line}" for line in text.rstrip().splitlines())


def _cut(value: str) -> str:
    return value if len(value) <= SHOWN_VALUE_CHARS else value[:SHOWN_VALUE_CHARS] + "…"
