"""Processes that user code makes out of this one.

A forked child is a copy of everything: of the link, of the engine in the middle of a call, of the handlers. It must
never speak to the worker nor write to the black box. So in the child the link is closed before any user code runs, the
SDK refuses, and where user code would return into the engine the child leaves by ``_exit``, with the code that a script
would have.

Its death signal is that of its parent, so that no child outlives the executor; not so in a thread, whose end would be
the death of the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from blockx_executor.link import Link
from blockx_executor.mainthread import INTERRUPT_SIGNAL, MainThread
from blockx_executor.userlog import LogWriter
from blockx_executor.wire import exit_codes

__all__ = ["install_fork_guard", "leave_child"]

_EXIT_CODES: Final = 256
_SIGNALS: Final = (signal.SIGTERM, INTERRUPT_SIGNAL)


def install_fork_guard(
    main: MainThread, link: Link, log: LogWriter, die_with_parent: Callable[[], object]
) -> None:
    """Have all that is said above done in every child; done once."""
    this = threading.local()  # threads may fork at the same time

    def before() -> None:
        # A signal that a child gets before its handlers are set would be lost in it.
        this.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        this.pid = os.getpid()

    def after_in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, this.mask)

    def after_in_child() -> None:
        main.forked = True
        link.abandon()
        log.start_anew()
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(INTERRUPT_SIGNAL, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, this.mask)
        if threading.get_ident() == main.ident:
            die_with_parent()
            if os.getppid() != this.pid:  # it ended before that
                os._exit(exit_codes.PARENT_GONE)

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


def leave_child(error: BaseException | None) -> NoReturn:
    """End a forked child whose user code has returned, or raised ``error``."""
    code = 0
    if isinstance(error, SystemExit):
        code = _exit_code(error)
    elif error is not None:
        code = 1
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) % _EXIT_CODES
    with contextlib.suppress(BaseException):
        print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1
