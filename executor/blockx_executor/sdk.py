"""What user functions may ask of the executor that runs them.

    from blockx_executor import sdk

    def enrich(log):
        token, receipt = sdk.gather((token_of, log["address"]), ("chain.receipts.receipt", log["transaction_hash"]))
        price = sdk.call(price_at, token["symbol"], log["block_number"])
        head = sdk.rpc("eth_blockNumber", [])
        rows = sdk.table("transactions", block=log["block_number"])
        ...

While a call waits in one of these, other calls run. All of it works in the call's own code only: not in threads, not in
an asyncio loop, not in forked processes, not while a module is imported.

Values go out by the same rules as results (`wire.json_rules`) and come back exactly. What is encoded is the user's, so it
is encoded and decoded where the call may be interrupted; between the two nothing can interrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from blockx_executor.calls import BudgetExceeded, CallCancelled
from blockx_executor.waits import Answer, IoRequest, Request, SubcallRequest
from blockx_executor.wire.json_reading import decode_rows, decode_value
from blockx_executor.wire.json_rules import encode_request

__all__ = [
    "MAX_GATHER_BYTES",
    "MAX_GATHER_CALLS",
    "NO_CACHE_ATTRIBUTE",
    "BudgetExceeded",
    "CallCancelled",
    "CurrentCall",
    "IoFailed",
    "RequestFailed",
    "Retryable",
    "Runtime",
    "SubcallFailed",
    "attach",
    "call",
    "current",
    "gather",
    "io",
    "no_cache",
    "rpc",
    "sleep",
    "table",
]

NO_CACHE_ATTRIBUTE: Final = "__blockx_no_cache__"
MAX_GATHER_CALLS: Final = 10_000
"""How many calls one `gather` may make."""
MAX_GATHER_BYTES: Final = 64 * 1024 * 1024
"""How many bytes of arguments one `gather` may send."""

_MAX_NAME_CHARS: Final = 1_000
_ANSWER_INVALID: Final = "ANSWER_INVALID"

_F = TypeVar("_F", bound=Callable[..., Any])


class Retryable(Exception):
    """Raise it, or a subclass, to say that another attempt of the same call may succeed."""


class RequestFailed(Exception):
    """Something that the call asked for failed. Let it pass, and the call fails too, ``retryable`` as it says.

    ``kind`` is the stable name of the error, ``message`` a sentence for people.
    """

    def __init__(self, kind: str, message: str, retryable: bool = False) -> None:
        super().__init__(kind, message, retryable)
        self.kind = kind
        self.message = message
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class SubcallFailed(RequestFailed):
    """A function called with `call` or `gather` failed, or could not be called."""


class IoFailed(RequestFailed):
    """A back end asked with `io`, `rpc` or `table` could not answer."""


class CurrentCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call that asks.

    ``attempt`` counts from 1. ``remaining_budget_ms`` is what is left at the moment of asking, None without a budget.
    ``deadline_unix_ms`` is the end of the whole task, None when it has none.
    """

    task_id: str
    call_id: str
    function_id: str
    attempt: int
    remaining_budget_ms: int | None
    deadline_unix_ms: int | None


class Runtime(Protocol):
    """What the SDK needs of the executor."""

    def current(self) -> CurrentCall:
        """Describe the call that asks; RuntimeError when no call does."""

    def sleep(self, seconds: float) -> None:
        """Let the call that asks rest; RuntimeError when no call does."""

    def function_id(self, name: str, function: object) -> str:
        """The id of a function of the code that asks, on behalf of ``sdk.name``; RuntimeError when no call asks."""

    def wait(self, name: str, requests: Sequence[Request]) -> list[Answer]:
        """Let the call wait for the answers to all ``requests``; RuntimeError when no call asks."""


class _NoRuntime:
    """Outside an executor."""

    def current(self) -> CurrentCall:
        raise _not_in_an_executor("current")

    def sleep(self, seconds: float) -> None:  # noqa: ARG002 - the protocol's signature
        raise _not_in_an_executor("sleep")

    def function_id(self, name: str, function: object) -> str:  # noqa: ARG002 - the protocol's signature
        raise _not_in_an_executor(name)

    def wait(self, name: str, requests: Sequence[Request]) -> list[Answer]:  # noqa: ARG002 - the protocol's signature
        raise _not_in_an_executor(name)


_runtime: Runtime = _NoRuntime()


def attach(runtime: Runtime) -> None:
    """Connect the SDK with the executor of this process; done once, at its start."""
    global _runtime  # noqa: PLW0603 - functions of the SDK are called without an object to hold it
    _runtime = runtime


def current() -> CurrentCall:
    """The call that runs this code."""
    return _runtime.current()


def sleep(seconds: float) -> None:
    """Rest for ``seconds`` while other calls run; it counts as budget, and a cancel or the budget's end wakes it."""
    _runtime.sleep(seconds)


def call(function: str | Callable[..., Any], /, *args: Any) -> Any:
    """Call another function of the task's code, given as it is or by its id (``package.module.name``); its result.

    It runs in this executor, within what is left of this call's budget. SubcallFailed when it fails; ValueError,
    naming the place, when an argument cannot be written as JSON.
    """
    name = "call"
    function_id = _function_id(name, function)
    request = _subcall(function_id, args, f"sdk.call({function_id}): the arguments")
    [answer] = _runtime.wait(name, [request])
    return _result(function_id, answer)


def gather(*calls: tuple[Any, ...], return_exceptions: bool = False) -> list[Any]:
    """Make several calls at once, each given as ``(function, *args)``; their results in the order of the calls.

    All of them are waited for. If any failed, the failure of the first one in that order is raised; with
    ``return_exceptions`` failures stand among the results instead.
    """
    ids = [_gathered_id(number, each) for number, each in enumerate(calls)]
    requests = _gathered_requests(ids, calls)
    answers = _runtime.wait("gather", requests)
    results = [_outcome(function_id, answer) for function_id, answer in zip(ids, answers, strict=True)]
    failures = (result for result in results if isinstance(result, SubcallFailed))
    if not return_exceptions and (first := next(failures, None)) is not None:
        raise first
    return results


def io(backend: str, op: str, /, **request: Any) -> Any:
    """Ask ``backend`` of the worker to do ``op``; its answer, as ``bytes`` where it is raw. IoFailed when it cannot.

    Equal requests of a task may share an answer; the order of the keywords does not matter.
    """
    answer = _ask("io", backend, op, request)
    return answer.sidecar if answer.sidecar is not None else _decoded(f"{backend}.{op}", answer.result)


def rpc(method: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
    """Call a method of the JSON-RPC nodes that the worker knows; its ``result``. IoFailed for an error of the node."""
    answer = _ask("rpc", "rpc", "call", {"method": method, "params": params})
    return _decoded("rpc.call", answer.result if answer.sidecar is None else answer.sidecar)


def table(name: str, *, block: int) -> list[Any]:
    """The rows of table ``name`` at ``block``, in their order, each a dict. IoFailed when they cannot be read."""
    if type(block) is not int:
        raise TypeError(f"sdk.table({name!r}, block={block!r}): block must be an int.")
    answer = _ask("table", "blockdb", "rows", {"table": name, "block": block})
    raw = bytes(answer.result) if answer.sidecar is None else answer.sidecar
    try:
        rows = decode_rows(raw)
    except ValueError as error:
        raise IoFailed(
            _ANSWER_INVALID, f"The rows of {name} at block {block} cannot be read: {error}."
        ) from None
    return rows


def no_cache(function: _F) -> _F:
    """Mark ``function`` as one whose results must not be shared between calls with equal arguments."""
    setattr(function, NO_CACHE_ATTRIBUTE, True)
    return function


# --- requests ---------------------------------------------------------------------------------------------------


def _function_id(name: str, function: object) -> str:
    function_id = _runtime.function_id(name, function)
    _check_name(f"sdk.{name}: the function id", function_id)
    return function_id


def _gathered_id(number: int, each: Any) -> str:
    if not isinstance(each, (tuple, list)) or not each:
        raise TypeError(
            f"sdk.gather: call {number} must be a tuple (function, *args), not {type(each).__name__}."
        )
    return _function_id("gather", each[0])


def _gathered_requests(ids: Sequence[str], calls: Sequence[Sequence[Any]]) -> list[SubcallRequest]:
    if len(calls) > MAX_GATHER_CALLS:
        raise ValueError(
            f"sdk.gather: {len(calls):,} calls are more than {MAX_GATHER_CALLS:,}; gather in parts."
        )
    requests: list[SubcallRequest] = []
    left = MAX_GATHER_BYTES
    for number, (function_id, each) in enumerate(zip(ids, calls, strict=True)):
        request = _subcall(
            function_id, each[1:], f"sdk.gather: the arguments of call {number} ({function_id})"
        )
        requests.append(request)
        left -= len(request.args)
        if left < 0:
            raise ValueError(
                f"sdk.gather: the arguments have more than {MAX_GATHER_BYTES:,} bytes as JSON; gather in parts."
            )
    return requests


def _subcall(function_id: str, args: Sequence[Any], subject: str) -> SubcallRequest:
    return SubcallRequest(function_id, encode_request(list(args), subject))


def _ask(name: str, backend: str, op: str, request: dict[str, Any]) -> Answer:
    _check_name(f"sdk.{name}: the back end", backend)
    _check_name(f"sdk.{name}: the operation", op)
    body = encode_request(dict(sorted(request.items())), f"sdk.{name}: the request")
    [answer] = _runtime.wait(name, [IoRequest(backend, op, body)])
    if answer.error is not None:
        raise IoFailed(answer.error.kind, answer.error.message, answer.error.retryable)
    return answer


def _check_name(subject: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{subject} must be a str, not {type(text).__name__}.")
    if not 0 < len(text) <= _MAX_NAME_CHARS or not text.isprintable():
        raise ValueError(f"{subject} must have 1 to {_MAX_NAME_CHARS} printable characters: {text[:40]!a}.")


# --- answers ----------------------------------------------------------------------------------------------------


def _outcome(function_id: str, answer: Answer) -> Any:
    """The result or the failure."""
    try:
        return _result(function_id, answer)
    except SubcallFailed as failure:
        return failure.with_traceback(None)


def _result(function_id: str, answer: Answer) -> Any:
    if answer.error is not None:
        raise SubcallFailed(answer.error.kind, answer.error.message, answer.error.retryable)
    try:
        return decode_value(answer.result if answer.sidecar is None else answer.sidecar)
    except ValueError as error:
        raise SubcallFailed(
            _ANSWER_INVALID, f"The result of {function_id} cannot be read: {error}."
        ) from None


def _decoded(what: str, raw: bytes | msgspec.Raw) -> Any:
    try:
        return decode_value(raw)
    except ValueError as error:
        raise IoFailed(_ANSWER_INVALID, f"The answer of {what} cannot be read: {error}.") from None


def _not_in_an_executor(name: str) -> RuntimeError:
    return RuntimeError(f"sdk.{name}() works only inside a call that a BlockX executor runs.")
