"""Calls that wait for the worker: what they ask, how they go on, what it costs, and how they are stopped."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import CallCompleted, CallError, CallFailedPayload, CallWaiting
from tests.executor.driver import ExecutorDriver, module, running_executor

WAITING = module("""
    import asyncio
    import threading
    import time

    from blockx_executor import sdk

    def inc(i): return i + 1
    def ask(backend="store", op="get", **request): return sdk.io(backend, op, **request)
    def ask_sorted(): return sdk.io("store", "get", b=1, a=[2, b"\\x01"])
    def ask_raw(): return sdk.io("store", "get").decode()
    def ask_twice(): return [sdk.io("store", "get", n=1), sdk.io("store", "get", n=2)]
    def ask_for_ever():
        while True: sdk.io("store", "get")
    def balance(address): return sdk.rpc("eth_getBalance", [address, "latest"])
    def rows(name, block): return sdk.table(name, block=block)
    def caught():
        try:
            sdk.rpc("eth_call", {"to": 1})
        except sdk.IoFailed as error:
            return [error.kind, error.message, error.retryable, str(error), isinstance(error, sdk.RequestFailed)]

    def one(x): return sdk.call(inc, x)
    def by_id(): return sdk.call("other.module.function", {"a": [1]}, 2)
    def many(n): return sdk.gather(*((inc, i) for i in range(n)))
    def lenient(n):
        results = sdk.gather(*((inc, i) for i in range(n)), return_exceptions=True)
        return [r if not isinstance(r, Exception) else [type(r).__name__, r.kind, r.retryable] for r in results]
    def swallowing():
        for _ in range(50):
            try:
                sdk.gather((inc, 1), (inc, 2))
            except BaseException:
                pass
        return "nothing happened"
    def swallow_once():
        try:
            sdk.call(inc, 1)
        except BaseException as error:
            return type(error).__name__
    def clean_up():
        try:
            sdk.call(inc, 1)
        finally:
            print("cleaning")
            sdk.call(inc, 2)

    class Maths:
        @staticmethod
        def double(x): return 2 * x
    def odd(what):
        functions = {
            "lambda": lambda: 1, "nested": (lambda: lambda: 1)(), "foreign": threading.Thread, "int": 5,
            "method": Maths.double, "empty": "", "surrogate": "\\ud800", "long": "x" * 2000, "bound": "".join,
        }
        return sdk.call(functions[what])
    def bad_args(): return sdk.call(inc, 1, {"rows": [1, {2}]})
    def endless_args():
        class Endless(list):
            def __iter__(self):
                while True: yield 1
        sdk.call(inc, Endless([1]))
    def bad_gather(): return sdk.gather((inc, 1), (inc, float("nan")))
    def no_tuple(): return sdk.gather((inc, 1), inc)
    def too_many(): return sdk.gather(*[(inc, 1)] * 10_001)
    def too_large(): return sdk.gather(*[(inc, "x" * 1_000_000)] * 70)
    def one_too_large(): return sdk.call(inc, "x" * 17_000_000)
    def block_is_text(): return sdk.table("logs", block="latest")
    def nothing_to_gather(): return sdk.gather()

    def in_thread(): return in_a_thread(lambda: sdk.call(inc, 1))
    def in_a_thread(use):
        seen = []
        def run():
            try:
                use()
            except RuntimeError as error:
                seen.append(str(error))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return seen[0]
    def in_asyncio():
        async def use(): sdk.rpc("eth_blockNumber")
        asyncio.run(use())
""")


@pytest.fixture
def digest(executor: ExecutorDriver) -> str:
    return executor.define(WAITING)


def asked(waiting: CallWaiting) -> tuple[str | None, str | None, object]:
    payload = waiting.payload
    return payload.backend, payload.op, msgspec.json.decode(payload.request)


# --- IO ---------------------------------------------------------------------------------------------------------


def test_io_says_who_asks_for_what(executor: ExecutorDriver, digest: str) -> None:
    """Task, call, attempt, what is left of the budget, and the request with its keys sorted."""
    call = executor.execute(digest, "ask_sorted", task_id="t-9", budget_ms=5000)
    [waiting] = executor.wait()
    payload = waiting.payload
    assert (waiting.call_id, payload.task_id, payload.attempt_seq, payload.wait_kind) == (
        call,
        "t-9",
        1,
        "io",
    )
    assert (payload.backend, payload.op) == ("store", "get")
    assert bytes(payload.request) == b'{"a":[2,"0x01"],"b":1}'
    assert 4000 < payload.granted_budget_ms <= 5000
    assert (payload.function_id, bytes(payload.args)) == (None, b"")
    executor.resume(waiting, b'{"big":%d}' % 2**256)
    assert executor.value(call) == {"big": 2**256}


def test_raw_answers_are_bytes(executor: ExecutorDriver, digest: str) -> None:
    """Megabytes beside the frame."""
    call = executor.execute(digest, "ask_raw", budget_ms=0)
    [waiting] = executor.wait()
    assert waiting.payload.granted_budget_ms == 0
    executor.resume_raw(waiting, b"x" * 5_000_000)
    assert executor.value(call) == "x" * 5_000_000


def test_rpc_is_a_call_of_the_back_end_rpc(executor: ExecutorDriver, digest: str) -> None:
    """Method and parameters in, the result out."""
    call = executor.execute(digest, "balance", "0xab")
    [waiting] = executor.wait()
    assert asked(waiting) == ("rpc", "call", {"method": "eth_getBalance", "params": ["0xab", "latest"]})
    executor.resume(waiting, b'"0x10"')
    assert executor.value(call) == "0x10"


@pytest.mark.parametrize(
    "text",
    [b'[{"a":%d},{"a":2}]', b'{"a":%d}\n{"a":2}\n', b'\n{"a":%d}\n\n{"a":2}', b' [ {"a":%d},\n{"a":2}]\n'],
    ids=["array", "lines", "loose lines", "loose array"],
)
@pytest.mark.parametrize("sidecar", [False, True])
def test_tables_are_rows(executor: ExecutorDriver, digest: str, text: bytes, sidecar: bool) -> None:
    """From the message or beside it, as an array or line by line, with every digit."""
    text %= 2**256
    call = executor.execute(digest, "rows", "logs", 17)
    [waiting] = executor.wait()
    assert asked(waiting) == ("blockdb", "rows", {"table": "logs", "block": 17})
    if sidecar:
        executor.resume_raw(waiting, text)
    else:
        executor.resume(
            waiting, text if text.strip().startswith(b"[") else b"[" + b",".join(text.split()) + b"]"
        )
    assert executor.value(call) == [{"a": 2**256}, {"a": 2}]


def test_an_empty_table_is_an_empty_list(executor: ExecutorDriver, digest: str) -> None:
    """No bytes at all, or an empty array."""
    for sidecar in (b"", b"[]"):
        call = executor.execute(digest, "rows", "logs", 17)
        executor.resume_raw(executor.wait()[0], sidecar)
        assert executor.value(call) == []


def test_rows_that_cannot_be_read_are_a_failure_of_the_back_end(
    executor: ExecutorDriver, digest: str
) -> None:
    """With table, block and line."""
    call = executor.execute(digest, "rows", "logs", 17)
    executor.resume_raw(executor.wait()[0], b'{"a":1}\n{"a":}\n')
    failure = executor.failure(call).payload
    assert (
        "IoFailed: ANSWER_INVALID: The rows of logs at block 17 cannot be read: line 2"
        in failure.error_message
    )


@pytest.mark.parametrize("retryable", [False, True])
def test_errors_are_exceptions(executor: ExecutorDriver, digest: str, retryable: bool) -> None:
    """Caught: with kind, message and retryable. Not caught: the call fails, retryable as the error is."""
    error = CallError(kind="RPC_ERROR", message="execution reverted", retryable=retryable)
    call = executor.execute(digest, "caught")
    executor.resume(executor.wait()[0], error=error)
    assert executor.value(call) == [
        "RPC_ERROR", "execution reverted", retryable, "RPC_ERROR: execution reverted", True,
    ]  # fmt: skip
    call = executor.execute(digest, "balance", "0xab")
    executor.resume(executor.wait()[0], error=error)
    failure = executor.failure(call).payload
    assert (failure.error_kind, failure.retryable, failure.error_type) == (
        "USER_ERROR",
        retryable,
        "IoFailed",
    )
    assert failure.error_message == "IoFailed: RPC_ERROR: execution reverted"
    assert "in balance" in failure.error_stack
    assert failure.local_vars == {"address": "'0xab'"}


# --- subcalls ---------------------------------------------------------------------------------------------------


def test_a_subcall_names_function_and_arguments(executor: ExecutorDriver, digest: str) -> None:
    """A function of the same code by itself, any by its id."""
    call = executor.execute(digest, "one", 4)
    [waiting] = executor.wait()
    assert (waiting.payload.wait_kind, waiting.payload.function_id) == ("subcall", "functions.inc")
    assert bytes(waiting.payload.args) == b"[4]"
    assert 0 < waiting.payload.granted_budget_ms <= 60_000
    executor.resume(waiting, b"5")
    assert executor.value(call) == 5
    call = executor.execute(digest, "by_id")
    [waiting] = executor.wait()
    assert waiting.payload.function_id == "other.module.function"
    assert bytes(waiting.payload.args) == b'[{"a":[1]},2]'
    executor.resume_raw(waiting, b'{"large":"result"}')
    assert executor.value(call) == {"large": "result"}


def test_functions_of_a_package_have_the_id_of_their_module(executor: ExecutorDriver) -> None:
    """Not of the module that imported them."""
    files = {
        "chain/__init__.py": "from blockx_executor import sdk\nfrom .util import f\ndef g(): return sdk.gather((f,), (g,))\n",
        "chain/util.py": "def f(): pass\n",
    }
    call = executor.execute(executor.define_package(files, "chain/__init__.py"), "chain:g")
    waits = executor.wait(2)
    assert [waiting.payload.function_id for waiting in waits] == ["chain.util.f", "chain.g"]
    executor.send(*(executor.resume_message(waiting, b"1") for waiting in waits))
    assert executor.value(call) == [1, 1]


def test_a_gather_keeps_the_order_of_its_calls(executor: ExecutorDriver, digest: str) -> None:
    """All requests are open at once; the answers come backwards."""
    call = executor.execute(digest, "many", 50)
    waits = executor.wait(50)
    assert len({waiting.request_id for waiting in waits}) == 50
    assert [bytes(waiting.payload.args) for waiting in waits] == [b"[%d]" % i for i in range(50)]
    for position in range(49, -1, -1):
        executor.resume(waits[position], b"%d" % (position * 10))
    assert executor.value(call) == [i * 10 for i in range(50)]


def test_a_gather_waits_for_all_before_it_raises_the_first(executor: ExecutorDriver, digest: str) -> None:
    """First in the order of the calls, not of the answers."""
    call = executor.execute(digest, "many", 3)
    waits = executor.wait(3)
    executor.resume(waits[2], error=CallError(kind="LATER", message="third"))
    executor.resume(waits[1], error=CallError(kind="FIRST", message="second", retryable=True))
    assert executor.call(digest, "inc", 1) == 2
    assert executor.others == []
    executor.resume(waits[0], b"0")
    failure = executor.failure(call).payload
    assert (failure.error_message, failure.retryable) == ("SubcallFailed: FIRST: second", True)


def test_a_lenient_gather_returns_failures(executor: ExecutorDriver, digest: str) -> None:
    """Each at its place."""
    call = executor.execute(digest, "lenient", 3)
    waits = executor.wait(3)
    executor.resume(waits[1], error=CallError(kind="CYCLE", message="x", retryable=True))
    executor.resume(waits[0], b"0")
    executor.resume(waits[2], b'"2"')
    assert executor.value(call) == [0, ["SubcallFailed", "CYCLE", True], "2"]


@pytest.mark.parametrize(
    ("entry", "args", "message"),
    [
        ("odd", ["lambda"], "odd.<locals>.<lambda> has no id, as it is not at the top level"),
        ("odd", ["nested"], "has no id, as it is not at the top level"),
        ("odd", ["foreign"], "no function of this code"),
        ("odd", ["int"], "A int that is no function of this code"),
        ("odd", ["bound"], "no function of this code"),
        ("odd", ["empty"], "the function id must have 1 to 1000 printable characters: ''"),
        ("odd", ["surrogate"], "printable characters: '\\ud800'"),
        ("odd", ["long"], "1 to 1000 printable characters"),
        ("bad_args", [], "sdk.call(functions.inc): the arguments cannot be written as JSON: at $[1].rows[1]: "),
        ("bad_gather", [], "arguments of call 1 (functions.inc) cannot be written as JSON: at $[0]: nan"),
        ("no_tuple", [], "sdk.gather: call 1 must be a tuple (function, *args), not function"),
        ("too_many", [], "10,001 calls are more than 10,000; gather in parts"),
        ("too_large", [], "more than 67,108,864 bytes as JSON; gather in parts"),
        ("one_too_large", [], "17,000,004 bytes as JSON; at most"),
        ("block_is_text", [], "block='latest'): block must be an int"),
        ("in_asyncio", [], "sdk.rpc() was used inside a running asyncio loop"),
    ],
)  # fmt: skip
def test_wrong_use_is_explained(
    executor: ExecutorDriver, digest: str, entry: str, args: list[object], message: str
) -> None:
    """Nothing is sent."""
    failure = executor.fail(digest, entry, *args).payload
    assert failure.error_kind == "USER_ERROR"
    assert message in failure.error_message
    assert executor.waits == []


def test_methods_have_dotted_names(executor: ExecutorDriver, digest: str) -> None:
    """The worker decides whether there is such a function."""
    call = executor.execute(digest, "odd", "method")
    [waiting] = executor.wait()
    assert waiting.payload.function_id == "functions.Maths.double"
    executor.resume(waiting, error=CallError(kind="FUNCTION_NOT_FOUND", message="no such function"))
    assert "FUNCTION_NOT_FOUND" in executor.failure(call).payload.error_message


def test_threads_may_not_ask(executor: ExecutorDriver, digest: str) -> None:
    """With a sentence."""
    assert "sdk.call() was used in a thread" in str(executor.call(digest, "in_thread"))


def test_nothing_to_gather_is_nothing_to_wait_for(executor: ExecutorDriver, digest: str) -> None:
    """An empty list at once."""
    assert executor.call(digest, "nothing_to_gather") == []


# --- meanwhile --------------------------------------------------------------------------------------------------


def test_others_run_while_calls_wait(executor: ExecutorDriver, digest: str) -> None:
    """Heartbeats count waiting calls apart; nobody owns the main thread."""
    calls = [executor.execute(digest, "ask") for _ in range(20)]
    waits = executor.wait(20)
    assert [executor.call(digest, "inc", i) for i in range(5)] == [1, 2, 3, 4, 5]
    executor.wait_for(lambda: executor.heartbeats[-1].payload.waiting_count == 20)
    beat = executor.heartbeats[-1].payload
    assert (beat.inflight_count, beat.runnable_count, beat.running_call_id) == (20, 0, None)
    assert beat.available_contexts == 108
    assert executor.blackbox().call_no == 0
    executor.send(*(executor.resume_message(waiting, b'"done"') for waiting in waits))
    assert [executor.value(call) for call in calls] == ["done"] * 20
    executor.wait_for(lambda: executor.heartbeats[-1].payload.waiting_count == 0)


def test_a_call_waits_again_and_again(executor: ExecutorDriver, digest: str) -> None:
    """Each request has its own number."""
    call = executor.execute(digest, "ask_twice")
    [first] = executor.wait()
    executor.resume(first, b"1")
    [second] = executor.wait()
    assert second.request_id != first.request_id
    executor.resume(first, b'"late"')
    executor.resume(second, b"2")
    assert executor.value(call) == [1, 2]


def test_answers_to_nobody_are_dropped(executor: ExecutorDriver, digest: str) -> None:
    """Doubled, of another call, for a number that never was, for a call that has ended."""
    call = executor.execute(digest, "many", 2)
    first, second = executor.wait(2)
    executor.resume(first, b"1")
    executor.resume(first, b'"doubled"')
    executor.resume(CallWaiting("t-1/other", second.request_id, second.payload), b'"of another call"')
    executor.resume(CallWaiting(call, 999_999, second.payload), b'"never asked"')
    executor.resume(second, b"2")
    assert executor.value(call) == [1, 2]
    executor.resume(second, b'"late"')
    executor.resume_raw(first, b"late")


# --- budget -----------------------------------------------------------------------------------------------------


def test_waiting_is_free_but_for_what_was_used(executor: ExecutorDriver, digest: str) -> None:
    """The answer comes after twice the budget and says that half of it was used."""
    call = executor.execute(digest, "ask", budget_ms=60)
    [waiting] = executor.wait()
    started = executor.heartbeats[-1].payload.heartbeat_seq
    executor.wait_for(lambda: executor.heartbeats[-1].payload.heartbeat_seq > started + 3)
    executor.resume(waiting, b"1", used_ms=30)
    done = executor.outcome(call)
    assert isinstance(done, CallCompleted)
    assert 30 <= done.payload.budget_used_ms < 60
    assert done.payload.run_us < 30_000


def test_what_is_granted_shrinks_with_use(executor: ExecutorDriver, digest: str) -> None:
    """The second request has what the first one left."""
    call = executor.execute(digest, "ask_twice", budget_ms=1000)
    [waiting] = executor.wait()
    executor.resume(waiting, b"1", used_ms=600)
    [waiting] = executor.wait()
    assert 300 < waiting.payload.granted_budget_ms <= 400
    executor.resume(waiting, b"2", used_ms=100)
    executor.value(call)


def over_budget(failure: CallFailedPayload) -> bool:
    return failure.error_kind == "BUDGET_EXCEEDED" and not failure.retryable


@pytest.mark.parametrize("failed", [False, True])
def test_an_answer_that_used_too_much_ends_the_call(
    executor: ExecutorDriver, digest: str, failed: bool
) -> None:
    """Whatever the answer is."""
    call = executor.execute(digest, "ask_for_ever", budget_ms=100)
    error = CallError(kind="BUDGET_EXCEEDED", message="x") if failed else None
    executor.resume(executor.wait()[0], b"" if failed else b"1", error=error, used_ms=101)
    failure = executor.failure(call).payload
    assert over_budget(failure)
    assert failure.budget_used_ms >= 101
    assert "more than its budget of 100 ms" in failure.error_message
    assert "in ask_for_ever" in failure.error_stack


def test_use_adds_up_over_waits(executor: ExecutorDriver, digest: str) -> None:
    """Until it is too much."""
    call = executor.execute(digest, "ask_for_ever", budget_ms=100)
    for _ in range(3):
        executor.resume(executor.wait()[0], b"1", used_ms=30)
    executor.resume(executor.wait()[0], b"1", used_ms=30)
    assert over_budget(executor.failure(call).payload)


def test_a_gather_ends_as_soon_as_the_budget_is_used(executor: ExecutorDriver, digest: str) -> None:
    """The other answers are not waited for, and dropped when they come."""
    call = executor.execute(digest, "many", 3, budget_ms=100)
    waits = executor.wait(3)
    executor.resume(waits[1], b"1", used_ms=150)
    assert over_budget(executor.failure(call).payload)
    executor.resume(waits[0], b"1")
    executor.resume(waits[2], b"1", used_ms=10)


def test_what_ran_side_by_side_is_not_charged_twice(executor: ExecutorDriver, digest: str) -> None:
    """Fifty answers of 50 ms each that came at once cost about as much as one."""
    call = executor.execute(digest, "many", 50, budget_ms=1000)
    executor.send(*(executor.resume_message(waiting, b"1", used_ms=50) for waiting in executor.wait(50)))
    done = executor.outcome(call)
    assert isinstance(done, CallCompleted)
    assert 50 <= done.payload.budget_used_ms < 1000


def test_the_budget_stops_arguments_without_end(executor: ExecutorDriver, digest: str) -> None:
    """They are the user's code."""
    assert over_budget(executor.fail(digest, "endless_args", budget_ms=60).payload)


# --- cancel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["ask", "ask_for_ever", "swallow_once", "clean_up", "one"])
def test_a_cancel_wakes_a_waiting_call(executor: ExecutorDriver, digest: str, entry: str) -> None:
    """At once, and it is answered as cancelled whatever it does with it; its answer is dropped."""
    call = executor.execute(digest, entry, *([1] if entry == "one" else []))
    [waiting] = executor.wait()
    executor.cancel(call, reason="nobody wants it")
    failure = executor.failure(call).payload
    assert (failure.error_kind, failure.error_type) == (
        "CANCELLED",
        "" if entry == "swallow_once" else "CallCancelled",
    )
    assert "nobody wants it" in failure.error_message
    assert executor.waits == []
    executor.resume(waiting, b"1")


def test_a_stopped_call_cannot_wait_again(executor: ExecutorDriver, digest: str) -> None:
    """It swallows the cancel and asks again and again: each time it is raised at once, and nothing is asked."""
    call = executor.execute(digest, "swallowing")
    executor.wait(2)
    executor.cancel(call)
    assert executor.failure(call).payload.error_kind == "CANCELLED"
    assert executor.waits == []


def test_a_cancel_and_an_answer_that_cross(executor: ExecutorDriver, digest: str) -> None:
    """In either order and in one piece, many times: one outcome a call."""
    for i in range(200):
        call = executor.execute(digest, "ask")
        [waiting] = executor.wait()
        if i % 2:
            executor.resume(waiting, b"1")
            executor.cancel(call)
        else:
            executor.cancel(call)
            executor.resume(waiting, b"1")
        outcome = executor.outcome(call)
        assert isinstance(outcome, CallCompleted) or outcome.payload.error_kind == "CANCELLED"
        if i % 2 == 0:
            assert not isinstance(outcome, CallCompleted)


def test_a_sidecar_beside_another_message_ends_the_process() -> None:
    """Only answers have one."""
    with running_executor() as own:
        own.send_raw(
            b'BXB1\0\0\0\x43{"messageType":"HeartbeatAck","payload":{"heartbeatSeq":1}}          xyz'
        )
        assert own.wait_exit() == 4
        assert "only a ResumeCall may have raw bytes" in own.stderr()
    with running_executor() as own:
        own.send_raw(b"BXB1\xff\xff\xff\xff{}")
        assert own.wait_exit() == 4
