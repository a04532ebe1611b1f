"""The IO of tasks: sharing, cache, places, time-outs, what a call pays, and the end of a task."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from blockx_worker.io.scope import IoScopes, TaskIoScope
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import IoAnswer, StepFailed
from tests.io.io_fakes import Asking, FakeBackend, Held, ask, error, port, problem, start


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def backend(held) -> FakeBackend:
    return FakeBackend(answer=held.answer)


@attrs.define
class World:
    """One task at a held back end with two places and a queue of three."""

    scopes: IoScopes
    task: TaskIoScope
    asking: Asking


@pytest.fixture
async def world(nursery, backend) -> World:
    scopes = await start(nursery, port(backend, places=2, queue=3))
    task = scopes.open_task("t")
    return World(scopes, task, Asking(nursery, task))


def kind(answer: IoAnswer) -> str | None:
    return problem(answer).kind if answer.error is not None else None


# --- sharing and cache ------------------------------------------------------------------------------------------


async def test_equal_requests_in_flight_reach_the_back_end_once(world, backend, held):
    for key in range(5):
        await world.asking.begin(key, ask(1))
    assert len(backend.asked) == 1
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert {answer.result for answer in world.asking.answers.values()} == {b'{"n": 1}'}
    assert (len(world.asking.answers), world.task.requests) == (5, 1)


async def test_a_later_equal_request_is_answered_from_the_cache_for_nothing(world, backend, held):
    held.let_go()
    first = await world.task.request(ask(1))
    second = await world.task.request(ask(1))
    assert first.result == second.result
    assert (second.used_ms, len(backend.asked), world.task.requests) == (0, 1, 1)


@pytest.mark.parametrize(
    "other", [ask(2), ask(1, op="read_more"), ask(raw=b'{"n":1}'), ask(1, backend="other")]
)
async def test_requests_that_differ_in_anything_are_not_shared(nursery, other):
    """Back end, operation and every byte of the request count."""
    backends = [FakeBackend("fake"), FakeBackend("other")]
    task = (await start(nursery, *map(port, backends))).open_task("t")
    await task.request(ask(1))
    await task.request(other)
    assert sum(len(b.asked) for b in backends) == 2


async def test_tasks_share_nothing(nursery):
    backend = FakeBackend()
    scopes = await start(nursery, port(backend))
    for task_id in ("a", "b"):
        await scopes.open_task(task_id).request(ask(1))
    assert len(backend.asked) == 2


async def test_what_may_not_be_shared_is_neither_shared_nor_kept(world, backend, held):
    for key in range(2):
        await world.asking.begin(key, ask(1, op="write"))
    assert len(backend.asked) == 2
    held.let_go()
    await world.task.request(ask(1, op="write"))
    assert len(backend.asked) == 3


async def test_an_error_goes_to_all_who_wait_and_is_not_kept(nursery):
    held = Held(error("STORE_ERROR", "no", retryable=True))
    backend = FakeBackend(answer=held.answer)
    task = (await start(nursery, port(backend))).open_task("t")
    asking = Asking(nursery, task)
    for key in range(2):
        await asking.begin(key, ask(1))
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert [kind(a) for a in asking.answers.values()] == ["STORE_ERROR"] * 2
    assert kind(await task.request(ask(1))) == "STORE_ERROR"
    assert len(backend.asked) == 2


async def test_the_cache_is_bounded_by_bytes_and_forgets_the_least_recently_used(nursery):
    backend = FakeBackend()
    task = (await start(nursery, port(backend), cache_bytes=1500)).open_task("t")
    for number in (1, 2, 3, 1, 4):
        await task.request(ask(number))
    backend.asked.clear()
    for number in (4, 1, 2):
        await task.request(ask(number))
    assert [request for _, request in backend.asked] == [b'{"n": 2}']


async def test_without_a_cache_only_requests_in_flight_are_shared(nursery):
    backend = FakeBackend()
    task = (await start(nursery, port(backend), cache_bytes=0)).open_task("t")
    for _ in range(2):
        await task.request(ask(1))
    assert len(backend.asked) == 2


# --- who leads --------------------------------------------------------------------------------------------------


async def test_when_the_first_leaves_the_others_still_get_the_one_answer(world, backend, held):
    for key in range(3):
        await world.asking.begin(key, ask(1))
    await world.asking.cancel(0)
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(world.asking.answers) == [1, 2]
    assert (len(backend.asked), backend.cancelled) == (1, 0)


async def test_when_the_last_leaves_the_request_is_cancelled(world, backend, held):
    for key in range(2):
        await world.asking.begin(key, ask(1))
    for key in range(2):
        await world.asking.cancel(key)
    assert (backend.cancelled, world.asking.answers) == (1, {})


def stubborn(go: trio.Event):
    """Goes on although it is cancelled, as a thread may."""

    async def answer(op: str, request: bytes) -> IoAnswer:
        with trio.CancelScope(shield=True):
            await go.wait()
        return IoAnswer(result=request)

    return answer


async def test_nobody_joins_a_request_that_is_being_cancelled(nursery):
    go = trio.Event()
    backend = FakeBackend(answer=stubborn(go))
    asking = Asking(nursery, (await start(nursery, port(backend))).open_task("t"))
    await asking.begin(0, ask(1))
    await asking.cancel(0)
    await asking.begin(1, ask(1))
    assert len(backend.asked) == 2
    go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert kind(asking.answers[1]) is None


async def test_a_request_that_is_cancelled_in_the_queue_never_reaches_the_back_end(world, backend, held):
    for number in range(4):
        await world.asking.begin(number, ask(number))
    await world.asking.cancel(2)
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert [request for _, request in backend.asked] == [b'{"n": 0}', b'{"n": 1}', b'{"n": 3}']
    assert world.task.requests == 3


# --- places -----------------------------------------------------------------------------------------------------


async def test_above_the_limit_requests_wait_and_above_the_queue_they_are_refused(world, backend, held):
    for number in range(6):
        await world.asking.begin(number, ask(number))
    assert len(backend.asked) == 2
    assert list(world.asking.answers) == [5]
    refused = problem(world.asking.answers[5])
    assert (refused.kind, refused.retryable) == ("IO_BUSY", True)
    assert "fake read: too many requests of this task wait for it (io.max_queue" in refused.message
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(world.asking.answers) == [0, 1, 2, 3, 4, 5]
    assert kind(await world.task.request(ask(5))) is None


async def test_who_shares_a_request_needs_no_place(world, held):
    for key in range(20):
        await world.asking.begin(key, ask(1))
    assert world.asking.answers == {}


async def test_one_task_that_floods_a_back_end_neither_fills_nor_blocks_the_queue_of_another(
    nursery, world, backend, held
):
    for number in range(5):
        await world.asking.begin(number, ask(number))
    other = Asking(nursery, world.scopes.open_task("other"))
    await other.begin("o", ask("o"))
    assert other.answers == {}
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    asked = [request for _, request in backend.asked]
    assert asked.index(b'{"n": "o"}') < asked.index(b'{"n": 4}')
    assert list(other.answers) == ["o"]


# --- time -------------------------------------------------------------------------------------------------------


def slow(seconds: float):
    async def answer(op: str, request: bytes) -> IoAnswer:
        await trio.sleep(seconds)
        return IoAnswer(result=request)

    return answer


async def test_a_request_that_takes_too_long_is_an_error_and_is_cancelled(nursery, autojump_clock):
    backend = FakeBackend(answer=slow(100))
    task = (await start(nursery, port(backend, timeout_ms=3000))).open_task("t")
    answer = await task.request(ask(1))
    assert (problem(answer).kind, problem(answer).retryable, answer.used_ms) == ("IO_TIMEOUT", True, 3000)
    assert problem(answer).message == "fake read: no answer within 3000 ms, the longest time for one request"
    assert backend.cancelled == 1


async def test_the_budget_of_the_call_ends_its_wait_but_not_that_of_others(nursery, autojump_clock):
    backend = FakeBackend(answer=slow(2))
    task = (await start(nursery, port(backend))).open_task("t")
    answers = {}

    async def one(budget_ms: int) -> None:
        answers[budget_ms] = await task.request(ask(1, budget_ms=budget_ms))

    async with trio.open_nursery() as asking:
        for budget_ms in (500, 0, 5000):
            asking.start_soon(one, budget_ms)
    assert (kind(answers[500]), answers[500].used_ms) == ("IO_TIMEOUT", 500)
    assert "within 500 ms, what was left of the call's budget" in problem(answers[500]).message
    assert [(kind(answers[b]), answers[b].used_ms) for b in (0, 5000)] == [(None, 2000)] * 2
    assert len(backend.asked) == 1


async def test_a_call_pays_for_the_back_end_and_not_for_the_queue(nursery, autojump_clock):
    """With one place and a budget of 1.5 s, three requests of 1 s each succeed and cost 1 s each."""
    task = (await start(nursery, port(FakeBackend(answer=slow(1)), places=1))).open_task("t")
    used = []

    async def one(number: int) -> None:
        used.append((await task.request(ask(number, budget_ms=1500))).used_ms)

    async with trio.open_nursery() as asking:
        for number in range(3):
            asking.start_soon(one, number)
    assert used == [1000] * 3
    assert trio.current_time() == pytest.approx(3, abs=0.01)


async def test_who_joins_late_pays_only_for_what_is_left(nursery, autojump_clock):
    task = (await start(nursery, port(FakeBackend(answer=slow(1))))).open_task("t")
    used = {}

    async def one(delay: float) -> None:
        await trio.sleep(delay)
        used[delay] = (await task.request(ask(1))).used_ms

    async with trio.open_nursery() as asking:
        for delay in (0, 0.75, 3):
            asking.start_soon(one, delay)
    assert used == {0: 1000, 0.75: 250, 3: 0}


# --- answers that may not pass ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (IoAnswer(result=b'{"a":'), "the back end is broken: the result is not valid JSON"),
        (IoAnswer(result=b"[" * 100_000), "the result is not valid JSON"),
        (IoAnswer(result=b""), "the result is not valid JSON"),
        (IoAnswer(result=b'"\xff"'), "the result is not valid JSON"),
        (IoAnswer(), "an answer needs exactly one of result, sidecar and error"),
        (IoAnswer(result=b"1", sidecar=b"1"), "an answer needs exactly one of result, sidecar and error"),
        (ValueError("boom"), "ValueError: boom"),
    ],
)
async def test_a_defect_of_a_back_end_is_an_error_of_the_one_request(nursery, answer, message):
    async def broken(op, request):
        if isinstance(answer, Exception):
            raise answer
        return answer

    task = (await start(nursery, port(FakeBackend(answer=broken)))).open_task("t")
    given = await task.request(ask(1))
    assert (problem(given).kind, problem(given).retryable) == ("IO_BACKEND_FAILED", False)
    assert problem(given).message.startswith("fake read: the back end is broken: ")
    assert message in problem(given).message


async def test_a_back_end_that_cannot_say_what_may_be_shared_shares_nothing(nursery):
    class Broken(FakeBackend):
        def cacheable(self, op: str) -> bool:
            raise RuntimeError(op)

    backend = Broken()
    task = (await start(nursery, port(backend))).open_task("t")
    for _ in range(2):
        assert kind(await task.request(ask(1))) is None
    assert len(backend.asked) == 2


@pytest.mark.parametrize("field", ["result", "sidecar"])
async def test_an_answer_above_the_limit_is_an_error_that_says_what_to_do(nursery, field):
    async def large(op: str, request: bytes) -> IoAnswer:
        content = b"1" * int(request)
        return IoAnswer(result=content) if field == "result" else IoAnswer(sidecar=content)

    task = (await start(nursery, port(FakeBackend(answer=large), max_answer_bytes=100))).open_task("t")
    assert kind(await task.request(ask(raw=b"100"))) is None
    given = await task.request(ask(raw=b"101"))
    assert (problem(given).kind, problem(given).retryable) == ("IO_ANSWER_TOO_LARGE", False)
    assert "has 101 bytes, more than the 100" in problem(given).message
    assert "ask for less at a time" in problem(given).message


async def test_a_sidecar_passes_as_it_is_and_is_cached(nursery):
    async def raw(op: str, request: bytes) -> IoAnswer:
        return IoAnswer(sidecar=b"\xff\x00")

    backend = FakeBackend(answer=raw)
    task = (await start(nursery, port(backend))).open_task("t")
    assert [(await task.request(ask(1))).sidecar for _ in range(2)] == [b"\xff\x00"] * 2
    assert len(backend.asked) == 1


# --- finding, beginning and end ---------------------------------------------------------------------------------


async def test_an_unknown_back_end_is_an_error_that_names_those_there_are(nursery):
    backends = [FakeBackend(name) for name in ("prices", "blockdb")]
    scopes = await start(nursery, *map(port, backends), absent={"rpc": "for rpc it needs io.rpc.endpoints"})
    task = scopes.open_task("t")
    given = await task.request(ask(backend="pirces"))
    assert (problem(given).kind, problem(given).retryable) == ("IO_BACKEND_NOT_FOUND", False)
    assert problem(given).message == 'this worker has no back end "pirces"; it has blockdb, prices'
    given = await task.request(ask(backend="rpc"))
    assert problem(given).message.endswith("it has blockdb, prices; for rpc it needs io.rpc.endpoints")


async def test_two_back_ends_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two back ends with the name fake"):
        IoScopes([port(FakeBackend()), port(FakeBackend())], cache_bytes=0)


async def test_the_end_of_a_task_cancels_what_is_pending_and_answers_who_still_waits(world, backend):
    for number in range(4):
        await world.asking.begin(number, ask(number))
    await world.task.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert [kind(world.asking.answers[n]) for n in range(4)] == ["IO_CLOSED"] * 4
    assert backend.cancelled == 2
    assert kind(await world.task.request(ask(9))) == "IO_CLOSED"


async def test_the_end_of_a_task_gives_its_places_to_others(nursery, world, backend, held):
    for number in range(4):
        await world.asking.begin(number, ask(number))
    other = Asking(nursery, world.scopes.open_task("other"))
    await other.begin(1, ask(1))
    await world.task.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(backend.asked) == 3
    held.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert kind(other.answers[1]) is None


async def test_a_closed_task_keeps_no_answer_that_comes_late(nursery):
    """A back end that finishes although it was cancelled does not fill the cache of a task that has gone."""
    go = trio.Event()
    task = (await start(nursery, port(FakeBackend(answer=stubborn(go))))).open_task("t")
    asking = Asking(nursery, task)
    await asking.begin(1, ask(1))
    await task.aclose()
    go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert kind(await task.request(ask(1))) == "IO_CLOSED"


async def test_without_running_back_ends_no_task_can_be_opened():
    backend = FakeBackend()
    scopes = IoScopes([port(backend)], cache_bytes=0)
    with pytest.raises(StepFailed, match="the back ends of this worker do not run") as caught:
        scopes.open_task("t")
    assert caught.value.code is TaskFailureCode.IO_SCOPE_FAILED
    async with trio.open_nursery() as nursery:
        await nursery.start(scopes.run)
        ran = backend.running
        task = scopes.open_task("t")
        nursery.cancel_scope.cancel()
    assert (ran, backend.running) == (True, False)
    assert kind(await task.request(ask(1))) == "IO_CLOSED"
    with pytest.raises(StepFailed):
        scopes.open_task("t")


async def test_who_waits_when_the_worker_stops_is_answered(nursery, held):
    task = None
    async with trio.open_nursery() as io:
        scopes = await start(io, port(FakeBackend(answer=held.answer), places=1))
        task = scopes.open_task("t")
        asking = Asking(nursery, task)
        for number in range(2):
            await asking.begin(number, ask(number))
        io.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert [kind(a) for a in asking.answers.values()] == ["IO_CLOSED"] * 2
