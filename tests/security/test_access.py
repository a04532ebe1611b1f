"""Tokens and scopes at the real server, with the official client: who may do what, and what the others are told."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from blockx_worker.client import CallListCallConfig, ErrorCode, Task, WorkerClient, WorkerError
from blockx_worker.client.core import ClientOptions
from blockx_worker.rpc.access import Gate
from blockx_worker.security.tokens import Scope, Token, TokenTable, digest_of
from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import Official, serving, status_of, with_official
from tests.support.certificates import Certificates

NOW_MS = 1_800_000_000_000
CONFIG = {"type": "CallListCallConfig"}


def token(name: str, *scopes: Scope, expires_ms: int | None = None) -> Token:
    return Token(
        name=name, digest=digest_of(f"{name}-token"), scopes=frozenset(scopes), expires_ms=expires_ms
    )


TABLE = TokenTable(
    (
        token("submitter", Scope.SUBMIT),
        token("reader", Scope.READ),
        token("admin", Scope.ADMIN),
        token("old", Scope.ADMIN, expires_ms=NOW_MS),
    )
)
GATE = Gate(lambda: TABLE, lambda: NOW_MS)

NEEDS: dict[tuple[str, bool], str] = {
    ("RequestTaskSlot", False): "submit",
    ("SubmitTask", False): "submit",
    ("CancelTask", False): "submit",
    ("WatchTasks", False): "submit",
    ("WatchTasks", True): "read",
    ("GetTaskResult", False): "read",
    ("GetWorkerStatus", False): "read",
}


def api() -> FakeWorkerApi:
    made = FakeWorkerApi()
    made.add("known")
    return made


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", text),)


def fields(method: str, observe: bool) -> dict[str, Any]:
    match method:
        case "WatchTasks":
            return {"task_ids": ["known"], "observe": observe}
        case "GetWorkerStatus":
            return {}
        case "SubmitTask":
            return {"task_id": "new", "function_call_config": CONFIG}
        case _:
            return {"task_id": "known"}


def ask(client: Official, method: str, observe: bool, metadata: Any) -> None:
    answer = client.call(method, _metadata=metadata, **fields(method, observe))
    if method == "WatchTasks":
        list(answer)


async def test_each_method_asks_for_its_scope() -> None:
    def use(client: Official) -> None:
        for (method, observe), needed in NEEDS.items():
            for name, scope in (("submitter", "submit"), ("reader", "read"), ("admin", "admin")):
                shown = bearer(f"Bearer {name}-token")
                if scope in (needed, "admin"):
                    ask(client, method, observe, shown)
                    continue
                code, message = status_of(partial(ask, client, method, observe, shown))
                assert code is grpc.StatusCode.PERMISSION_DENIED
                assert message == (
                    f"PERMISSION_DENIED: {method} needs a token with the scope {needed}; "
                    f"the token '{name}' has {scope}"
                )

    async with serving(api(), gate=GATE) as address:
        await with_official(address, use)


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ((), "this worker wants a token with every request, as metadata 'authorization: Bearer TOKEN'"),
        (bearer("Bearer not-known-here"), "not one that this worker knows"),
        (bearer("Bearer reader-toke"), "not one that this worker knows"),
        (bearer("Bearer old-token"), "the token 'old' expired at 2027-01-15 08:00 UTC"),
        (bearer("Basic cmVhZGVyLXRva2Vu"), "must be one 'Bearer TOKEN'"),
        (bearer("reader-token"), "must be one 'Bearer TOKEN'"),
        (bearer("Bearer "), "must be one 'Bearer TOKEN'"),
        (bearer("Bearer reader-token") * 2, "must be one 'Bearer TOKEN'"),
    ],
)
async def test_without_a_good_token_every_method_is_unauthenticated(metadata, told) -> None:
    def use(client: Official) -> None:
        for method, observe in NEEDS:
            code, message = status_of(partial(ask, client, method, observe, metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert message.startswith("UNAUTHENTICATED: ")
            assert told in message
            for _, shown in metadata:
                assert shown.split()[-1] == "Bearer" or shown.split()[-1] not in message

    worker = api()
    async with serving(worker, gate=GATE) as address:
        await with_official(address, use)
    assert list(worker.tasks) == ["known"]


async def test_the_scheme_is_read_as_http_says() -> None:
    async with serving(api(), gate=GATE) as address:
        await with_official(
            address, lambda client: ask(client, "GetWorkerStatus", False, bearer("bEARER  reader-token"))
        )


async def test_a_large_request_is_refused_before_its_body_is_taken_in() -> None:
    """Whoever has no token cannot make the worker hold megabytes."""

    def use(client: Official) -> None:
        config = {"type": "CallListCallConfig", "config": b"x" * 8_000_000}
        code, _ = client.refused("SubmitTask", task_id="t", function_call_config=config)
        assert code is grpc.StatusCode.UNAUTHENTICATED

    async with serving(api(), gate=GATE, max_request_bytes=1000) as address:
        await with_official(address, use)


async def test_health_is_open_and_reflection_is_for_readers() -> None:
    question = reflection_pb2.ServerReflectionRequest(list_services="")

    def use(client: Official) -> None:
        health = health_pb2_grpc.HealthStub(client.channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status
        assert next(health.Watch(health_pb2.HealthCheckRequest(), timeout=10)).status
        reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo

        def reflect(metadata: Any) -> list[Any]:
            return list(reflection(iter([question]), timeout=10, metadata=metadata))

        assert status_of(lambda: reflect(None))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (
            status_of(lambda: reflect(bearer("Bearer submitter-token")))[0]
            is grpc.StatusCode.PERMISSION_DENIED
        )
        assert reflect(bearer("Bearer reader-token"))[0].list_services_response.service

    async with serving(api(), gate=GATE) as address:
        await with_official(address, use)


async def test_the_official_token_credentials_work_over_tls(certificates: Certificates) -> None:
    async with serving(api(), gate=GATE, tls=certificates.server_context()) as address:
        good = certificates.channel_credentials(token="reader-token")
        assert await with_official(address, lambda client: client.call("GetWorkerStatus"), good)
        bad = certificates.channel_credentials(token="another-token")
        code, _ = await with_official(address, lambda client: client.refused("GetWorkerStatus"), bad)
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_our_client_shows_its_token_and_hears_why_it_is_refused() -> None:
    async with serving(api(), gate=GATE) as address:
        async with WorkerClient.connect(address, token="reader-token") as client:
            await client.status()
            with pytest.raises(WorkerError, match="needs a token with the scope submit") as caught:
                await client.cancel("known")
            assert caught.value.code is ErrorCode.PERMISSION_DENIED
        async with WorkerClient.connect(address, token="nobodys-token") as client:
            with pytest.raises(WorkerError, match="not one that this worker knows") as caught:
                await client.run(Task(CallListCallConfig("f.f", [[1]])))
            assert caught.value.code is ErrorCode.UNAUTHENTICATED
            assert "nobodys-token" not in str(caught.value)


async def test_a_token_that_is_taken_away_is_refused_from_then_on() -> None:
    table = [TABLE]
    async with (
        serving(api(), gate=Gate(lambda: table[0], lambda: NOW_MS)) as address,
        WorkerClient.connect(address, token="reader-token") as client,
    ):
        await client.status()
        table[0] = TokenTable()
        with pytest.raises(WorkerError, match="UNAUTHENTICATED"):
            await client.status()


def test_options_of_a_client_do_not_show_its_token() -> None:
    options = ClientOptions(token="the-token", metadata={"authorization": "Bearer the-token"})
    assert "the-token" not in repr(options)
