"""Life and death of the process: start, heartbeats, load time-out, lost link, signals, dead parents."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from blockx_executor.wire import exit_codes
from blockx_executor.wire.framing import MAX_FRAME_BYTES
from blockx_executor.wire.version import VERSION
from tests.executor.driver import WAIT_S, ExecutorDriver, command, listening, module, running_executor

SIMPLE = module("""
    import os
    import signal
    import time

    def inc(i): return i + 1
    def nap(seconds): time.sleep(seconds)
    def spin():
        while True: pass
    def die(): os.kill(os.getpid(), signal.SIGKILL)
""")
SLOW_IMPORT = "import time\ntime.sleep(60)\ndef f(): pass\n"


def test_the_first_heartbeat_describes_the_process() -> None:
    """It comes by itself and at once."""
    with running_executor("--executor-max-inflight", "7", "--executor-max-runnable", "5") as executor:
        beat = executor.heartbeats[0].payload
        assert (beat.executor_id, beat.pid, beat.version) == ("exec-1", executor.pid, VERSION)
        assert (beat.inflight_count, beat.runnable_count, beat.available_contexts) == (0, 0, 5)
        assert beat.memory_bytes > 1_000_000
        assert beat.running_call_id is None


def test_heartbeats_go_on_while_a_call_runs(executor: ExecutorDriver) -> None:
    """They name the call, and the black box does too."""
    call = executor.execute(executor.define(SIMPLE), "spin")
    executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == call)
    beats = len(executor.heartbeats)
    executor.wait_for(lambda: len(executor.heartbeats) >= beats + 5)
    beat = executor.heartbeats[-1].payload
    assert (beat.running_call_id, beat.running_attempt_seq, beat.inflight_count) == (call, 1, 1)
    assert beat.running_for_ms > 0
    assert not beat.running_load
    reading = executor.blackbox()
    assert reading.call_no > 0
    assert 0 < reading.limit_ms <= 60_001
    executor.cancel(call)
    executor.failure(call)
    assert executor.blackbox().call_no == 0
    sequence = [each.payload.heartbeat_seq for each in executor.heartbeats]
    assert sequence == list(range(1, len(sequence) + 1))


def test_an_idle_executor_stays_alive_and_rests(executor: ExecutorDriver) -> None:
    """Only heartbeats, which cost almost nothing."""
    seen = len(executor.heartbeats)
    executor.wait_for(lambda: len(executor.heartbeats) >= seen + 2)
    before = executor.heartbeats[-1].payload.cpu_ms
    seen = len(executor.heartbeats)
    executor.wait_for(lambda: len(executor.heartbeats) >= seen + 10)
    assert executor.process.poll() is None
    assert executor.heartbeats[-1].payload.cpu_ms - before < 100


def test_loading_is_not_budgeted_and_says_so() -> None:
    """A budget far below the import's time; heartbeats and black box say loading meanwhile."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        source = "import time\ntime.sleep(0.3)\ndef f(): return 'done'\n"
        call = executor.execute(executor.define(source), "f", budget_ms=50)
        executor.wait_for(lambda: executor.heartbeats[-1].payload.running_load)
        reading = executor.blackbox()
        assert (reading.call_no, reading.limit_ms, reading.loading) == (1, 60_000, True)
        assert executor.value(call) == "done"
        assert executor.blackbox().call_no == 0


def test_a_cancel_while_loading_waits_for_its_end() -> None:
    """The import is not interrupted; the call never runs; the module is whole."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        source = (
            "import time\ntime.sleep(0.2)\nruns = []\ndef f():\n    runs.append(1)\n    return len(runs)\n"
        )
        digest = executor.define(source)
        call = executor.execute(digest, "f")
        executor.wait_for(lambda: executor.heartbeats[-1].payload.running_load)
        executor.cancel(call)
        assert executor.failure(call).payload.error_kind == "CANCELLED"
        assert executor.call(digest, "f") == 1
        assert len(executor.code_requests) == 1


def test_a_load_that_takes_too_long_ends_the_process() -> None:
    """The call is failed with function and time-out first."""
    with running_executor("--function-load-timeout-ms", "100") as executor:
        failure = executor.failure(executor.execute(executor.define(SLOW_IMPORT), "f")).payload
        assert failure.error_kind == "IMPORT_ERROR"
        assert "functions.f took longer than the function load time-out of 100 ms" in failure.error_message
        assert executor.wait_exit() == exit_codes.LOAD_TIMED_OUT
        assert "functions.f" in executor.stderr()


@pytest.mark.parametrize("entry", ["inc", "spin", "nap"])
def test_a_lost_link_ends_the_process(entry: str) -> None:
    """Idle, spinning or sleeping."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        digest = executor.define(SIMPLE)
        executor.call(digest, "inc", 1)
        if entry != "inc":
            call = executor.execute(digest, entry, *([60] if entry == "nap" else []))
            executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == call)
        executor.link.close()
        assert executor.wait_exit() == exit_codes.LINK_LOST
        assert "connection to the worker is lost" in executor.stderr()


@pytest.mark.parametrize("entry", ["inc", "spin", "nap"])
def test_sigterm_ends_the_process_at_once(entry: str) -> None:
    """Idle, spinning or sleeping: code 0."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        digest = executor.define(SIMPLE)
        executor.call(digest, "inc", 1)
        if entry != "inc":
            call = executor.execute(digest, entry, *([60] if entry == "nap" else []))
            executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == call)
        executor.process.send_signal(signal.SIGTERM)
        assert executor.wait_exit() == exit_codes.TERMINATED
        assert executor.stderr() == ""


def test_sigint_is_ignored(executor: ExecutorDriver) -> None:
    """Ctrl-C is the worker's affair; the fixture runs a call afterwards."""
    executor.process.send_signal(signal.SIGINT)
    assert executor.call(executor.define(SIMPLE), "inc", 1) == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "longer than the limit"),
        (b"\0\0\0\2{}", "is not a message"),
        (b"\0\0\0\3\xff\xfe\xfd", "is not a message"),
        (b'\0\0\0\x24{"messageType":"Unknown","callId":1}', "is not a message"),
    ],
)
@pytest.mark.parametrize("busy", [False, True])
def test_a_malformed_frame_ends_the_process_with_one_line(data: bytes, reason: str, busy: bool) -> None:
    """Whichever thread reads it."""
    with running_executor("--heartbeat-interval-ms", "20") as executor:
        if busy:
            call = executor.execute(executor.define(SIMPLE), "spin")
            executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == call)
        executor.link.sendall(data)
        assert executor.wait_exit() == exit_codes.MALFORMED_FRAME
        [line] = executor.stderr().splitlines()
        assert reason in line


def test_a_killed_executor_leaves_the_culprit_in_the_black_box() -> None:
    """The call that was running when the process ended."""
    with running_executor() as executor:
        digest = executor.define(SIMPLE)
        executor.call(digest, "inc", 1)
        executor.execute(digest, "die")
        assert executor.wait_exit() == -signal.SIGKILL
        assert executor.blackbox().call_no == 2


def test_it_exits_when_its_parent_is_another() -> None:
    """The worker ended between the start and the request for the parent-death signal."""
    result = subprocess.run(
        command(Path("/nowhere"), "--parent-pid", "1"), stderr=subprocess.PIPE, timeout=WAIT_S, check=False
    )
    assert result.returncode == exit_codes.PARENT_GONE
    assert b"the worker has ended" in result.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), b"--socket-path /nowhere"),
        (("--blackbox", "/nowhere"), b"--blackbox /nowhere"),
        (("--executor-max-inflight", "0"), b"0 is less than 1"),
    ],
)
def test_an_unusable_command_line_is_named(flags: tuple[str, ...], reason: bytes) -> None:
    """One sentence and code 2."""
    result = subprocess.run(
        command(Path("/nowhere"), *flags), stderr=subprocess.PIPE, timeout=WAIT_S, check=False
    )
    assert result.returncode == exit_codes.USAGE
    assert reason in result.stderr


SPAWNER = """
import json, subprocess, sys
command = json.loads(sys.argv[1])
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("entry", ["inc", "spin"])
def test_no_executor_outlives_its_parent(entry: str) -> None:
    """A process in between starts it and is killed with SIGKILL, while the link stays open."""
    with tempfile.TemporaryDirectory(prefix="bx-") as folder, listening(Path(folder) / "link") as listener:
        path = Path(folder) / "link"
        arguments = json.dumps(command(path, "--heartbeat-interval-ms", "20"))
        spawner = subprocess.Popen(
            [sys.executable, "-c", SPAWNER, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert spawner.stdout is not None
        assert spawner.stdin is not None
        link, _ = listener.accept()
        pidfd = os.pidfd_open(int(spawner.stdout.readline()))
        try:
            executor = ExecutorDriver(link, spawner, Path(folder))
            digest = executor.define(SIMPLE)
            executor.call(digest, "inc", 1)
            if entry == "spin":
                call = executor.execute(digest, "spin")
                executor.wait_for(lambda: executor.heartbeats[-1].payload.running_call_id == call)
            spawner.kill()
            assert select.select([pidfd], [], [], WAIT_S)[0] == [pidfd]
        finally:
            os.close(pidfd)
            link.close()
            spawner.kill()
            spawner.wait(WAIT_S)
            spawner.stdin.close()
            spawner.stdout.close()
