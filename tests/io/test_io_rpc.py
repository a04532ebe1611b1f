"""The JSON-RPC back end over a network of the test's own: batches, fail-over, patience, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.testing

from blockx_worker.config.io_settings import JsonRpcSettings
from blockx_worker.io.rpc_make import make_rpc
from blockx_worker.ports import IoAnswer
from tests.io.io_fakes import problem

Behaviour = Callable[[str, Any], Any]
"""What a host does with the decoded body of a request: a body to answer with, a response, or an exception to raise."""


def good(host: str, body: Any) -> Any:
    """Answer every call with its params."""
    answers = [
        {"jsonrpc": "2.0", "id": c["id"], "result": c["params"]}
        for c in (body if isinstance(body, list) else [body])
    ]
    return answers if isinstance(body, list) else answers[0]


@attrs.define
class Network:
    """Hosts and what they do; `posts` has (host, calls in the request, time) of each."""

    hosts: dict[str, Behaviour]
    delay_s: float = 0.0
    posts: list[tuple[str, int, float]] = attrs.field(factory=list)
    bodies: list[Any] = attrs.field(factory=list)
    open_now: int = 0
    open_most: int = 0
    cut: int = 0

    async def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        host = request.url.host
        self.posts.append((host, len(body) if isinstance(body, list) else 1, round(trio.current_time(), 3)))
        self.bodies.append(body)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await trio.sleep(self.delay_s)
        except trio.Cancelled:
            self.cut += 1
            raise
        finally:
            self.open_now -= 1
        answer = self.hosts[host](host, body)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def to(self, host: str) -> list[int]:
        """Sizes of the requests to a host."""
        return [size for name, size, _ in self.posts if name == host]


@attrs.define
class Client:
    network: Network
    backend: Any

    async def call(self, *params: Any, method: str = "f", op: str = "call") -> IoAnswer:
        answer: IoAnswer = await self.backend.request(
            op, json.dumps({"method": method, "params": params}).encode()
        )
        return answer

    async def calls(self, *numbers: int, op: str = "call") -> dict[int, IoAnswer]:
        answers: dict[int, IoAnswer] = {}

        async def one(number: int) -> None:
            answers[number] = await self.call(number, op=op)

        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(one, number)
        return answers


@pytest.fixture
async def connect(nursery):
    """Starts a back end over the hosts a, b, and so on."""

    async def start(*behaviours: Behaviour, delay_s: float = 0.0, **settings: Any) -> Client:
        network = Network(dict(zip("abcd", behaviours, strict=False)), delay_s)
        config = JsonRpcSettings(endpoints=[f"http://{host}" for host in network.hosts], **settings)
        backend = make_rpc("rpc", config, lambda: 0.0, httpx.MockTransport(network.handle))
        await nursery.start(backend.run)
        return Client(network, backend)

    return start


def results(answers: dict[int, IoAnswer]) -> dict[int, Any]:
    return {n: a.result and json.loads(a.result) for n, a in sorted(answers.items())}


def right(*numbers: int) -> dict[int, list[int]]:
    return {n: [n] for n in numbers}


def script(*steps: Any, then: Behaviour = good) -> Behaviour:
    """One step for each request: an exception, a response, a behaviour; afterwards ``then``."""
    left = list(steps)

    def behave(host: str, body: Any) -> Any:
        step = left.pop(0) if left else then
        return step(host, body) if callable(step) else step

    return behave


def status(code: int, text: str = "", **headers: str) -> Behaviour:
    return lambda host, body: httpx.Response(code, text=text, headers=headers)


def refused() -> Exception:
    return httpx.ConnectError("connection refused")


def broken() -> Exception:
    return httpx.ReadError("connection reset")


def rpc_error(code: int, message: str, **more: Any) -> Behaviour:
    def behave(host: str, body: Any) -> Any:
        error = {"code": code, "message": message, **more}
        calls = body if isinstance(body, list) else [body]
        answers = [{"jsonrpc": "2.0", "id": c["id"], "error": error} for c in calls]
        return answers if isinstance(body, list) else answers[0]

    return behave


# --- batches ----------------------------------------------------------------------------------------------------


async def test_one_request_goes_as_an_object(connect, autojump_clock):
    client = await connect(good)
    assert results({1: await client.call(1)}) == right(1)
    assert client.network.bodies == [{"jsonrpc": "2.0", "id": 1, "method": "f", "params": [1]}]


async def test_requests_of_a_moment_go_in_batches_of_at_most_max_batch(connect, autojump_clock):
    client = await connect(good, max_batch=4)
    answers = await client.calls(*range(10))
    assert results(answers) == right(*range(10))
    assert client.network.to("a") == [4, 4, 2]


async def test_a_request_lingers_for_others(connect, autojump_clock):
    client = await connect(good, linger_ms=5)

    async def later() -> None:
        await trio.sleep(0.004)
        await client.call(2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call, 1)
        nursery.start_soon(later)
    assert client.network.posts == [("a", 2, 0.005)]


async def test_a_batch_is_bounded_by_bytes_and_a_larger_request_goes_alone(connect, autojump_clock):
    client = await connect(good, max_batch_bytes=1024)
    texts = ["x" * 400, "y" * 400, "z" * 400, "w" * 5000]
    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(client.call, text)
    assert sorted(client.network.to("a")) == [1, 1, 2]


async def test_while_all_connections_are_busy_requests_gather_for_the_next_batch(connect, autojump_clock):
    client = await connect(good, max_connections=1, delay_s=1)

    async def trickle() -> None:
        for number in range(5):
            await trio.sleep(0.1)
            nursery.start_soon(client.call, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call, 9)
        nursery.start_soon(trickle)
    assert client.network.to("a") == [1, 5]


async def test_no_more_http_requests_than_connections_are_under_way(connect, autojump_clock):
    client = await connect(good, max_connections=3, max_batch=1, delay_s=1)
    await client.calls(*range(10))
    assert client.network.open_most == 3


@pytest.mark.parametrize(
    "refusal",
    [
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no batches"}},
        status(400, "bad request"),
        status(405),
        status(413),
        {},
    ],
)
async def test_a_server_that_takes_no_batches_gets_single_requests(connect, autojump_clock, refusal):
    def behave(host: str, body: Any) -> Any:
        if isinstance(body, list):
            return refusal(host, body) if callable(refusal) else refusal
        return good(host, body)

    client = await connect(behave, max_attempts=1, max_batch=8)
    assert results(await client.calls(*range(8))) == right(*range(8))
    assert client.network.to("a") == [8, 4, 2, *[1] * 8]
    client.network.posts.clear()
    assert results(await client.calls(*range(3))) == right(*range(3))
    assert client.network.to("a") == [1, 1, 1]


async def test_a_server_with_a_limit_for_batches_gets_batches_within_it_and_larger_ones_again_later(
    connect, autojump_clock
):
    limit = 10

    def behave(host: str, body: Any) -> Any:
        if isinstance(body, list) and len(body) > limit:
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "batch too large"}}
        return good(host, body)

    client = await connect(behave, max_batch=32, max_attempts=1)
    assert results(await client.calls(*range(64))) == right(*range(64))
    assert client.network.to("a")[-1] <= 8
    client.network.posts.clear()
    limit = 100
    await client.calls(*range(16))
    assert client.network.to("a") == [8, 8]
    client.network.posts.clear()
    await trio.sleep(60)
    await client.calls(*range(16))
    assert client.network.to("a") == [16]


# --- answers ----------------------------------------------------------------------------------------------------


async def test_large_integers_survive_as_text(connect, autojump_clock):
    text = b"[115792089237316195423570985008687907853269984665640564039457584007913129639935,1.10,1e400]"

    def behave(host: str, body: Any) -> Any:
        return httpx.Response(200, content=b'{"id":%d,"result":%b}' % (body["id"], text))

    client = await connect(behave)
    assert (await client.call(1)).result == text


async def test_params_pass_as_text(connect, autojump_clock):
    sent = []

    def behave(host: str, body: Any) -> Any:
        sent.append(body["params"])
        return good(host, body)

    client = await connect(behave)
    big = 2**256 - 1
    await client.backend.request("call", b'{"params":{"a":%d},"method":"f"}' % big)
    await client.backend.request("call", b'{"method":"f"}')
    assert sent == [{"a": big}, []]


async def test_an_error_object_is_the_error_of_its_request_with_code_message_and_data(
    connect, autojump_clock
):
    client = await connect(rpc_error(-32000, "execution reverted", data="0x08c379a0"))
    answer = await client.call(1, method="eth_call")
    assert (problem(answer).kind, problem(answer).retryable) == ("RPC_ERROR", False)
    assert problem(answer).message == 'eth_call: error -32000: execution reverted (data "0x08c379a0")'
    assert len(client.network.posts) == 1


async def test_answers_are_found_by_id_in_any_order_and_also_as_text(connect, autojump_clock):
    def behave(host: str, body: Any) -> Any:
        return [{**a, "id": str(a["id"])} for a in reversed(good(host, body))]

    client = await connect(behave)
    assert results(await client.calls(1, 2, 3)) == right(1, 2, 3)


async def test_a_missing_answer_is_tried_again_and_then_an_error_of_that_request_only(
    connect, autojump_clock
):
    def behave(host: str, body: Any) -> Any:
        answers = good(host, body)
        if not isinstance(answers, list):
            return [] if body["params"] == [2] else answers
        return [a for a in answers if a["result"] != [2]]

    client = await connect(behave, max_attempts=3)
    answers = await client.calls(1, 2, 3)
    assert results(answers) == {1: [1], 2: None, 3: [3]}
    assert (problem(answers[2]).kind, problem(answers[2]).retryable) == ("RPC_BAD_RESPONSE", True)
    assert len(client.network.posts) == 3


@pytest.mark.parametrize(
    "item",
    [5, None, [], "x", {"id": None, "result": 1}, {"id": [1], "result": 1}, {"result": 1}, {"id": 10**30}],
)
async def test_strange_items_of_a_batch_harm_nobody(connect, autojump_clock, item):
    client = await connect(lambda host, body: [item, *good(host, body)])
    assert results(await client.calls(1, 2)) == right(1, 2)


async def test_an_answer_without_result_and_error_and_a_null_result(connect, autojump_clock):
    def behave(host: str, body: Any) -> Any:
        return (
            {"id": body["id"]} if body["params"] == [1] else {"id": body["id"], "result": None, "error": None}
        )

    client = await connect(behave, max_attempts=1)
    assert "f: the server's response has no answer to this request" in problem(await client.call(1)).message
    assert (await client.call(2)).result == b"null"


@pytest.mark.parametrize(
    "error", ["just text", {"message": "no code"}, {"code": "x"}, [], 5, {"code": -1, "message": 7}]
)
async def test_an_error_of_another_shape_is_shown_as_it_is(connect, autojump_clock, error):
    client = await connect(lambda host, body: {"id": body["id"], "error": error})
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).message) == (
        "RPC_ERROR",
        f"f: {json.dumps(error, separators=(',', ':'))}",
    )


@pytest.mark.parametrize("code", [-32005, -32002, 429])
async def test_a_request_that_is_refused_for_load_is_tried_again_after_a_pause(connect, autojump_clock, code):
    client = await connect(script(rpc_error(code, "limit"), rpc_error(code, "limit")), backoff_ms=100)
    assert results({1: await client.call(1)}) == right(1)
    assert [at for _, _, at in client.network.posts] == pytest.approx([0.001, 0.202, 0.603], abs=0.01)
    client = await connect(rpc_error(code, "limit"), max_attempts=2)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).retryable) == ("RPC_ERROR", True)


# --- endpoints that fail ----------------------------------------------------------------------------------------


async def test_healthy_endpoints_take_turns(connect, autojump_clock):
    client = await connect(good, good, good)
    for number in range(6):
        await client.call(number)
    assert [host for host, _, _ in client.network.posts] == ["a", "b", "c"] * 2


@pytest.mark.parametrize(
    "trouble",
    [
        refused(),
        broken(),
        status(500),
        status(502),
        status(503),
        status(429),
        status(408),
        status(401),
        status(404),
    ],
)
async def test_a_request_fails_over_at_once_and_the_failing_endpoint_rests(connect, autojump_clock, trouble):
    client = await connect(script(trouble), good, backoff_ms=1000)
    assert results(await client.calls(1, 2)) == right(1, 2)
    assert [(host, at) for host, _, at in client.network.posts][:2] == [("a", 0.001), ("b", 0.002)]
    for number in range(3):
        await client.call(number)
    assert {host for host, _, _ in client.network.posts[1:]} == {"b"}
    await trio.sleep(1)
    client.network.posts.clear()
    for number in range(4):
        await client.call(number)
    assert sorted(host for host, _, _ in client.network.posts) == ["a", "a", "b", "b"]


async def test_with_one_endpoint_the_request_waits_out_its_rest_which_doubles(connect, autojump_clock):
    client = await connect(script(*[refused()] * 5), linger_ms=0, backoff_ms=100, max_backoff_ms=500)
    assert results({1: await client.call(1)}) == right(1)
    times = [at for _, _, at in client.network.posts]
    assert times == pytest.approx([0, 0.1, 0.3, 0.7, 1.2, 1.7], abs=0.001)


async def test_a_dead_endpoint_is_tried_by_one_request_at_a_time(connect, autojump_clock):
    """After the rest a single batch goes there, all else to the healthy one."""
    client = await connect(
        lambda h, b: refused(), good, backoff_ms=100, max_backoff_ms=100, delay_s=0.5, max_batch=1
    )
    for _ in range(3):
        await client.calls(*range(10))
    assert client.network.to("a").count(1) == len(client.network.to("a"))
    by_time = [at for host, _, at in client.network.posts if host == "a"]
    assert len(by_time) - 5 <= len(set(by_time))


async def test_failures_at_the_same_time_count_as_one(connect, autojump_clock):
    """Ten connections that break together make one rest of the base length, not one of 2^10 times it."""
    client = await connect(
        script(*[broken()] * 10), delay_s=1, backoff_ms=100, max_batch=1, max_connections=10, linger_ms=0
    )
    assert results(await client.calls(*range(10))) == right(*range(10))
    assert [at for _, _, at in client.network.posts][:11] == pytest.approx([0] * 10 + [1.1], abs=0.01)


async def test_retry_after_is_heeded_within_a_limit(connect, autojump_clock):
    client = await connect(script(status(429, **{"retry-after": "7"})), backoff_ms=10)
    assert results({1: await client.call(1)}) == right(1)
    assert client.network.posts[1][2] == pytest.approx(7, abs=0.01)
    client = await connect(
        script(status(503, **{"retry-after": "99999999"})), timeout_ms=10**7, attempt_timeout_ms=10**7
    )
    begun = trio.current_time()
    assert results({1: await client.call(1)}) == right(1)
    assert trio.current_time() - begun == pytest.approx(60, abs=1)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_another_retry_after_shortens_no_rest(connect, autojump_clock, value):
    client = await connect(script(status(429, **{"retry-after": value})), backoff_ms=100)
    await client.call(1)
    assert client.network.posts[1][2] == pytest.approx(0.1, abs=0.01)


async def test_after_max_attempts_the_request_is_given_up_with_the_last_trouble(connect, autojump_clock):
    client = await connect(lambda h, b: refused(), backoff_ms=1, max_attempts=3)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).retryable) == ("RPC_UNAVAILABLE", True)
    assert (
        problem(answer).message
        == "f: 3 attempts failed; the last: http://a: cannot connect: connection refused"
    )
    assert len(client.network.posts) == 3


async def test_the_time_out_ends_all_attempts_and_tells_the_last_trouble(connect, autojump_clock):
    client = await connect(lambda h, b: refused(), timeout_ms=2500, backoff_ms=1000)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).retryable) == ("IO_TIMEOUT", True)
    assert problem(answer).message == (
        "f: no answer within 2500 ms; the last trouble: http://a: cannot connect: connection refused"
    )
    assert trio.current_time() == pytest.approx(2.5, abs=0.01)


async def test_an_attempt_that_hangs_is_given_up_and_another_endpoint_is_asked(connect, autojump_clock):
    client = await connect(good, good, delay_s=20, attempt_timeout_ms=3000, max_attempts=2)
    answer = await client.call(1)
    assert problem(answer).message == "f: 2 attempts failed; the last: http://b: no response within 3000 ms"
    assert [(h, at) for h, _, at in client.network.posts] == [("a", 0.001), ("b", 3.002)]
    assert client.network.cut == 2


async def test_what_every_endpoint_refuses_for_good_is_no_longer_tried(connect, autojump_clock):
    client = await connect(status(401), status(403), max_attempts=50)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).retryable) == ("RPC_UNAVAILABLE", False)
    assert len(client.network.posts) == 2


async def test_a_single_request_that_is_refused_hurts_neither_the_endpoint_nor_others(
    connect, autojump_clock
):
    def behave(host: str, body: Any) -> Any:
        calls = body if isinstance(body, list) else [body]
        return httpx.Response(400) if any(c["params"] == [2] for c in calls) else good(host, body)

    client = await connect(behave, max_attempts=1)
    answers = await client.calls(*range(6))
    assert results({n: a for n, a in answers.items() if n != 2}) == right(0, 1, 3, 4, 5)
    assert (problem(answers[2]).kind, problem(answers[2]).retryable) == ("RPC_UNAVAILABLE", False)
    assert "http://a: HTTP status 400" in problem(answers[2]).message


async def test_a_valid_answer_counts_whatever_the_status(connect, autojump_clock):
    def behave(host: str, body: Any) -> Any:
        return httpx.Response(400, json=rpc_error(-32602, "invalid params")(host, body))

    client = await connect(behave)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).message) == ("RPC_ERROR", "f: error -32602: invalid params")


@pytest.mark.parametrize(
    "body",
    [b"<html>hello</html>", b"", b'{"id":1,"result":"\xff"}', b"[" * 100_000, b'{"id":777,"result":1}', b"5"],
)
async def test_a_body_that_answers_nothing_is_a_failure_of_the_endpoint(connect, autojump_clock, body):
    client = await connect(lambda h, b: httpx.Response(200, content=body), good, max_attempts=2)
    assert results({1: await client.call(1)}) == right(1)
    client = await connect(lambda h, b: httpx.Response(200, content=body), max_attempts=2)
    answer = await client.call(1)
    assert (problem(answer).kind, problem(answer).retryable) == ("RPC_BAD_RESPONSE", True)
    assert len(problem(answer).message) < 400


async def test_redirects_are_not_followed(connect, autojump_clock):
    client = await connect(status(302, location="http://b/"))
    assert "HTTP status 302" in problem(await client.call(1)).message
    assert client.network.to("b") == []


async def test_one_request_that_breaks_the_server_takes_no_others_with_it(connect, autojump_clock):
    def behave(host: str, body: Any) -> Any:
        calls = body if isinstance(body, list) else [body]
        return broken() if any(c["params"] == [13] for c in calls) else good(host, body)

    client = await connect(behave, max_batch=64, backoff_ms=1, max_attempts=10)
    answers = await client.calls(*range(64))
    assert results({n: a for n, a in answers.items() if n != 13}) == right(*(n for n in range(64) if n != 13))
    assert (problem(answers[13]).kind, problem(answers[13]).retryable) == ("RPC_UNAVAILABLE", True)


async def test_a_server_that_cannot_be_reached_makes_no_batch_smaller(connect, autojump_clock):
    client = await connect(script(*[refused()] * 6), max_batch=64, backoff_ms=1)
    await client.calls(*range(64))
    assert client.network.to("a") == [64] * 7


async def test_a_response_above_the_limit_is_asked_for_in_parts_and_alone_it_is_an_error(
    connect, autojump_clock
):
    def behave(host: str, body: Any) -> Any:
        return (
            [{"id": c["id"], "result": "x" * c["params"][0]} for c in body]
            if isinstance(body, list)
            else {
                "id": body["id"],
                "result": "x" * body["params"][0],
            }
        )

    client = await connect(behave, max_response_bytes=2000, max_batch=8, max_attempts=1)
    answers = await client.calls(600, 601, 602, 603, 604, 605, 606, 2000)
    assert {n: len(a.result) for n, a in answers.items() if a.result} == {n: n + 2 for n in range(600, 607)}
    assert (problem(answers[2000]).kind, problem(answers[2000]).retryable) == ("IO_ANSWER_TOO_LARGE", False)
    assert "more than 2000 bytes (io.rpc.max_response_bytes)" in problem(answers[2000]).message


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        (b"", "rpc.method: is missing"),
        (b"[]", "rpc: expected a JSON object, got []"),
        (b'{"method": 5}', "rpc.method: expected the name of a method, got 5"),
        (b'{"method": "f", "params": 5}', "rpc.params: expected a list or an object, got 5"),
        (b'{"method": "f", "prams": []}', "rpc.prams: unknown field: did you mean params?"),
        (b'{"method": "f", "params": ["\xff"]}', "rpc.params: not valid UTF-8"),
        (b'{"method": "f", "params": [1,]}', "rpc: not valid JSON"),
        (b'{"method": "f", "params": %b}' % (b"[" * 100_000), "rpc: not valid JSON: nested too deeply"),
    ],
)
async def test_a_bad_request_names_the_field_and_is_not_sent(connect, autojump_clock, request_text, message):
    client = await connect(good)
    answer = await client.backend.request("call", request_text)
    assert problem(answer).kind == "IO_BAD_REQUEST"
    assert problem(answer).message.startswith(message)
    assert client.network.posts == []


async def test_an_unknown_operation_names_those_there_are(connect, autojump_clock):
    client = await connect(good)
    answer = await client.call(1, op="cal")
    assert problem(answer).message == 'rpc has no operation "cal"; it has call and call_once'


async def test_a_request_that_nobody_waits_for_is_not_sent_and_cuts_its_http_request(
    connect, autojump_clock, nursery
):
    client = await connect(good, delay_s=10, max_connections=1, linger_ms=0)
    scopes = [trio.CancelScope() for _ in range(3)]

    async def one(number: int) -> None:
        with scopes[number]:
            await client.call(number)

    for number in range(3):
        nursery.start_soon(one, number)
        await trio.testing.wait_all_tasks_blocked(0.001)
    assert client.network.to("a") == [1]
    scopes[1].cancel()
    scopes[0].cancel()
    await trio.testing.wait_all_tasks_blocked(0.001)
    assert client.network.cut == 1
    assert [body["params"] for body in client.network.bodies] == [[0], [2]]


async def test_who_leaves_a_batch_cuts_nothing_while_others_wait(connect, autojump_clock):
    client = await connect(good, delay_s=1)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                with trio.move_on_after(0.5):
                    await client.call(1)

            nursery.start_soon(leave)
            assert results({2: await client.call(2)}) == right(2)
    assert not scope.cancelled_caught
    assert (client.network.to("a"), client.network.cut) == ([2], 0)


async def test_call_once_goes_alone_and_is_not_tried_again_once_a_server_may_have_it(connect, autojump_clock):
    client = await connect(good)
    await client.calls(1, 2, 3, op="call_once")
    assert client.network.to("a") == [1, 1, 1]
    for trouble in (broken(), status(500), httpx.ReadTimeout("")):
        client = await connect(script(trouble), good)
        answer = await client.call(1, op="call_once")
        assert problem(answer).message.startswith("f: the attempt failed; the last: http://a: ")
        assert len(client.network.posts) == 1


@pytest.mark.parametrize("trouble", [refused(), httpx.ConnectTimeout("slow"), status(429)])
async def test_call_once_is_tried_again_when_no_server_has_it(connect, autojump_clock, trouble):
    client = await connect(script(trouble), good)
    assert results({1: await client.call(1, op="call_once")}) == right(1)
    assert client.network.to("b") == [1]


async def test_only_call_may_be_shared(connect, autojump_clock):
    client = await connect(good)
    assert [client.backend.cacheable(op) for op in ("call", "call_once", "other")] == [True, False, False]


async def test_nothing_of_an_endpoint_but_its_host_is_shown(nursery, autojump_clock, caplog):
    network = Network({"a": status(500)})
    config = JsonRpcSettings(endpoints=["http://user:SECRET@a/SECRET?k=SECRET"], max_attempts=1)
    backend = make_rpc("rpc", config, lambda: 0.0, httpx.MockTransport(network.handle))
    with caplog.at_level("DEBUG"):
        await nursery.start(backend.run)
        answer = await backend.request("call", b'{"method":"f"}')
    assert problem(answer).message == "f: the attempt failed; the last: http://***@a/***: HTTP status 500"
    assert "SECRET" not in caplog.text
