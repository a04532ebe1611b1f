"""Why an executor process ended, by its exit code; the worker turns the code into a sentence."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ENGINE_FAULT",
    "LINK_CLOSED_HERE",
    "LINK_LOST",
    "LOAD_TIMED_OUT",
    "MALFORMED_FRAME",
    "PARENT_GONE",
    "TERMINATED",
    "USAGE",
    "describe_exit_code",
]

TERMINATED: Final = 0
USAGE: Final = 2
LINK_LOST: Final = 3
MALFORMED_FRAME: Final = 4
PARENT_GONE: Final = 5
LINK_CLOSED_HERE: Final = 6
LOAD_TIMED_OUT: Final = 13
ENGINE_FAULT: Final = 70

_MEANINGS: Final = {
    TERMINATED: "it was told to stop (SIGTERM)",
    USAGE: "its command line or its socket was not usable",
    LINK_LOST: "its connection to the worker ended",
    MALFORMED_FRAME: "the worker sent a frame that it could not read",
    PARENT_GONE: "the process that started it was gone",
    LINK_CLOSED_HERE: "code that it ran closed its connection to the worker",
    LOAD_TIMED_OUT: "importing function code took longer than the function load time-out",
    ENGINE_FAULT: "of a fault in the executor itself; its standard error has the traceback",
}


def describe_exit_code(code: int) -> str | None:
    """What an executor means by exit code ``code``, as the end of a sentence; None for codes that are not ours."""
    return _MEANINGS.get(code)
