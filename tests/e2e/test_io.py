"""Calls that ask back ends: a real JSON-RPC server that is slow, says no and restarts; block tables; what it costs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.jsonrpc_server import JsonRpcServer, RpcFailure
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

BLOCK = 17173049
DELAY_S = 0.2
CONFIG = """
tick_ms = 50
[dispatcher]
heartbeat_interval_ms = 100
[io.rpc]
endpoints = ["{url}"]
{limits}
"""
FUNCTIONS = '''
import time
from blockx_executor import sdk

def balance(i):
    return int(sdk.rpc("eth_getBalance", [f"0x{i:040x}", "latest"]), 16)

def three_in_a_row(i):
    return [sdk.rpc("eth_getBlock", {"number": 3 * i + n})["params"]["number"] for n in range(3)]

def chain_and_own(i):
    return [sdk.rpc("eth_chainId"), sdk.rpc("eth_getCode", [i])["params"]]

def may_revert(i):
    try:
        return sdk.rpc("eth_call", [i])
    except sdk.IoFailed as error:
        return [error.kind, error.retryable, error.message]

def reverts(i):
    return sdk.rpc("eth_call", [i])

def rows(table, block):
    return sdk.table(table, block=block)

def missing(table, block):
    try:
        return sdk.table(table, block=block)
    except sdk.IoFailed as error:
        return [error.kind, error.message]

def nowhere(i):
    try:
        return sdk.io("ledger", "read", account=i)
    except sdk.IoFailed as error:
        return [error.kind, error.message]

def budget_left(requests):
    before = sdk.current().remaining_budget_ms
    for n in range(requests):
        sdk.rpc("eth_slow", [requests, n])
    return before - sdk.current().remaining_budget_ms

def asks_slowly(i):
    return sdk.rpc("eth_slow", [i])["params"]

def works_then_asks(i):
    """Holds the executor for a moment, so that all its neighbours wait in the queue."""
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
    return sdk.rpc("eth_quick", [i])["params"]

def quick(i):
    return i + 1
'''


def node(method: str, params: Any) -> Any:
    """The answers of the server."""
    if method == "eth_chainId":
        return "0x1"
    if method == "eth_getBalance":
        return hex(int(params[0], 16) * 10**60)
    if method == "eth_call" and params[0] % 2:
        raise RpcFailure(3, "execution reverted", {"reason": f"no money {params[0]}"})
    return {"method": method, "params": params}


@pytest.fixture(scope="module")
def server() -> Iterator[JsonRpcServer]:
    with JsonRpcServer(node) as server:
        yield server


@pytest.fixture(autouse=True)
def prompt(server: JsonRpcServer) -> Iterator[None]:
    """Each test says itself how slow the server is."""
    yield
    server.delay_s = 0


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, server: JsonRpcServer, ethereum_blocks: Path) -> WorkerProcess:
    """One executor: its calls can only wait side by side."""
    config = CONFIG.format(url=server.url, limits="")
    return start_worker({"io": FUNCTIONS}, config=config, executors=1, blocks=ethereum_blocks)


@pytest.fixture(scope="module")
def narrow(start_worker: StartWorker, server: JsonRpcServer) -> Iterator[OfficialClient]:
    """A worker whose back end takes two requests at a time."""
    config = CONFIG.format(url=server.url, limits="max_inflight = 2")
    worker = start_worker({"io": FUNCTIONS}, config=config, executors=1)
    with OfficialClient(worker.address) as client:
        yield client


def test_five_hundred_calls_wait_side_by_side_on_one_executor(
    client: OfficialClient, server: JsonRpcServer
) -> None:
    """One after the other they would wait 100 seconds. Values of 256 bits arrive exactly."""
    server.delay_s = DELAY_S
    started = time.monotonic()
    client.submit_calls("waiting", "io.balance", [[i] for i in range(500)])
    result = client.wait("waiting")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert time.monotonic() - started < 5
    assert client.outputs("waiting") == [i * 10**60 for i in range(500)]
    assert (result.statistic.io_requests, result.statistic.attempts) == (500, 500)


def test_a_server_that_restarts_in_the_middle_loses_nothing(
    worker: WorkerProcess, client: OfficialClient, server: JsonRpcServer
) -> None:
    server.delay_s = 0.05
    before = len(server.posts)
    client.submit_calls("restart", "io.three_in_a_row", [[i] for i in range(500)])
    eventually(lambda: len(server.posts) > before + 3, what="requests are under way")
    server.stop()
    eventually(lambda: worker.log_events("rpc_endpoint_failed"), what="the worker has noticed")
    server.start()
    result = client.wait("restart", timeout=30)
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("restart") == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(500)]
    assert result.statistic.retries == 0, "no call has noticed"


def test_equal_requests_of_a_task_reach_the_server_once(
    client: OfficialClient, server: JsonRpcServer
) -> None:
    """Those in flight share it, later ones find the answer; another task asks anew."""
    for n, task_id in enumerate(["once", "twice"], 1):
        client.submit_calls(task_id, "io.chain_and_own", [[i] for i in range(300)])
        result = client.wait(task_id)
        assert client.outputs(task_id) == [["0x1", [i]] for i in range(300)]
        assert result.statistic.io_requests == 600
        assert server.calls["eth_chainId", "[]"] == n
        assert server.calls["eth_getCode", "[7]"] == n


def test_an_error_of_one_method_is_an_exception_of_the_call_that_asked(client: OfficialClient) -> None:
    """The requests beside it in the same batch are answered."""
    client.submit_calls("errors", "io.may_revert", [[i] for i in range(100)])
    assert state_name(client.wait("errors").state) == "SUCCEEDED"
    for i, output in enumerate(client.outputs("errors")):
        if i % 2:
            kind, retryable, message = output
            assert (kind, retryable) == ("RPC_ERROR", False)
            assert "execution reverted" in message
            assert f"no money {i}" in message
        else:
            assert output["params"] == [i]


def test_an_error_that_the_code_lets_pass_fails_the_call_with_its_words(client: OfficialClient) -> None:
    client.submit_calls("reverts", "io.reverts", [[0], [1], [2]], call_failure_policy=2)
    result = client.wait("reverts")
    [failed] = result.failed_calls
    assert (failed.index, failed.error_kind) == (1, "USER_ERROR")
    assert "RPC_ERROR" in failed.message
    assert "execution reverted" in failed.message
    assert "in reverts" in result.failure.stack


@pytest.mark.parametrize("table", ["blocks", "logs", "transactions"])
def test_rows_of_a_table_arrive_as_they_are_stored(
    client: OfficialClient, ethereum_blocks: Path, table: str
) -> None:
    """Small answers inside the frame, large ones as raw bytes behind it."""
    client.submit_calls(f"rows-{table}", "io.rows", [[table, BLOCK]])
    result = client.wait(f"rows-{table}")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    [rows] = client.outputs(f"rows-{table}")
    stored = [json.loads(line) for line in (ethereum_blocks / f"{table}.jsonl").read_text().splitlines()]
    key = "number" if table == "blocks" else "block_number"
    assert rows == [row for row in stored if row[key] == BLOCK]
    assert (len(client.output_text(f"rows-{table}")) > 65_536) is (table != "blocks")


def test_what_is_not_there_is_an_exception_that_says_what_is(client: OfficialClient) -> None:
    client.submit_calls("missing", "io.missing", [["trades", BLOCK], ["logs", 5]])
    assert state_name(client.wait("missing").state) == "SUCCEEDED"
    [table, block] = client.outputs("missing")
    assert table[0] == "TABLE_NOT_FOUND"
    assert "trades" in table[1]
    assert block[0] == "BLOCK_NOT_FOUND"
    assert "it holds 17173049 to 17173050" in block[1]
    client.submit_calls("nowhere", "io.nowhere", [[1]])
    assert state_name(client.wait("nowhere").state) == "SUCCEEDED"
    [[kind, message]] = client.outputs("nowhere")
    assert kind == "IO_BACKEND_NOT_FOUND"
    assert "ledger" in message


def test_the_time_of_the_back_end_is_paid_from_the_budget(
    client: OfficialClient, server: JsonRpcServer
) -> None:
    server.delay_s = 0.1
    client.submit_calls("paid", "io.budget_left", [[1], [4]])
    client.wait("paid")
    [one, four] = client.outputs("paid")
    assert 100 <= one < 300
    assert 400 <= four < 900
    server.delay_s = 1
    client.submit_calls("over", "io.asks_slowly", [[1]], call_budget_ms=300)
    failure = client.wait("over").failure
    assert (failure.error_kind, failure.call_id) == ("BUDGET_EXCEEDED", "over/0")


def test_waiting_for_the_executor_is_free(client: OfficialClient) -> None:
    """A hundred neighbours hold it for 2 seconds altogether; the budget of each is a fraction of that."""
    client.submit_calls("queue", "io.works_then_asks", [[i] for i in range(100)], call_budget_ms=400)
    result = client.wait("queue")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("queue") == [[i] for i in range(100)]


def test_waiting_for_a_place_at_the_back_end_is_free(narrow: OfficialClient, server: JsonRpcServer) -> None:
    """Ten pairs of requests one after the other take longer than the budget of a call allows for one."""
    server.delay_s = 0.1
    narrow.submit_calls("places", "io.asks_slowly", [[i] for i in range(20)], call_budget_ms=500)
    result = narrow.wait("places")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert narrow.outputs("places") == [[i] for i in range(20)]


def test_a_cancelled_task_stops_waiting_and_late_answers_harm_nobody(
    client: OfficialClient, server: JsonRpcServer
) -> None:
    server.delay_s = 1
    before = len(server.posts)
    client.submit_calls("late", "io.asks_slowly", [[i] for i in range(300)])
    eventually(lambda: len(server.posts) > before, what="the server has been asked")
    client.CancelTask(task_id="late")
    assert state_name(client.wait("late", timeout=5).state) == "CANCELLED"
    server.delay_s = 0
    client.submit_calls("after", "io.asks_slowly", [[i] for i in range(300)])
    assert state_name(client.wait("after").state) == "SUCCEEDED"
    assert client.outputs("after") == [[i] for i in range(300)]
