"""Code that does to its process what it should not: the call fails or is contained, the next calls are well.

The fixture runs a call after each test, in the same process; tests that end their process start one of their own.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from blockx_executor.wire import exit_codes
from tests.executor.driver import WAIT_S, ExecutorDriver, module, running_executor

HOSTILE = module("""
    import concurrent.futures
    import gc
    import multiprocessing
    import os
    import resource
    import signal
    import subprocess
    import sys
    import threading
    import time

    from blockx_executor import sdk

    INTERRUPT = signal.SIGRTMIN + 6

    def inc(i): return i + 1
    def spin():
        while True: pass
    def nap(): time.sleep(60)
    def ask(): return sdk.io("store", "get")
    def limit(): return sys.getrecursionlimit()
    def state():
        return [
            sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), sys.gettrace() is None,
            sys.getprofile() is None, signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            getattr(signal.getsignal(signal.SIGTERM), "__module__", ""),
            getattr(signal.getsignal(INTERRUPT), "__module__", ""),
        ]

    # --- forks ---
    def fork_and_return():
        pid = os.fork()
        if pid == 0: return "the child"
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def fork_and_raise():
        pid = os.fork()
        if pid == 0: raise ValueError("in the child")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def fork_and_exit():
        pid = os.fork()
        if pid == 0: sys.exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def fork_and_use_the_sdk():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sdk.sleep(0)
            except RuntimeError as error:
                print("the child prints")
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return os.read(reader, 1000).decode()
    def fork_in_a_thread():
        codes = []
        def run():
            pid = os.fork()
            if pid: codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return codes
    def fork_and_leave():
        pid = os.fork()
        if pid == 0: time.sleep(60)
        return pid
    def fork_many():
        pids = []
        for _ in range(10):
            pid = os.fork()
            if pid == 0: return None
            pids.append(pid)
        return sorted({os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids})
    def square(x): return x * x
    def pool(method):
        with multiprocessing.get_context(method).Pool(2) as pool: return pool.map(square, range(5))
    def futures(method):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool: return list(pool.map(square, range(5)))
    def child_code(method):
        child = multiprocessing.get_context(method).Process(target=sys.exit, args=(5,))
        child.start()
        child.join()
        return child.exitcode
    def terminated_child():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join()
        return child.exitcode
    def run_command(): return subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout

    # --- signals ---
    def take_handlers():
        for number in (INTERRUPT, signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda *_: None)
    def ignore_signals():
        for number in (INTERRUPT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
    def block_signals(): signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    def then_spin(what):
        globals()[what]()
        spin()
    def then_nap(what):
        globals()[what]()
        while True: time.sleep(0.1)

    # --- the interpreter ---
    def change_everything():
        gc.disable()
        sys.setrecursionlimit(10 ** 6)
        sys.setswitchinterval(100)
        sys.settrace(lambda *_: None)
        sys.setprofile(lambda *_: None)
        take_handlers()
    def trace_and_rest():
        seen = []
        sys.settrace(lambda frame, *_: seen.append(frame.f_code.co_name))
        sdk.sleep(0.01)
        return "engine" in str(seen)
    def trace_that_raises():
        def trace(*_): raise ValueError("from the trace function")
        sys.settrace(trace)
    def trace_that_spins():
        def trace(*_):
            while True: pass
        sys.settrace(trace)
    def close_streams():
        sys.stdout.close()
        sys.stderr.close()
        sys.stdout.buffer.close()
        print("still there", flush=True)
    def recurse(): return recurse()
    def recurse_by_str():
        class Deep:
            def __str__(self): return str(Deep())
        return str(Deep())
    def recurse_far():
        sys.setrecursionlimit(10 ** 6)
        class Deep:
            def __init__(self, inner): self.inner = inner
            def __repr__(self): return repr([self.inner])
        deep = None
        for _ in range(10 ** 6): deep = Deep(deep)
        return len(repr(deep))
    def print_much():
        for _ in range(1000): print("x" * 10_000)
    def print_one(): print("x" * 10_000_000)
    def change_directory():
        os.chdir("/")
        1 / 0
    def no_memory(): return bytearray(1 << 60)

    # --- threads ---
    def leave_threads():
        def work():
            while True:
                sum(range(100))
                time.sleep(0.001)
        for _ in range(5): threading.Thread(target=work, daemon=True).start()
        threading.Thread(target=sys.exit).start()
        threading.Thread(target=lambda: 1 / 0).start()
    def bad_excepthook():
        def hook(args): raise RuntimeError("hook")
        old, threading.excepthook = threading.excepthook, hook
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        threading.excepthook = old
    def join_all():
        for thread in threading.enumerate():
            if thread is not threading.current_thread(): thread.join()
    def exit_in_thread():
        thread = threading.Thread(target=lambda: sys.exit(3))
        thread.start()
        thread.join()
        return "alive"

    # --- descriptors and ends ---
    def close_low(): os.closerange(3, 256)
    def close_all(): os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    def close_all_and_spin():
        close_all()
        spin()
    def close_standard():
        for fd in (0, 1, 2): os.close(fd)
        print("where does it go?")
        opened = [os.open("/dev/null", os.O_RDWR) for _ in range(3)]
        print("and this?")
    def kill_itself(): os.kill(os.getpid(), signal.SIGKILL)
    def terminate_itself():
        os.kill(os.getpid(), signal.SIGTERM)
        spin()
    def exit_at_once(): os._exit(9)
    def abort(): os.abort()
    def segfault():
        import ctypes
        ctypes.string_at(0)
""")


@pytest.fixture
def digest(executor: ExecutorDriver) -> str:
    return executor.define(HOSTILE)


@pytest.fixture
def own() -> Iterator[ExecutorDriver]:
    """An executor that the test may end."""
    with running_executor("--heartbeat-interval-ms", "50") as executor:
        yield executor


# --- forks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "args", "value"),
    [
        ("fork_and_return", [], 0),
        ("fork_and_raise", [], 1),
        ("fork_and_exit", [], 7),
        ("fork_in_a_thread", [], [0]),
        ("fork_many", [], [0]),
        ("pool", ["fork"], [0, 1, 4, 9, 16]),
        ("pool", ["spawn"], [0, 1, 4, 9, 16]),
        ("futures", ["forkserver"], [0, 1, 4, 9, 16]),
        ("child_code", ["fork"], 5),
        ("terminated_child", [], -signal.SIGTERM),
        ("run_command", [], "hello\n"),
    ],
)
def test_processes_of_the_call_work_and_end_apart(
    executor: ExecutorDriver, digest: str, entry: str, args: list[object], value: object
) -> None:
    """A child leaves where it would come back into the executor, and says nothing to the worker."""
    assert executor.call(digest, entry, *args) == value
    assert executor.call(digest, "inc", 1) == 2


def test_a_child_may_not_use_the_sdk_but_may_print(executor: ExecutorDriver, digest: str) -> None:
    """Its output carries the call."""
    call = executor.execute(digest, "fork_and_use_the_sdk")
    assert "sdk.sleep() was used in a forked process" in str(executor.value(call))
    assert ("the child prints", call) in [(line.text, line.call_id) for line in executor.log_lines()]


def test_a_fork_while_a_module_is_loaded_runs_no_call_twice(executor: ExecutorDriver) -> None:
    """The child ends with the import."""
    source = module("""
        import os
        pid = os.fork()
        if pid: status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def f(): return status
    """)
    assert executor.call(executor.define(source), "f") == 0


def test_no_child_outlives_its_executor(own: ExecutorDriver) -> None:
    """A child that sleeps, left by a call that ended."""
    pid = own.call(own.define(HOSTILE), "fork_and_leave")
    assert isinstance(pid, int)
    pidfd = os.pidfd_open(pid)
    try:
        own.process.kill()
        assert select.select([pidfd], [], [], WAIT_S)[0] == [pidfd]
    finally:
        os.close(pidfd)


def test_the_link_ends_with_the_executor_though_a_child_lives(own: ExecutorDriver) -> None:
    """A child holds no copy of it."""
    own.call(own.define(HOSTILE), "fork_and_leave")
    os.kill(own.pid, signal.SIGTERM)
    with pytest.raises((EOFError, ConnectionResetError)):
        own.wait_for(lambda: False)


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["take_handlers", "ignore_signals", "block_signals"])
@pytest.mark.parametrize("entry", ["then_spin", "then_nap"])
def test_a_call_that_takes_the_signals_is_stopped(
    executor: ExecutorDriver, digest: str, what: str, entry: str
) -> None:
    """The handlers are put back while it runs."""
    failure = executor.fail(digest, entry, what, budget_ms=60).payload
    assert failure.error_kind == "BUDGET_EXCEEDED"


@pytest.mark.parametrize("what", ["take_handlers", "ignore_signals", "block_signals"])
def test_the_next_call_is_stopped_as_ever(executor: ExecutorDriver, digest: str, what: str) -> None:
    """In the same batch, before the handlers were put back between calls."""
    calls = [
        executor.execute_message(digest, what),
        executor.execute_message(digest, "spin", budget_ms=60),
        executor.execute_message(digest, "inc", 1),
    ]
    executor.send(*calls)
    assert executor.value(calls[0].call_id) is None
    assert executor.failure(calls[1].call_id).payload.error_kind == "BUDGET_EXCEEDED"
    assert executor.value(calls[2].call_id) == 2


@pytest.mark.parametrize("what", ["take_handlers", "ignore_signals"])
def test_sigterm_still_ends_the_process(own: ExecutorDriver, what: str) -> None:
    """After a call that took it."""
    digest = own.define(HOSTILE)
    own.call(digest, what)
    own.call(digest, "inc", 1)
    own.process.terminate()
    assert own.wait_exit() == exit_codes.TERMINATED


# --- the interpreter --------------------------------------------------------------------------------------------


def test_what_a_call_changed_is_put_back(executor: ExecutorDriver, digest: str) -> None:
    """Recursion limit, switch interval, garbage collection, trace functions, handlers."""
    before = executor.call(digest, "state")
    assert isinstance(before, list)
    assert before[2:6] == [True] * 4
    assert executor.call(digest, "change_everything") is None
    assert executor.call(digest, "state") == before


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        ("recurse", "USER_ERROR", "RecursionError"),
        ("recurse_by_str", "USER_ERROR", "RecursionError"),
        ("trace_that_raises", "USER_ERROR", "from the trace function"),
        ("trace_that_spins", "BUDGET_EXCEEDED", "its budget"),
        ("change_directory", "USER_ERROR", "ZeroDivisionError"),
        ("no_memory", "USER_ERROR", "MemoryError"),
        ("join_all", "BUDGET_EXCEEDED", "its budget"),
    ],
)
def test_what_fails_fails_its_call_only(
    executor: ExecutorDriver, digest: str, entry: str, kind: str, message: str
) -> None:
    """In the same process."""
    failure = executor.fail(digest, entry, budget_ms=500).payload
    assert failure.error_kind == kind
    assert message in failure.error_message
    assert executor.call(digest, "state") == executor.call(digest, "state")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("trace_and_rest", False),
        ("close_streams", None),
        ("print_much", None),
        ("print_one", None),
        ("bad_excepthook", None),
        ("exit_in_thread", "alive"),
        ("close_low", None),
    ],
)
def test_what_does_no_harm_succeeds(executor: ExecutorDriver, digest: str, entry: str, value: object) -> None:
    """Ten megabytes of output, closed streams, an interpreter that traces, threads that exit."""
    assert executor.call(digest, entry) == value


def test_threads_that_stay_do_not_hold_up_others(own: ExecutorDriver) -> None:
    """Calls, budgets and heartbeats go on."""
    digest = own.define(HOSTILE)
    own.call(digest, "leave_threads")
    assert [own.call(digest, "inc", i) for i in range(50)] == list(range(1, 51))
    assert own.fail(digest, "spin", budget_ms=60).payload.error_kind == "BUDGET_EXCEEDED"


def test_closed_standard_streams_hold_up_nobody(own: ExecutorDriver) -> None:
    """Output goes on; what takes the numbers of the closed ones gets none of it."""
    digest = own.define(HOSTILE)
    own.call(digest, "close_standard")
    assert own.call(digest, "inc", 1) == 2
    assert [line.text for line in own.log_lines()] == ["where does it go?", "and this?"]


# --- ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("kill_itself", -signal.SIGKILL),
        ("terminate_itself", exit_codes.TERMINATED),
        ("exit_at_once", 9),
        ("abort", -signal.SIGABRT),
        ("segfault", -signal.SIGSEGV),
        ("close_all", exit_codes.LINK_CLOSED_HERE),
        ("close_all_and_spin", exit_codes.LINK_CLOSED_HERE),
    ],
)
def test_the_black_box_names_who_ended_the_process(own: ExecutorDriver, entry: str, code: int) -> None:
    """While another call waits."""
    digest = own.define(HOSTILE)
    own.call(digest, "inc", 1)
    own.execute(digest, "ask")
    own.wait()
    culprit = own.execute_message(digest, entry)
    own.send(culprit)
    assert own.wait_exit() == code
    assert own.blackbox().call_no == culprit.payload.call_no


def test_a_broken_link_is_blamed_on_nobody_when_it_may_have_been_anyone(own: ExecutorDriver) -> None:
    """Another call ran between the culprit and the next look at the link."""
    digest = own.define(HOSTILE)
    own.call(digest, "inc", 1)
    own.send(own.execute_message(digest, "close_all"), own.execute_message(digest, "inc", 1))
    assert own.wait_exit() == exit_codes.LINK_CLOSED_HERE
    assert own.blackbox().call_no == 0


def test_deep_recursion_fails_its_call_or_ends_its_process(own: ExecutorDriver) -> None:
    """By the version of Python; the black box names the call if the process ends."""
    digest = own.define(HOSTILE)
    culprit = own.execute_message(digest, "recurse_far", budget_ms=8000)
    own.send(culprit)
    try:
        failure = own.failure(culprit.call_id).payload
    except (EOFError, ConnectionResetError):
        assert own.wait_exit() == -signal.SIGSEGV
        assert own.blackbox().call_no == culprit.payload.call_no
    else:
        assert failure.error_kind in ("USER_ERROR", "BUDGET_EXCEEDED")
        assert own.call(digest, "limit") == 1000
