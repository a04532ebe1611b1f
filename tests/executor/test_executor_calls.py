"""Calls that end as they should: values, order, code by digest, sleep, limits."""

from __future__ import annotations

import msgspec
import pytest

from blockx_executor.wire.messages import CallCompleted, CallError, CallFailed
from tests.executor.driver import ExecutorDriver, module, running_executor

BASICS = module("""
    import contextvars
    import dataclasses
    import pickle
    import sys

    from blockx_executor import sdk

    loads = sys.__dict__.setdefault("loads", [])
    loads.append(__name__)
    mark = contextvars.ContextVar("mark", default=None)

    def inc(i): return i + 1
    def echo(*args): return args
    def nothing(): pass
    def load_count(): return loads.count(__name__)

    class Maths:
        @staticmethod
        def double(x): return 2 * x

    @dataclasses.dataclass
    class Row:
        a: int

    def pickled(): return pickle.loads(pickle.dumps(Row(3))).a

    def marked(value):
        before = mark.get()
        mark.set(value)
        sdk.sleep(0)
        return [before, mark.get()]

    order = []
    def note(i, nap):
        order.append(["start", i])
        sdk.sleep(nap)
        order.append(["end", i])
        return i

    def take_order():
        taken = list(order)
        order.clear()
        return taken

    def who():
        call = sdk.current()
        return [call.task_id, call.call_id, call.function_id, call.attempt, call.remaining_budget_ms, call.deadline_unix_ms]

    @sdk.no_cache
    def uncached(): return uncached.__blockx_no_cache__
""")


def test_calls_complete_in_order_and_code_is_asked_for_once(executor: ExecutorDriver) -> None:
    """A thousand calls, a hundred at a time."""
    digest = executor.define(BASICS)
    for start in range(0, 1000, 100):
        calls = [executor.execute_message(digest, "inc", i) for i in range(start, start + 100)]
        executor.send(*calls)
        executor.wait_for(lambda: len(executor.others) == 100)
        arrived, executor.others[:] = list(executor.others), []
        outputs = [int(bytes(done.payload.output)) for done in arrived if isinstance(done, CallCompleted)]
        assert [done.call_id for done in arrived] == [call.call_id for call in calls]
        assert outputs == [i + 1 for i in range(start, start + 100)]
    assert len(executor.code_requests) == 1
    assert executor.call(digest, "load_count") == 1


@pytest.mark.parametrize(
    "value",
    [2**256 - 1, -(2**200), "x" * 100_000, "ünï😀", None, [[[{}]]], {"a": {"b": [1, 2.5, True]}}, 10**4299],
    ids=["u256", "negative", "long", "unicode", "null", "nested", "object", "4300 digits"],
)
def test_values_survive_the_round_trip(executor: ExecutorDriver, value: object) -> None:
    """As argument and as output."""
    assert executor.call(executor.define(BASICS), "echo", value, 1) == [value, 1]


def test_entries_may_be_dotted_and_modules_are_real(executor: ExecutorDriver) -> None:
    """A static method, a dataclass that pickles, a function without a return, a marked one."""
    digest = executor.define(BASICS)
    assert executor.call(digest, "Maths.double", 21) == 42
    assert executor.call(digest, "pickled") == 3
    assert executor.call(digest, "nothing") is None
    assert executor.call(digest, "uncached") is True


def test_two_versions_live_side_by_side(executor: ExecutorDriver) -> None:
    """The same module name under two digests."""
    old = executor.define("VALUE = 'old'\ndef get(): return VALUE\n")
    new = executor.define("VALUE = 'new'\ndef get(): return VALUE\n")
    assert [executor.call(digest, "get") for digest in (old, new, old, new)] == ["old", "new", "old", "new"]


def test_sleepers_take_turns_and_leave_the_thread_to_others(executor: ExecutorDriver) -> None:
    """Three calls sleep at once; the one that naps least ends first; a quick call does not wait for them."""
    digest = executor.define(BASICS)
    naps = [0.09, 0.03, 0.06]
    calls = [executor.execute(digest, "note", i, nap) for i, nap in enumerate(naps)]
    quick = executor.execute(digest, "inc", 1)
    assert [executor.value(call) for call in calls] == [0, 1, 2]
    assert executor.value(quick) == 2
    assert executor.call(digest, "take_order") == [
        ["start", 0], ["start", 1], ["start", 2], ["end", 1], ["end", 2], ["end", 0],
    ]  # fmt: skip


def test_context_variables_belong_to_one_call(executor: ExecutorDriver) -> None:
    """Neither a call that takes turns nor the next one in the same greenlet sees them."""
    digest = executor.define(BASICS)
    calls = [executor.execute(digest, "marked", i) for i in range(3)]
    assert [executor.value(call) for call in calls] == [[None, 0], [None, 1], [None, 2]]
    assert executor.call(digest, "marked", 9) == [None, 9]


def test_a_call_knows_who_it_is(executor: ExecutorDriver) -> None:
    """Ids, attempt, what is left of its budget; None without a budget."""
    digest = executor.define(BASICS)
    first = executor.value(executor.execute(digest, "who", budget_ms=5000, call_id="t-1/who"))
    assert isinstance(first, list)
    assert first[:4] == ["t-1", "t-1/who", "functions.who", 1]
    assert 0 < first[4] <= 5000
    second = executor.value(executor.execute(digest, "who", budget_ms=0, call_id="t-1/who"))
    assert second == ["t-1", "t-1/who", "functions.who", 2, None, None]


def test_time_used_is_reported(executor: ExecutorDriver) -> None:
    """Sleep counts as budget, but not as owning the main thread."""
    done = executor.outcome(executor.execute(executor.define(BASICS), "note", 1, 0.05))
    assert isinstance(done, CallCompleted)
    assert done.payload.budget_used_ms >= 49
    assert done.payload.run_us < 49_000
    executor.call(executor.define(BASICS), "take_order")


def test_arguments_that_are_not_exact_json_fail_their_call(executor: ExecutorDriver) -> None:
    """Not an array, too many digits, too deep; escapes of lone surrogates do not even pass as a frame."""
    digest = executor.define(BASICS)
    for raw, reason in [
        (b'{"a":1}', "must be a JSON array"),
        (b"[" + b"1" * 4301 + b"]", "more than 4300 digits"),
        (b"[" * 300 + b"]" * 300, "nested more than 256 levels"),
        (b"[" * 2000 + b"]" * 2000, "nested more than 256 levels"),
        (b'["[[[\\"]",' + b'{"a":[' * 100_000 + b"]}" * 100_000 + b"]", "nested more than 256 levels"),
    ]:
        failure = executor.failure(executor.execute(digest, "inc", raw_args=raw)).payload
        assert (failure.error_kind, failure.retryable) == ("ARGS_INVALID", False)
        assert reason in failure.error_message


def test_calls_above_the_limit_are_refused() -> None:
    """The refused call may be sent again and succeeds when there is room; a doubled call id is refused as well."""
    with running_executor("--executor-max-inflight", "2") as executor:
        executor.answers_code = False
        digest = executor.define(BASICS)
        first = executor.execute(digest, "inc", 1)
        doubled = executor.failure(executor.execute(digest, "inc", 1, call_id=first)).payload
        second = executor.execute(digest, "inc", 2)
        third = executor.execute(digest, "inc", 3)
        refused = executor.failure(third).payload
        assert [refused.error_kind, doubled.error_kind] == ["DISPATCH_REFUSED"] * 2
        assert refused.retryable
        assert "already holds 2 calls" in refused.error_message
        assert "an attempt of it is still here" in doubled.error_message
        executor.answer_code(executor.code_requests[0], BASICS)
        assert [executor.value(first), executor.value(second)] == [2, 3]
        assert executor.value(executor.execute(digest, "inc", 3, call_id=third)) == 4


def test_a_large_output_passes_and_a_larger_one_fails() -> None:
    """The link carries many megabytes while nobody reads for a while; 16 MiB are the limit."""
    with running_executor() as executor:
        digest = executor.define("def big(n): return 'x' * n\n")
        calls = [executor.execute(digest, "big", 15_000_000) for _ in range(3)]
        too_large = executor.execute(digest, "big", 17_000_000)
        assert [len(str(executor.value(call))) for call in calls] == [15_000_000] * 3
        failure = executor.failure(too_large).payload
        assert failure.error_kind == "OUTPUT_TOO_LARGE"
        assert "17,000,002 bytes" in failure.error_message


# --- code -------------------------------------------------------------------------------------------------------


def test_many_calls_wait_for_one_answer() -> None:
    """One request; when the call that asked is cancelled, another one asks."""
    with running_executor() as executor:
        executor.answers_code = False
        digest = executor.define(BASICS)
        calls = [executor.execute(digest, "inc", i) for i in range(3)]
        executor.wait_for(lambda: executor.code_requests)
        executor.cancel(calls[0])
        assert executor.failure(calls[0]).payload.error_kind == "CANCELLED"
        executor.wait_for(lambda: len(executor.code_requests) == 2)
        assert [request.call_id for request in executor.code_requests] == calls[:2]
        executor.answer_code(
            executor.code_requests[0], BASICS
        )  # the first answer serves, though its call is gone
        assert [executor.value(call) for call in calls[1:]] == [2, 3]
        executor.answer_code(executor.code_requests[1], "this would not even compile")
        assert executor.call(digest, "inc", 5) == 6


def test_code_that_is_refused_fails_the_calls_of_that_task_only() -> None:
    """Another task asks again and is given the code; the refusal is not remembered."""
    with running_executor() as executor:
        executor.answers_code = False
        digest = executor.define(BASICS)
        refused = [executor.execute(digest, "inc", i, task_id="t-1") for i in range(2)]
        other = executor.execute(digest, "inc", 9, task_id="t-2")
        executor.wait_for(lambda: executor.code_requests)
        error = CallError(kind="FUNCTION_CODE_UNAVAILABLE", message="The digest is not audited.")
        executor.answer_code(executor.code_requests[0], error=error)
        failures = [executor.failure(call).payload for call in refused]
        assert {failure.error_kind for failure in failures} == {"FUNCTION_CODE_UNAVAILABLE"}
        assert {failure.error_message for failure in failures} == {"The digest is not audited."}
        executor.wait_for(lambda: len(executor.code_requests) == 2)
        executor.answer_code(executor.code_requests[1], BASICS)
        assert executor.value(other) == 10


BROKEN = module("""
    def f(:
        pass
""")
RAISES = module("""
    import sys
    attempts = sys.__dict__.setdefault("attempts", [])
    attempts.append(1)
    raise RuntimeError(f"no luck, attempt {len(attempts)}")
""")


@pytest.mark.parametrize(
    ("source", "entry", "kind", "reasons"),
    [
        (BROKEN, "f", "SYNTAX_ERROR", ["functions.py", "line 1", "def f(:"]),
        ("def f(): \0", "f", "SYNTAX_ERROR", ["functions.f", "null bytes"]),
        (RAISES, "f", "IMPORT_ERROR", ["functions.f", "RuntimeError: no luck, attempt 1"]),
        ("import no_such_module_here", "f", "IMPORT_ERROR", ["No module named 'no_such_module_here'"]),
        ("import sys; sys.exit(3)", "f", "IMPORT_ERROR", ["SystemExit: 3"]),
        ("def g(): pass\nclass H: pass\n", "f", "FUNCTION_NOT_FOUND", ["'f'", "it defines g, H"]),
        ("", "a.b", "FUNCTION_NOT_FOUND", ["'a.b'", "it defines no function"]),
        ("f = 5", "f", "FUNCTION_NOT_FOUND", ["'f'", "is a int, not a function"]),
        ("async def f(): pass", "f", "USER_ERROR", ["functions must be plain def"]),
        ("async def f(): yield", "f", "USER_ERROR", ["functions must be plain def"]),
    ],
)
def test_code_that_does_not_give_a_function_fails_its_calls(
    executor: ExecutorDriver, source: str, entry: str, kind: str, reasons: list[str]
) -> None:
    """The sentence names what is wrong; a second call gets the same one, without loading again."""
    digest = executor.define(source)
    first = executor.fail(digest, entry).payload
    assert first.error_kind == kind
    assert not first.retryable
    for reason in reasons:
        assert reason in first.error_message
    second = executor.fail(digest, entry).payload
    assert second.error_message == first.error_message


def test_an_answer_without_code_fails_the_call(executor: ExecutorDriver) -> None:
    """A worker of another kind."""
    executor.answers_code = False
    call = executor.execute(executor.define("# odd"), "f")
    executor.wait_for(lambda: executor.code_requests[-1].call_id == call)
    request = executor.code_requests[-1]
    odd = msgspec.json.decode(
        b'{"messageType":"ResumeCall","callId":"%s","requestId":%d,"payload":{"resumeKind":"x","result":[1]}}'
        % (call.encode(), request.request_id),
        type=msgspec.Raw,
    )
    executor.send_raw(bytes(odd))
    executor.answers_code = True
    assert executor.failure(call).payload.error_kind == "FUNCTION_CODE_UNAVAILABLE"


def test_code_that_was_put_aside_is_loaded_again() -> None:
    """More digests than the cache holds."""
    with running_executor() as executor:
        digests = [executor.define(f"def f(): return {i}\n") for i in range(70)]
        assert [executor.call(digest, "f") for digest in digests] == list(range(70))
        assert executor.call(digests[-1], "f") == 69
        assert len(executor.code_requests) == 70
        assert executor.call(digests[0], "f") == 0
        assert len(executor.code_requests) == 71


def test_failures_and_completions_keep_the_order_of_arrival(executor: ExecutorDriver) -> None:
    """First in, first out."""
    digest = executor.define(BASICS)
    calls = [executor.execute_message(digest, "inc" if i % 3 else "missing", i) for i in range(60)]
    executor.send(*calls)
    executor.wait_for(lambda: len(executor.others) == 60)
    arrived, executor.others[:] = list(executor.others), []
    assert [done.call_id for done in arrived] == [call.call_id for call in calls]
    assert [isinstance(done, CallFailed) for done in arrived] == [i % 3 == 0 for i in range(60)]
