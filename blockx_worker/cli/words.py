"""Words for people: numbers with their nouns, times, sizes, and what to do about each way to fail."""

from __future__ import annotations

from blockx_worker.model.errors import CallErrorKind, TaskFailureCode

__all__ = ["NEXT_STEPS", "binary_size", "counted", "milliseconds"]

AGAIN = "submit again with a new task id"

NEXT_STEPS: dict[TaskFailureCode | CallErrorKind, str] = {
    TaskFailureCode.ACTIVATION_FAILED: f"look into the worker's log, then {AGAIN}",
    TaskFailureCode.IO_SCOPE_FAILED: f"look into the worker's log, then {AGAIN}",
    TaskFailureCode.SLOT_LOST: "the lease of the slot had run out; submit again, at once or without a slot",
    TaskFailureCode.BUILDER_NOT_FOUND: "the worker's profile does not offer this kind of task; use one that does",
    TaskFailureCode.BUILDER_FAILED: f"mend what the message names, then {AGAIN}",
    TaskFailureCode.FUNCTION_NOT_FOUND: "check the id with `blockx functions list DIR`, DIR being the worker's --functions",
    TaskFailureCode.FUNCTION_NOT_AUDITED: "have this version of the function audited, or submit an audited one",
    TaskFailureCode.CALLS_FAILED: f"mend the function or its arguments, then {AGAIN}",
    TaskFailureCode.OUTPUT_BYTES_EXCEEDED: "return less, write rows with `table --write`, or raise "
    "dispatcher.max_collected_output_bytes of the worker",
    TaskFailureCode.PLUGIN_NOT_FOUND: "the worker's profile does not offer this result handler; use one that does",
    TaskFailureCode.PLUGIN_FAILED: f"mend what the message names, then {AGAIN}",
    TaskFailureCode.TASK_TIMED_OUT: "give it more time with --timeout, or fewer calls",
    TaskFailureCode.WATCH_DISCONNECTED: "its submitter was gone for too long; submit with --no-wait to let a task run "
    "without one",
    TaskFailureCode.CANCELLED_BY_CLIENT: f"somebody cancelled it; {AGAIN} if that was not meant",
    TaskFailureCode.WORKER_SHUTDOWN: "the worker was stopped; submit again there or to another worker",
    CallErrorKind.BUDGET_EXCEEDED: "do less in one call, or give calls more time with --budget",
    CallErrorKind.OUTPUT_NOT_JSON: "return only what JSON can hold: dicts with text keys, lists, texts, numbers, None",
    CallErrorKind.OUTPUT_TOO_LARGE: "return less from one call; split the work into more calls",
    CallErrorKind.IMPORT_ERROR: "install what is missing into the interpreter of the executors (executor_python), or mend "
    "the import",
    CallErrorKind.SYNTAX_ERROR: "mend the file; `blockx functions check DIR` finds such errors before a task does",
    CallErrorKind.FUNCTION_NOT_FOUND: "check the id with `blockx functions list DIR`, DIR being the worker's --functions",
    CallErrorKind.EXECUTOR_WEDGED: "native code in this call never returned, so its process was killed; give that code a "
    "time-out of its own",
    CallErrorKind.EXECUTOR_LOST: "the executor process died again and again: look into the worker's log for a crash or "
    "too little memory",
}


def counted(number: int, noun: str) -> str:
    """``1 call``, ``1,000 calls``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def milliseconds(ms: int) -> str:
    """About so long, for people: ``740 ms``, ``12.3 s``, ``5 min 20 s``."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, rest = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def binary_size(size: int) -> str:
    """About so large, for people: ``12.0 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
