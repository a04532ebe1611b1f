"""The TCP port: TLS in all its wrong forms, limits on connections, and bytes that are no HTTP/2.

Whatever comes in, the log has no error, and whoever can be told is told.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import structlog
import trio
import trio.testing
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, RemoteSettingsChanged, ResponseReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from blockx_worker.client import (
    CallListCallConfig,
    Task,
    TlsFailed,
    WorkerClient,
    WorkerError,
    WorkerUnreachable,
    tls_context,
)
from blockx_worker.rpc import front_door, refusals
from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import Official, serving, status_of, with_official
from tests.support.certificates import Certificates

SETTINGS = bytes(3) + b"\x04" + bytes(5)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SHORT_S = 0.05


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """All lines of the server; none may look like a defect."""
    with structlog.testing.capture_logs() as lines:
        yield lines
    assert [line for line in lines if line["log_level"] not in ("debug", "info")] == []


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] == "info"]


async def official(address: str, credentials: grpc.ChannelCredentials | None = None) -> tuple[str, str]:
    """Status and message that the official client gets; ("OK", "") if it is answered."""

    def use(client: Official) -> tuple[str, str]:
        try:
            client.call("GetWorkerStatus")
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    return await with_official(address, use, credentials)


async def ours(address: str, tls: ssl.SSLContext | None = None) -> str:
    async with WorkerClient.connect(address, tls=tls) as client:
        return (await client.status()).address


# --- TLS ----------------------------------------------------------------------------------------------------------


async def test_tls_works_with_both_clients(certificates: Certificates, logs) -> None:
    async with serving(FakeWorkerApi(), tls=certificates.server_context()) as address:
        assert await official(address, certificates.channel_credentials()) == ("OK", "")
        await ours(address, certificates.client_context())
    assert logs == []


async def test_mutual_tls_works_with_both_clients(certificates: Certificates, logs) -> None:
    async with serving(FakeWorkerApi(), tls=certificates.server_context(mutual=True)) as address:
        assert await official(address, certificates.channel_credentials(certificates.client)) == ("OK", "")
        await ours(address, certificates.client_context(certificates.client))
    assert logs == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("identity", "told_1_3", "told_1_2", "logged"),
    [
        (
            None,
            "wants a client certificate",
            "maybe a client certificate",
            "peer did not return a certificate",
        ),
        (
            "strangers_client",
            "does not know the CA",
            "does not know the CA",
            "not signed by a CA in tls.client_ca",
        ),
        ("expired_client", "has expired", "has expired", "the client certificate has expired"),
    ],
)
async def test_mutual_tls_refuses_a_client_and_both_sides_hear_why(  # noqa: PLR0917  # pytest passes by name
    certificates: Certificates, logs, version, identity, told_1_3, told_1_2, logged
) -> None:
    shown = getattr(certificates, identity) if identity else None
    context = certificates.client_context(shown)
    context.maximum_version = version
    async with serving(FakeWorkerApi(), tls=certificates.server_context(mutual=True)) as address:
        with pytest.raises(TlsFailed) as caught:
            await ours(address, context)
        code, _ = await official(address, certificates.channel_credentials(shown))
    assert (told_1_3 if version is ssl.TLSVersion.TLSv1_3 else told_1_2) in caught.value.detail
    assert code == "UNAVAILABLE"
    assert events(logs) == ["connection_without_tls"]
    assert logged in logs[0]["reason"]


@pytest.mark.parametrize(
    ("server", "ca", "told", "official_told"),
    [
        ("server", "other_ca", "not signed by a CA in --tls-ca", "CERTIFICATE_VERIFY_FAILED"),
        ("expired_server", "ca", "the worker's certificate has expired", "certificate has expired"),
    ],
)
async def test_a_client_refuses_a_worker(  # noqa: PLR0917  # pytest passes by name
    certificates: Certificates, logs, server, ca, told, official_told
) -> None:
    identity, authority = getattr(certificates, server), getattr(certificates, ca)
    async with serving(FakeWorkerApi(), tls=certificates.server_context(identity)) as address:
        with pytest.raises(TlsFailed, match=told):
            await ours(address, certificates.client_context(ca=authority))
        code, message = await official(address, certificates.channel_credentials(ca=authority))
    assert code == "UNAVAILABLE"
    assert official_told in message


async def test_a_client_refuses_a_worker_of_another_name(certificates: Certificates, logs) -> None:
    async with serving(FakeWorkerApi(), tls=certificates.server_context(certificates.client)) as address:
        with pytest.raises(TlsFailed, match=r"IP address mismatch.*127\.0\.0\.1"):
            await ours(address, certificates.client_context())


async def test_plain_text_to_a_tls_port_is_refused_with_a_sentence(certificates: Certificates, logs) -> None:
    """And at once, though the official client would try a connection that just closes again and again."""
    async with serving(FakeWorkerApi(), tls=certificates.server_context()) as address:
        code, message = await official(address)
        with pytest.raises(WorkerError, match="takes TLS only"):
            await ours(address)
    assert (code, message) == (
        "UNAUTHENTICATED",
        "UNAUTHENTICATED: the worker's port takes TLS only; connect with TLS (--tls-ca F)",
    )
    assert events(logs) == ["connection_of_wrong_kind"]


async def test_tls_to_a_plain_port_is_refused_with_a_sentence(certificates: Certificates, logs) -> None:
    async with serving(FakeWorkerApi()) as address:
        with pytest.raises(TlsFailed, match="does not speak TLS; connect without"):
            await ours(address, certificates.client_context())
        code, message = await official(address, certificates.channel_credentials())
    assert code == "UNAVAILABLE"
    assert "WRONG_VERSION_NUMBER" in message
    assert events(logs) == ["connection_of_wrong_kind"]


async def test_old_tls_is_refused(certificates: Certificates, logs) -> None:
    context = tls_context(certificates.ca)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with serving(FakeWorkerApi(), tls=certificates.server_context()) as address:
        with pytest.raises(TlsFailed, match=r"TLS 1\.2 and newer"):
            await ours(address, context)


async def test_a_task_run_over_tls_is_not_tried_again_for_half_a_minute(
    certificates: Certificates, logs
) -> None:
    """A certificate does not get better by waiting."""
    async with serving(FakeWorkerApi(), tls=certificates.server_context(mutual=True)) as address:
        with pytest.raises(TlsFailed):
            async with WorkerClient.connect(address, tls=certificates.client_context()) as client:
                await client.run(Task(CallListCallConfig("f.f", [[1]])))


async def test_many_failed_handshakes_cost_one_line(certificates: Certificates, logs) -> None:
    async with serving(FakeWorkerApi(), tls=certificates.server_context()) as address:
        for _ in range(20):
            with pytest.raises(WorkerError):
                await ours(address)
    assert len(logs) == 1


# --- raw bytes ----------------------------------------------------------------------------------------------------


async def dial(address: str, tls: ssl.SSLContext | None = None) -> trio.abc.Stream:
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    return trio.SSLStream(stream, tls, server_hostname=host) if tls else stream


async def read_to_end(stream: trio.abc.Stream) -> bytes:
    data = b""
    try:
        while piece := await stream.receive_some(65_536):
            data += piece
    except trio.BrokenResourceError:
        pass  # a reset is an end too
    return data


class RawClient:
    """HTTP/2 without manners: it keeps no limit that the server names."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.h2 = H2Connection(H2Configuration(validate_outbound_headers=False, header_encoding=None))
        self.seen: list[Event] = []

    async def greet(self) -> None:
        self.h2.initiate_connection()
        await self.send()

    async def send(self) -> None:
        await self._stream.send_all(self.h2.data_to_send())

    def request(self, *more: tuple[str | bytes, str | bytes], path: str = "GetWorkerStatus") -> None:
        """Prepare one request without its body."""
        headers: list[Any] = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/blockx.worker.v1.WorkerService/{path}"),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *more,
        ]
        self.h2.send_headers(self.h2.get_next_available_stream_id(), headers)

    def forget_limits(self) -> None:
        """Send whatever comes to mind from now on."""
        self.h2.remote_settings.max_concurrent_streams = 1_000_000
        self.h2.remote_settings.acknowledge()

    async def until(self, kind: type[Event]) -> Any:
        """Read until an event of this kind."""
        while True:
            for event in self.seen:
                if isinstance(event, kind):
                    return event
            data = await self._stream.receive_some(65_536)
            assert data, f"closed; seen: {self.seen}"
            try:
                self.seen += self.h2.receive_data(data)
            except ProtocolError as error:
                raise AssertionError(self.seen) from error
            await self.send()


@asynccontextmanager
async def raw(address: str) -> AsyncIterator[RawClient]:
    async with await dial(address) as stream:
        client = RawClient(stream)
        await client.greet()
        yield client


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize(
    "sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"P", PREFACE[:10], PREFACE, b"\x00", b"GE"]
)
async def test_a_connection_without_a_greeting_is_closed_in_time(
    certificates: Certificates, logs, sent, secret
) -> None:
    """Whether nothing comes, or a part, before TLS or after."""
    tls = certificates.server_context() if secret else None
    async with serving(FakeWorkerApi(), tls=tls, handshake_timeout_s=SHORT_S) as address:
        async with await dial(address) as stream:
            if sent:
                await stream.send_all(sent)
            await read_to_end(stream)
        if secret:
            async with await dial(address, certificates.client_context()) as stream:
                await stream.send_all(sent)
                await read_to_end(stream)


async def test_a_slow_greeting_is_told_in_the_log(logs) -> None:
    async with (
        serving(FakeWorkerApi(), handshake_timeout_s=SHORT_S) as address,
        await dial(address) as stream,
    ):
        await stream.send_all(PREFACE)
        await read_to_end(stream)
    assert events(logs) == ["connection_too_slow"]
    assert "rpc.handshake_timeout_ms" in logs[0]["reason"]


async def test_a_connection_that_has_greeted_may_be_silent(logs) -> None:
    async with serving(FakeWorkerApi(), handshake_timeout_s=SHORT_S) as address, raw(address) as client:
        await client.until(RemoteSettingsChanged)
        await trio.sleep(3 * SHORT_S)
        client.request()
        client.h2.send_data(1, bytes(5), end_stream=True)
        await client.send()
        await client.until(ResponseReceived)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        b"SSH-2.0-x\r\n",
        PREFACE + b"\xff" * 20_000,
        PREFACE + SETTINGS + b"\x00\x00\x05\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff\xff",
    ],
)
async def test_bytes_that_break_the_rules_end_their_connection_alone(
    certificates: Certificates, logs, sent
) -> None:
    async with serving(FakeWorkerApi()) as address, WorkerClient.connect(address) as client:
        async with await dial(address) as stream:
            await stream.send_all(sent)
            await read_to_end(stream)
        await client.status()


async def test_header_bytes_that_are_no_ascii_end_their_connection_alone(logs) -> None:
    async with serving(FakeWorkerApi()) as address, WorkerClient.connect(address) as other:
        async with raw(address) as client:
            client.request((b"x-name", b"\xc3\xa9\xff"))
            await client.send()
            await client.until(ConnectionTerminated)
        await other.status()


async def test_a_connection_that_comes_and_goes_leaves_no_line(logs) -> None:
    """A load balancer looks whether the port is open every few seconds."""
    async with serving(FakeWorkerApi()) as address:
        for _ in range(3):
            await (await dial(address)).aclose()
        await ours(address)
    assert logs == []


# --- limits -------------------------------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_turned_away(logs) -> None:
    async with serving(FakeWorkerApi(), max_connections=2) as address:
        async with WorkerClient.connect(address) as first, WorkerClient.connect(address) as second:
            code, message = await official(address)
            assert code == "UNAVAILABLE"
            assert "the worker has 2 connections (rpc.max_connections)" in message
            with pytest.raises(WorkerError, match=r"rpc\.max_connections"):
                await ours(address)
            await first.status()
            await second.status()
        await _until_answered(address)
    assert events(logs) == ["too_many_connections"]


async def test_connections_beyond_the_limit_of_a_tls_port_are_closed(
    certificates: Certificates, logs
) -> None:
    async with serving(FakeWorkerApi(), max_connections=1, tls=certificates.server_context()) as address:
        context = certificates.client_context()
        async with WorkerClient.connect(address, tls=context):
            code, _ = await official(address, certificates.channel_credentials())
            assert code == "UNAVAILABLE"
            with pytest.raises(WorkerUnreachable):
                await ours(address, context)
        await _until_answered(address, context)
    assert events(logs) == ["too_many_connections"]


async def _until_answered(address: str, tls: ssl.SSLContext | None = None) -> None:
    """Places that were given back can be taken again."""
    while True:
        try:
            await ours(address, tls)
        except (WorkerError, WorkerUnreachable):
            await trio.sleep(0.01)
        else:
            return


async def test_silent_connections_count_until_they_are_closed(logs) -> None:
    """So an attacker cannot hold more than the limit, nor hold them for long."""
    async with serving(FakeWorkerApi(), max_connections=3, handshake_timeout_s=SHORT_S) as address:
        streams = [await dial(address) for _ in range(3)]
        await _until_answered(address)
        for stream in streams:
            await stream.aclose()


async def test_the_limit_of_concurrent_requests_is_announced_and_kept(logs) -> None:
    async with serving(FakeWorkerApi(), max_concurrent_streams=2) as address, raw(address) as client:
        while client.h2.remote_settings.max_concurrent_streams != 2:
            client.seen.clear()
            await client.until(RemoteSettingsChanged)
        client.request()
        client.request()
        await client.send()
        client.forget_limits()
        client.request()
        await client.send()
        ended = await client.until(ConnectionTerminated)
        assert ended.error_code == ErrorCodes.PROTOCOL_ERROR


async def test_clients_hold_requests_back_that_are_over_the_limit(logs) -> None:
    """Nothing fails: what is over the limit waits its turn."""
    async with (
        serving(FakeWorkerApi(), max_concurrent_streams=2) as address,
        WorkerClient.connect(address) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(20):
            nursery.start_soon(client.status)


async def test_headers_over_the_limit_are_refused_and_the_connection_goes_on(logs) -> None:
    large = (("x-large", "x" * 2000),)

    def use(client: Official) -> None:
        client.call("GetWorkerStatus")
        for _ in range(3):
            code, message = status_of(lambda: client.call("GetWorkerStatus", _metadata=large))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "the worker takes at most 1024 (rpc.max_header_bytes)" in message
        client.call("GetWorkerStatus")

    async with serving(FakeWorkerApi(), max_header_bytes=1024) as address:
        await with_official(address, use)


async def test_headers_far_over_the_limit_end_the_connection(logs) -> None:
    """They are not even decoded."""
    async with serving(FakeWorkerApi(), max_header_bytes=1024) as address, raw(address) as client:
        client.request(("x-large", "x" * 5000))
        await client.send()
        ended = await client.until(ConnectionTerminated)
        assert ended.error_code == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_frame_that_is_too_long_is_refused_before_it_is_there(logs) -> None:
    """Else a client could make the worker hold 16 MiB for each connection."""
    async with serving(FakeWorkerApi()) as address, await dial(address) as stream:
        await stream.send_all(PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(20_000))
        await read_to_end(stream)


async def test_the_header_limit_is_announced(logs) -> None:
    async with serving(FakeWorkerApi(), max_header_bytes=5000) as address, raw(address) as client:
        while client.h2.remote_settings.get(SettingCodes.MAX_HEADER_LIST_SIZE) != 5000:
            client.seen.clear()
            await client.until(RemoteSettingsChanged)


async def test_clients_that_are_turned_away_are_limited_too(
    certificates: Certificates, logs, monkeypatch
) -> None:
    """Beyond that they are cut off without a word."""
    monkeypatch.setattr(front_door, "MAX_LEAVING", 0)
    async with serving(FakeWorkerApi(), tls=certificates.server_context()) as address:
        with pytest.raises(WorkerUnreachable):
            await ours(address)


async def test_watchers_of_health_are_limited(logs) -> None:
    """Anybody may watch, and each costs a little all the time."""

    def use(client: Official) -> None:
        health, question = health_pb2_grpc.HealthStub(client.channel), health_pb2.HealthCheckRequest()
        watches = [health.Watch(question, timeout=10) for _ in range(2)]
        for watch in watches:
            next(watch)
        code, message = status_of(lambda: next(health.Watch(question, timeout=10)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "use Check" in message
        assert health.Check(question, timeout=10).status
        for watch in watches:
            watch.cancel()

    async with serving(FakeWorkerApi(), max_health_watchers=2) as address:
        await with_official(address, use)


# --- the log ------------------------------------------------------------------------------------------------------


async def test_of_each_kind_of_refusal_there_is_one_line_in_a_while(logs, autojump_clock) -> None:
    log = refusals.RefusalLog("test")
    for _ in range(3):
        log.refused("some_event", "10.0.0.1:1", "one reason")
        log.refused("some_event", "10.0.0.2:2", "another reason")
    await trio.sleep(refusals.INTERVAL_S)
    log.refused("some_event", "10.0.0.3:3", "one reason")
    assert [(line["peer"], line["reason"], line.get("more_like_this")) for line in logs] == [
        ("10.0.0.1:1", "one reason", None),
        ("10.0.0.2:2", "another reason", None),
        ("10.0.0.3:3", "one reason", 2),
    ]


async def test_what_the_log_remembers_is_limited(logs) -> None:
    log = refusals.RefusalLog("test")
    for number in range(3 * refusals.MAX_KINDS):
        log.refused("some_event", "10.0.0.1:1", f"reason {number}")
    assert len(log._kinds) <= refusals.MAX_KINDS


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [False, True])
async def test_the_server_stops_though_connections_stand_at_every_stage(
    certificates: Certificates, logs, secret
) -> None:
    tls = certificates.server_context() if secret else None
    silent, half_way, wrong_kind = b"", b"\x16\x03\x01" if secret else b"PRI", b"P" if secret else b"\x16"
    streams = []
    async with serving(FakeWorkerApi(), tls=tls) as address:
        for sent in (silent, half_way, wrong_kind):
            stream = await dial(address)
            await stream.send_all(sent)
            streams.append(stream)
        async with WorkerClient.connect(
            address, tls=certificates.client_context() if secret else None
        ) as client:
            await client.status()
            await trio.testing.wait_all_tasks_blocked(0.02)
    for stream in streams:
        await read_to_end(stream)
        await stream.aclose()
