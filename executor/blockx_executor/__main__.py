"""``python -m blockx_executor``: one executor process, started by the worker.

The order matters: first the parent-death signal, so that nothing below outlives the worker; the connection last, so
that the worker sees a process that can run calls.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Final

from blockx_executor import sdk
from blockx_executor.engine import Engine
from blockx_executor.inbox import Inbox
from blockx_executor.link import Link, LinkLost, MalformedFrame, leave
from blockx_executor.loader import Loader
from blockx_executor.mainthread import MainThread
from blockx_executor.monitor import Monitor
from blockx_executor.pulse import Pulse
from blockx_executor.scheduler import Scheduler
from blockx_executor.userlog import LogWriter, install_user_output
from blockx_executor.wire import exit_codes
from blockx_executor.wire.blackbox import BLACKBOX_BYTES, BlackBoxWriter

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1
_SWITCH_INTERVAL_S: Final = 0.001  # how late the monitor may be while Python code runs; the default is 5 ms

_MAIN_THREAD: Final = threading.get_ident()  # the thread that imports this, and runs all user code

_libc: Final = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str] | None = None) -> None:
    """Run one executor; never returns."""
    options = _parse(argv)
    _die_with_parent(options.parent_pid)
    os.register_at_fork(after_in_child=_die_with_executor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signum, _frame: os._exit(exit_codes.TERMINATED))
    faulthandler.enable(sys.__stderr__ or 2)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    engine = _build(options)
    gc.collect()
    gc.freeze()
    try:
        engine.run()
    except LinkLost as error:
        leave(exit_codes.LINK_LOST, f"The connection to the worker is lost: {error}.")
    except MalformedFrame as error:
        leave(exit_codes.MALFORMED_FRAME, str(error))
    except BaseException:  # noqa: BLE001 - a fault of ours; the worker replaces the process
        leave(exit_codes.ENGINE_FAULT, f"The engine failed.\n{traceback.format_exc()}")


def _build(options: argparse.Namespace) -> Engine:
    box = BlackBoxWriter(_page(options.blackbox))
    main_thread = MainThread()
    main_thread.install()
    link = Link(_connect(options.socket_path))
    log = LogWriter(main_thread, descriptor=1, lines_per_s=options.log_lines_per_s)
    scheduler = Scheduler(
        max_inflight=options.executor_max_inflight, max_runnable=options.executor_max_runnable
    )
    loader = Loader()
    inbox = Inbox(link=link, scheduler=scheduler, loader=loader)
    pulse = Pulse(executor_id=options.executor_id, link=link, main=main_thread, scheduler=scheduler)
    engine = Engine(
        link=link,
        main=main_thread,
        scheduler=scheduler,
        loader=loader,
        inbox=inbox,
        pulse=pulse,
        log=log,
        box=box,
        load_timeout_ms=options.function_load_timeout_ms,
    )
    sdk.attach(engine)
    install_user_output(log)
    Monitor(
        engine=engine,
        link=link,
        main=main_thread,
        inbox=inbox,
        pulse=pulse,
        log=log,
        heartbeat_ms=options.heartbeat_interval_ms,
        load_timeout_ms=options.function_load_timeout_ms,
    ).start()
    return engine


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="blockx_executor", description="One executor process of a BlockX worker."
    )
    parser.add_argument("--executor-id", required=True)
    parser.add_argument("--socket-path", required=True, help="Unix socket on which the worker listens")
    parser.add_argument("--executor-max-inflight", type=_at_least_one, default=128, help="calls held at once")
    parser.add_argument(
        "--executor-max-runnable", type=_at_least_one, default=128, help="calls ready to run at once"
    )
    parser.add_argument("--blackbox", help=f"file of {BLACKBOX_BYTES} zero bytes, shared with the worker")
    parser.add_argument("--parent-pid", type=int, help="exit at once if the parent is another process")
    parser.add_argument("--heartbeat-interval-ms", type=_at_least_one, default=500)
    parser.add_argument("--function-load-timeout-ms", type=_at_least_one, default=60_000)
    parser.add_argument(
        "--log-lines-per-s", type=_at_least_one, default=200, help="limit on lines of user output"
    )
    return parser.parse_args(argv)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _die_with_parent(parent_pid: int | None) -> None:
    """Ask for SIGKILL when the parent ends; it may have ended before the request, hence the comparison after it."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        leave(exit_codes.USAGE, f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}.")
    if parent_pid is not None and os.getppid() != parent_pid:
        leave(
            exit_codes.PARENT_GONE, f"The parent is {os.getppid()}, not {parent_pid}: the worker has ended."
        )


def _die_with_executor() -> None:
    """In a child that user code forked: the parent-death signal is not inherited, so ask for it again.

    It follows the *thread* that forked. One that user code started may end long before the child should, so its
    children get none: they end with the executor's session when the worker ends that, else live on as anywhere.
    """
    if threading.get_ident() == _MAIN_THREAD:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _page(path: str | None) -> memoryview:
    """The black box page: the shared file, or private memory when nobody wants to read it."""
    if path is None:
        return memoryview(bytearray(BLACKBOX_BYTES))
    try:
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib is slow to import
            return memoryview(mmap.mmap(file.fileno(), BLACKBOX_BYTES))
    except (OSError, ValueError) as error:
        leave(exit_codes.USAGE, f"--blackbox {path}: {error}; expected a file of {BLACKBOX_BYTES} bytes.")


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        leave(exit_codes.USAGE, f"--socket-path {path}: {error}.")
    return sock


if __name__ == "__main__":
    main()
