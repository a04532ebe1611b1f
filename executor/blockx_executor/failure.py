"""What is told about a call that failed: message, stack of user code, locals of the frame that failed.

Making such a report runs user code (``__str__``, ``__repr__``), which may raise, never end, or show what should stay
secret. So the report is filled step by step, in the call's greenlet, interruptible, with its own short limit: what is
there when the limit strikes is what is told. All text is bounded, and made such that UTF-8 can hold it.

Frames of the executor itself are left out. The locals are those of the innermost frame of function code; when the
failure lies deeper, in a library, that is still the frame that its author can change.
"""

from __future__ import annotations

import os
import re
import reprlib
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from blockx_executor.names import MODULE_PREFIX, public_text
from blockx_executor.sdk import RequestFailed, Retryable

__all__ = ["Failure", "fill_report"]

_OWN_FOLDER: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH120, PTH100 - pathlib is slow to import
_MAX_MESSAGE_CHARS: Final = 4_000
_MAX_STACK_CHARS: Final = 12_000
_MAX_LOCALS: Final = 24
_MAX_REPR_CHARS: Final = 300
_MAX_NAME_CHARS: Final = 80
_MASK: Final = "<masked>"
_SECRET_NAME: Final = re.compile(
    r"passw|pwd|secret|token|key|auth|credential|cookie|private|mnemonic|session", re.IGNORECASE
)
_SECRET_PAIR: Final = re.compile(
    r"""(\w*(?:passw|pwd|secret|token|key|auth|credential|cookie|private|mnemonic)\w*['"]?\s*[=:]\s*)"""
    r"""((?:bearer\s+|basic\s+)?(?:b?'[^']*'?|b?"[^"]*"?|[^\s,;)}\]]+))""",
    re.IGNORECASE,
)
_URL_LOGIN: Final = re.compile(r"(\w://)[^/@\s'\"]+@")


class Failure(msgspec.Struct):
    """Why a call failed, in the words of `CallFailedPayload`; filled step by step."""

    kind: str
    message: str
    retryable: bool = False
    error_type: str = ""
    stack: str = ""
    local_vars: dict[str, str] = {}

    def __post_init__(self) -> None:
        self.message = _bounded(self.message, _MAX_MESSAGE_CHARS)


def fill_report(failure: Failure, error: BaseException) -> None:
    """Fill ``failure`` with what is known about ``error``. Runs user code: call it where it may be interrupted."""
    failure.error_type = _bounded(type(error).__qualname__, _MAX_NAME_CHARS)
    failure.retryable = failure.kind == "USER_ERROR" and _is_retryable(error)
    failure.message = _bounded(public_text(failure.message or _message(error)), _MAX_MESSAGE_CHARS)
    failure.stack = _bounded(public_text(_stack(error)), _MAX_STACK_CHARS)
    frame = _failing_frame(error.__traceback__)
    if frame is not None:
        _fill_locals(failure.local_vars, frame)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, Retryable) or (isinstance(error, RequestFailed) and error.retryable is True)


def _message(error: BaseException) -> str:
    name = type(error).__qualname__
    if isinstance(error, SystemExit):
        return f"The function ended with SystemExit({error.code!r}); it must return a value instead."
    text = _guarded(lambda: str(error))
    return f"{name}: {text}" if text else name


def _stack(error: BaseException) -> str:
    report = traceback.TracebackException.from_exception(error, compact=True)
    for part in _chain(report):
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_OWN_FOLDER)]
    return "".join(report.format())


def _chain(report: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    if report is not None:
        yield report
        for part in (report.__cause__, report.__context__, *(report.exceptions or ())):
            yield from _chain(part)


def _failing_frame(trace: types.TracebackType | None) -> types.FrameType | None:
    """The innermost frame of function code; without one the innermost that is not of the executor."""
    function_frame = other_frame = None
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__")).startswith(MODULE_PREFIX):
            function_frame = frame
        elif not frame.f_code.co_filename.startswith(_OWN_FOLDER):
            other_frame = frame
        trace = trace.tb_next
    return function_frame or other_frame


def _fill_locals(into: dict[str, str], frame: types.FrameType) -> None:
    is_module = frame.f_locals is frame.f_globals
    for name, value in list(frame.f_locals.items()):
        if is_module and name.startswith("__"):
            continue
        if len(into) >= _MAX_LOCALS:
            into["…"] = "more locals are not shown"
            return
        into[_bounded(name, _MAX_NAME_CHARS)] = _MASK if _SECRET_NAME.search(name) else _shown(value)


def _shown(value: object) -> str:
    text = _guarded(lambda: _repr(value))
    text = _SECRET_PAIR.sub(rf"\1{_MASK}", public_text(text[: _MAX_REPR_CHARS * 4]))
    return _bounded(_URL_LOGIN.sub(rf"\1{_MASK}@", text), _MAX_REPR_CHARS)


def _guarded(make: Callable[[], str]) -> str:
    """The text of ``make``, or why there is none; a stop of the report itself passes."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        return f"<not shown: {type(error).__qualname__} raised while it was made>"


class _Repr(reprlib.Repr):
    """Bounded reprs; dict entries under a secret name are masked at any depth."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 12
        self.maxstring = self.maxother = 200
        self.maxlong = 100

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0 or not x:
            return "{...}" if x else "{}"
        shown = [
            self._entry(key, value, level)
            for key, value, _ in zip(x, x.values(), range(self.maxdict), strict=False)
        ]
        if len(x) > self.maxdict:
            shown.append("...")
        return "{" + ", ".join(shown) + "}"

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 10_000 else f"<int of {x.bit_length()} bits>"

    def repr_bytes(self, x: bytes, _level: int) -> str:
        return repr(x) if len(x) <= self.maxstring else f"{x[: self.maxstring // 4]!r}... ({len(x)} bytes)"

    def _entry(self, key: object, value: object, level: int) -> str:
        if isinstance(key, str) and _SECRET_NAME.search(key):
            return f"{self.repr1(key, level - 1)}: {_MASK}"
        return f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"


_repr = _Repr().repr


def _bounded(text: str, limit: int) -> str:
    """``text`` as UTF-8 can hold it, its middle cut out when it is longer than ``limit``."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
