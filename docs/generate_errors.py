"""Write `docs/reference/errors.md` from the codes and rules that the worker uses.

`python docs/generate_errors.py` writes the page; with `--check` it writes nothing and fails when the page is stale. A
code without a sentence here, or a sentence without a code, is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "reference" / "errors.md"
sys.path.insert(0, str(PAGE.parents[2]))

from blockx_worker.model.errors import (  # noqa: E402 - the repository's own tree comes first on the path
    CALL_ERROR_RULES,
    IO_ERROR_RETRYABLE,
    CallErrorKind,
    ErrorCode,
    IoErrorKind,
    TaskFailureCode,
)
from blockx_worker.rpc.errors import STATUS_OF_CODE  # noqa: E402

REFUSALS = {
    ErrorCode.INVALID_ARGUMENT: "A field is missing or wrong; the message names it. Mend the request.",
    ErrorCode.TASK_ID_CONFLICT: "The task id belongs to another request. Use a new id.",
    ErrorCode.NO_SLOT: "All slots are taken. Try another worker, or this one later, with the same task id.",
    ErrorCode.UNAVAILABLE: "The worker stops. Use another worker with the same task id.",
    ErrorCode.INVALID_SLOT: "The slot is unknown, another task's or long gone. Submit without a slot.",
    ErrorCode.NOT_FOUND: "The task was never here or its result is no longer kept.",
    ErrorCode.SLOT_UNCERTAIN: "The slot's lease has just ended. Submit again with the same task id.",
    ErrorCode.UNAUTHENTICATED: "No valid credentials came with the request.",
    ErrorCode.PERMISSION_DENIED: "The credentials do not allow this.",
    ErrorCode.REQUEST_TOO_LARGE: "The message is above `rpc.max_request_bytes`. Split the task.",
}

FAILURES = {
    TaskFailureCode.ACTIVATION_FAILED: "The functions could not be read when the task began.",
    TaskFailureCode.IO_SCOPE_FAILED: "The task's access to back ends could not be opened.",
    TaskFailureCode.SLOT_LOST: "The lease of the slot ended before the task was activated.",
    TaskFailureCode.BUILDER_NOT_FOUND: "This worker's profile has no such call configuration.",
    TaskFailureCode.BUILDER_FAILED: "The call configuration is wrong, or its table cannot be read.",
    TaskFailureCode.FUNCTION_NOT_FOUND: "No function has that id; the message has near misses.",
    TaskFailureCode.FUNCTION_NOT_AUDITED: "The function's code is not on the allow list.",
    TaskFailureCode.CALLS_FAILED: "A call failed for good; the failure has its error kind, stack and locals.",
    TaskFailureCode.OUTPUT_BYTES_EXCEEDED: "The outputs grew above `dispatcher.max_collected_output_bytes`.",
    TaskFailureCode.PLUGIN_NOT_FOUND: "This worker's profile has no such result handler.",
    TaskFailureCode.PLUGIN_FAILED: "The writer failed; the message names what is already written.",
    TaskFailureCode.TASK_TIMED_OUT: "The task ran longer than its time-out.",
    TaskFailureCode.WATCH_DISCONNECTED: "The last owning watcher went away and none came back within the grace.",
    TaskFailureCode.CANCELLED_BY_CLIENT: "A client cancelled it.",
    TaskFailureCode.WORKER_SHUTDOWN: "The worker stopped before the task was done. Submit it elsewhere.",
}

KINDS = {
    CallErrorKind.USER_ERROR: "The function raised; retried only for `Retryable`.",
    CallErrorKind.BUDGET_EXCEEDED: "The call used more than its budget and was stopped.",
    CallErrorKind.CANCELLED: "The call was stopped because its task ended.",
    CallErrorKind.OUTPUT_NOT_JSON: "The return value holds something that JSON cannot; the message has the path.",
    CallErrorKind.OUTPUT_TOO_LARGE: "The return value does not fit one message.",
    CallErrorKind.ARGS_INVALID: "The arguments are not a JSON array that Python can read exactly.",
    CallErrorKind.ARGS_TOO_LARGE: "The arguments do not fit one message.",
    CallErrorKind.IMPORT_ERROR: "The module raised while it was imported, or took too long.",
    CallErrorKind.SYNTAX_ERROR: "The module does not compile.",
    CallErrorKind.FUNCTION_NOT_FOUND: "The module has no such function.",
    CallErrorKind.FUNCTION_CODE_UNAVAILABLE: "The worker could not give the code any more.",
    CallErrorKind.SUBCALL_DEPTH: "Calls call one another too deeply.",
    CallErrorKind.SUBCALL_CYCLE: "A call waits for itself.",
    CallErrorKind.EXECUTOR_WEDGED: "The call did not come back from native code; its process was killed.",
    CallErrorKind.EXECUTOR_LOST: "The process died with the call aboard.",
    CallErrorKind.DISPATCH_REFUSED: "The call could not be sent; it is tried again by itself.",
}

IO_KINDS = {
    IoErrorKind.IO_BACKEND_NOT_FOUND: "This worker has no back end of that name; the message names those it has.",
    IoErrorKind.IO_BAD_REQUEST: "The back end does not know the operation, or a field of the request is wrong.",
    IoErrorKind.IO_BUSY: "Too many requests of the task wait for the back end (`io.max_queue`, `io.max_queue_bytes`).",
    IoErrorKind.IO_TIMEOUT: "No answer within the back end's time-out or what was left of the call's budget.",
    IoErrorKind.IO_ANSWER_TOO_LARGE: "The answer is above `io.max_answer_bytes`. Ask for less at a time.",
    IoErrorKind.IO_BACKEND_FAILED: "A defect of the back end; the worker's log has the traceback.",
    IoErrorKind.IO_CLOSED: "The task has ended, or the worker stops.",
    IoErrorKind.RPC_ERROR: "The JSON-RPC server answered with an error; retryable where it refused for its load.",
    IoErrorKind.RPC_UNAVAILABLE: "No endpoint answered: connection errors, 429 or 5xx to the last attempt; not "
    "retryable where every endpoint refused the request for good (401, 404, …).",
    IoErrorKind.RPC_BAD_RESPONSE: "An endpoint answered something that is no JSON-RPC answer to the request.",
    IoErrorKind.TABLE_NOT_FOUND: "The block store has no such table.",
    IoErrorKind.BLOCK_NOT_FOUND: "The block store does not know a block that was asked for.",
    IoErrorKind.STORE_ERROR: "The block store could not be read; the message says what and why.",
}


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([*_refusals(), *_failures(), *_kinds(), *_io_kinds()]) + "\n"


def _refusals() -> Iterator[str]:
    _complete(ErrorCode, REFUSALS)
    yield "# Errors"
    yield ""
    yield "Three different things: a request that is *refused* changes nothing; a *task* that was accepted can fail; an"
    yield "*attempt of a call* can fail, and be tried again. Generated from the worker's own tables."
    yield ""
    yield "## Refused requests"
    yield ""
    yield "The gRPC status message begins with the code."
    yield ""
    yield "| code | gRPC status | meaning, and what to do |"
    yield "| --- | --- | --- |"
    for code, sentence in REFUSALS.items():
        yield f"| {code} | {STATUS_OF_CODE[code].name} | {sentence} |"


def _failures() -> Iterator[str]:
    _complete(TaskFailureCode, FAILURES)
    yield ""
    yield "## Failed tasks"
    yield ""
    yield "`TaskResult.failure.code`; the message names the numbers and what to do."
    yield ""
    yield "| code | meaning |"
    yield "| --- | --- |"
    for code, sentence in FAILURES.items():
        yield f"| {code} | {sentence} |"


def _kinds() -> Iterator[str]:
    _complete(CallErrorKind, KINDS)
    yield ""
    yield "## Failed calls"
    yield ""
    yield "*Retried*: while attempts are left. *Charged*: the attempt counts. *Shared*: calls of the task with the same"
    yield "function and arguments fail with it; where not, the next of them runs."
    yield ""
    yield "| kind | retried | charged | shared | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for kind, sentence in KINDS.items():
        rule = CALL_ERROR_RULES[kind]
        retried = "if it says so" if rule.retryable is None else _word(rule.retryable)
        yield f"| {kind} | {retried} | {_word(rule.charged)} | {_word(rule.shared)} | {sentence} |"


def _io_kinds() -> Iterator[str]:
    _complete(IoErrorKind, IO_KINDS)
    yield ""
    yield "## Failed requests to back ends"
    yield ""
    yield "User code sees them as exceptions with `kind` and `retryable`; a function that does not handle one fails with"
    yield "it. Back ends of extensions may add kinds of their own."
    yield ""
    yield "| kind | retryable | meaning |"
    yield "| --- | --- | --- |"
    for kind, sentence in IO_KINDS.items():
        retryable = IO_ERROR_RETRYABLE[kind]
        yield f"| {kind} | {'as it says' if retryable is None else _word(retryable)} | {sentence} |"


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _complete(codes: type[StrEnum], sentences: Mapping[StrEnum, str]) -> None:
    if set(codes) != set(sentences):
        raise SystemExit(f"{codes.__name__}: codes and sentences differ: {set(codes) ^ set(sentences)}")


def main() -> int:
    """Write or check the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is stale, write nothing")
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text() != page():
            print(f"{PAGE} is stale: run `just docs`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
