"""What becomes of calls, whatever their neighbours do: killed executors, bad functions, output, limits."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

MIB = 2**20
CONFIG = """
tick_ms = 50
executor_restart_delay_ms = 20
executor_max_restarts = 1000
[dispatcher]
heartbeat_interval_ms = 100
[log]
user_lines_per_s = 100
"""
GOOD = """
import time

def slow_increment(i):
    time.sleep(0.0002)
    return i + 1

def increment(i):
    return i + 1
"""
BAD = """
import ctypes, logging, os, sys, threading, time

def raises(i):
    wallet = {"address": f"0x{i:040x}", "private_key": "4d5db4107d237df6"}
    api_token = "tok-5f2a"
    rows = list(range(1000))
    raise ValueError(f"no such row: {i}")

def raises_from(i):
    try:
        {}["missing"]
    except KeyError as error:
        raise LookupError("no price") from error

def exits(i):
    sys.exit("enough")

def recurses(i):
    return recurses(i + 1)

def wants_all_memory(i):
    return len(bytearray(1 << 62))

def interrupts(i):
    raise KeyboardInterrupt

def ends_the_process(i):
    os._exit(7)

def breaks_the_process(i):
    return ctypes.string_at(0)

def closes_everything(i):
    os.closerange(0, 4096)  # the executor keeps what it needs above the usual
    return i

def returns_nonsense(i):
    return {"rows": [1, {2, 3}]}

def returns_too_much(i):
    return "x" * (17 << 20)

def raises_what_cannot_be_shown(i):
    class Shy(Exception):
        def __str__(self):
            raise RuntimeError("never")
        __repr__ = __str__
    shy = Shy()
    raise shy

def leaves_threads(i):
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(30,), daemon=False).start()
    return i

def forks(i):
    if os.fork() == 0:
        raise SystemExit(3)
    return i

def prints_one_long_line(i):
    print("x" * (10 << 20))
    return i

def prints_many_lines(i):
    for n in range(200_000):
        print(f"{n:050}")
    return i

def writes_past_print(i):
    for _ in range(160):
        os.write(1, b"y" * 65_536)
    return i

def overwrites_its_black_box(i):
    arguments = open("/proc/self/cmdline").read().split("\\0")
    with open(arguments[arguments.index("--blackbox") + 1], "r+b") as page:
        page.write(b"nonsense" * 512)
    time.sleep(0.2)  # the worker looks at it every 50 ms
    return i

def environment(i):
    return dict(os.environ)

def talks(i):
    print("printed", i)
    print("to stderr", i, file=sys.stderr)
    print("unfinished", i, end="")
    logging.getLogger("mine").warning("logged %s", i)
    logging.getLogger("mine").debug("not shown")
    return i
"""
MODULES = {
    "good": GOOD,
    "bad": BAD,
    "needs": "import a_library_that_is_not_there\n\ndef f(i):\n    return i\n",
    "dies": "import os\nos._exit(9)\n\ndef f(i):\n    return i\n",
    "fails": "LIMIT = 1 / 0\n\ndef f(i):\n    return i\n",
    "broken": "def f(i:\n    return i\n",
}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    return start_worker(MODULES, config=CONFIG, env={"PRICE_FEED_TOKEN": "tok-77", "TZ": "UTC"})


def test_every_output_is_right_and_there_once_while_executors_are_killed(
    worker: WorkerProcess, client: OfficialClient
) -> None:
    """A SIGKILL that the worker did not send charges nobody: the three attempts of a call are enough."""
    n = 20_000
    over = threading.Event()
    killed: list[int] = []

    def kill_again_and_again() -> None:
        def gone() -> bool:
            return over.is_set() or killed[-1] not in worker.executor_pids()

        while len(killed) < 8 and not over.wait(0.02):
            attached = [
                executor.pid for executor in client.GetWorkerStatus().status.executors if executor.inflight
            ]
            if attached:
                killed.append(attached[len(killed) % len(attached)])
                os.kill(killed[-1], signal.SIGKILL)
                eventually(gone, what="it is gone")
                over.wait(0.2)

    killer = threading.Thread(target=kill_again_and_again)
    client.submit_calls("killed", "good.slow_increment", [[i] for i in range(n)])
    killer.start()
    try:
        result = client.wait("killed")
    finally:
        over.set()
        killer.join()
    assert state_name(result.state) == "SUCCEEDED"
    assert client.outputs("killed") == [i + 1 for i in range(n)]
    assert (result.statistic.calls_succeeded, result.statistic.calls_failed) == (n, 0)
    assert len(set(killed)) >= 5, "the task was over before enough executors had been killed"
    assert result.statistic.retries > 0


FAILING = [
    ("bad.raises", "USER_ERROR", "ValueError: no such row: 1"),
    ("bad.raises_from", "USER_ERROR", "LookupError: no price"),
    ("bad.exits", "USER_ERROR", "SystemExit('enough')"),
    ("bad.recurses", "USER_ERROR", "RecursionError"),
    ("bad.wants_all_memory", "USER_ERROR", "MemoryError"),
    ("bad.interrupts", "USER_ERROR", "KeyboardInterrupt"),
    ("bad.raises_what_cannot_be_shown", "USER_ERROR", "Shy"),
    ("bad.returns_nonsense", "OUTPUT_NOT_JSON", "rows"),
    ("bad.returns_too_much", "OUTPUT_TOO_LARGE", "bytes"),
    ("bad.ends_the_process", "EXECUTOR_LOST", "exit code 7"),
    ("bad.breaks_the_process", "EXECUTOR_LOST", "signal 11"),
    ("bad.closes_everything", "EXECUTOR_LOST", "exec-"),
    ("needs.f", "IMPORT_ERROR", "a_library_that_is_not_there"),
    ("fails.f", "IMPORT_ERROR", "division by zero"),
    ("dies.f", "EXECUTOR_LOST", "exit code 9"),
]


@pytest.mark.parametrize(("function", "kind", "text"), FAILING, ids=[case[0] for case in FAILING])
def test_a_bad_function_fails_alone_and_says_why(
    client: OfficialClient, function: str, kind: str, text: str
) -> None:
    task_id = f"{function}-bad"
    client.submit_calls(task_id, function, [[1]])
    client.submit_calls(f"{function}-good", "good.slow_increment", [[i] for i in range(500)])
    result = client.wait(task_id, timeout=30)
    assert (state_name(result.state), result.failure.code) == ("FAILED", "CALLS_FAILED")
    failure = result.failure
    assert (failure.error_kind, failure.call_id, failure.function_id) == (kind, f"{task_id}/0", function)
    assert failure.args_preview == "[1]"
    assert text in failure.message
    if kind == "USER_ERROR":
        assert "Traceback" in failure.stack
        assert f"in {function.partition('.')[2]}" in failure.stack
        assert "blockx_executor" not in failure.stack
        assert failure.locals["i"]
    if kind == "EXECUTOR_LOST":
        assert result.failed_calls[0].attempts == 3
    assert state_name(client.wait(f"{function}-good", timeout=30).state) == "SUCCEEDED"
    assert client.outputs(f"{function}-good") == [i + 1 for i in range(500)]


def test_a_failure_shows_the_locals_of_its_frame_without_secrets(client: OfficialClient) -> None:
    client.submit_calls("locals", "bad.raises", [[255]])
    failure = client.wait("locals").failure
    assert failure.locals["i"] == "255"
    assert failure.locals["api_token"] == "<masked>"
    assert failure.locals["wallet"] == "{'address': '0x" + f"{255:040x}" + "', 'private_key': <masked>}"
    assert len(failure.locals["rows"]) < 400
    assert "4d5db4107d237df6" not in str(failure)
    assert "tok-5f2a" not in str(failure)


def test_a_cause_is_part_of_the_stack(client: OfficialClient) -> None:
    client.submit_calls("cause", "bad.raises_from", [[1]])
    stack = client.wait("cause").failure.stack
    assert "KeyError: 'missing'" in stack
    assert "direct cause" in stack


def test_a_module_that_does_not_compile_is_named_and_the_others_serve(
    worker: WorkerProcess, client: OfficialClient
) -> None:
    client.submit_calls("broken", "broken.f", [[1]])
    failure = client.wait("broken").failure
    assert failure.code == "FUNCTION_NOT_FOUND"
    assert "broken.py" in failure.message
    [problem] = worker.log_events("function_problem", file="broken.py")
    assert problem["line"] == 1


def test_a_bad_call_among_good_ones_is_told_by_index(client: OfficialClient) -> None:
    """COLLECT_ALL: the good outputs keep their positions, null stands where a call failed."""
    client.submit_calls("collect", "good.increment", [[1], ["a"], [3], [None]], call_failure_policy=2)
    result = client.wait("collect")
    assert (state_name(result.state), result.failure.code) == ("FAILED", "CALLS_FAILED")
    assert [(call.index, call.error_kind) for call in result.failed_calls] == [
        (1, "USER_ERROR"),
        (3, "USER_ERROR"),
    ]
    assert client.outputs("collect") == [2, None, 4, None]


@pytest.mark.parametrize(
    "function",
    [
        "leaves_threads",
        "forks",
        "prints_one_long_line",
        "prints_many_lines",
        "writes_past_print",
        "overwrites_its_black_box",
    ],
)
def test_what_a_function_leaves_or_prints_harms_nobody(
    worker: WorkerProcess, client: OfficialClient, function: str
) -> None:
    before = worker.executor_pids()
    logged = len(worker.log())
    client.submit_calls(f"{function}-bad", f"bad.{function}", [[1], [2]], call_budget_ms=20_000)
    client.submit_calls(f"{function}-good", "good.slow_increment", [[i] for i in range(500)])
    assert state_name(client.wait(f"{function}-good").state) == "SUCCEEDED"
    assert state_name(client.wait(f"{function}-bad").state) == "SUCCEEDED"
    assert client.outputs(f"{function}-bad") == [1, 2]
    assert worker.executor_pids() == before
    assert len(worker.log()) - logged < 2 * MIB, "the log took all of it"


def test_output_of_functions_is_logged_with_task_and_call(
    worker: WorkerProcess, client: OfficialClient
) -> None:
    client.submit_calls("talk", "bad.talks", [[1], [2]])
    assert state_name(client.wait("talk").state) == "SUCCEEDED"

    def lines() -> set[tuple[Any, ...]]:
        events = worker.log_events("user_output", task_id="talk")
        return {(event["call_id"], event["stream"], event["text"]) for event in events}

    expected = {
        (f"talk/{i - 1}", stream, text.format(i))
        for i in (1, 2)
        for stream, text in [
            ("stdout", "printed {}"),
            ("stderr", "to stderr {}"),
            ("stdout", "unfinished {}"),
            ("logging", "mine: logged {}"),
        ]
    }
    eventually(lambda: lines() >= expected, what=f"{expected} in the log")
    assert lines() == expected
    assert {event["executor_id"] for event in worker.log_events("user_output", task_id="talk")} <= {
        "exec-0",
        "exec-1",
    }


def test_functions_see_only_the_environment_that_is_allowed(client: OfficialClient) -> None:
    client.submit_calls("environment", "bad.environment", [[1]])
    assert state_name(client.wait("environment").state) == "SUCCEEDED"
    [seen] = client.outputs("environment")
    assert seen["TZ"] == "UTC"
    assert not {name for name in seen if "TOKEN" in name or "BLOCKX" in name}


def test_a_frozen_executor_is_replaced_and_its_calls_run_elsewhere(start_worker: StartWorker) -> None:
    config = CONFIG.replace(
        "heartbeat_interval_ms = 100", "heartbeat_interval_ms = 50\nheartbeat_timeout_ms = 600"
    )
    worker = start_worker({"good": GOOD}, config=config)
    frozen = worker.executor_pids()[0]
    with OfficialClient(worker.address) as client:
        os.kill(frozen, signal.SIGSTOP)
        client.submit_calls("frozen", "good.increment", [[i] for i in range(1000)])
        assert state_name(client.wait("frozen", timeout=30).state) == "SUCCEEDED"
        assert client.outputs("frozen") == [i + 1 for i in range(1000)]
    assert frozen not in worker.executor_pids()
    assert "no heartbeat" in worker.log_events("executor_killed")[0]["reason"]
