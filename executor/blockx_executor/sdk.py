"""What user functions may ask of the executor that runs them.

    from blockx_executor import sdk

    def poll(url):
        for _ in range(10):
            if ready(url):
                return True
            sdk.sleep(0.5)          # other calls run meanwhile
        raise sdk.Retryable("not ready yet")

All of it works in the call's own code only: not in threads, not in an asyncio loop, not while a module is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from blockx_executor.calls import BudgetExceeded, CallCancelled

__all__ = [
    "NO_CACHE_ATTRIBUTE",
    "BudgetExceeded",
    "CallCancelled",
    "CurrentCall",
    "Retryable",
    "Runtime",
    "attach",
    "current",
    "no_cache",
    "sleep",
]

NO_CACHE_ATTRIBUTE: Final = "__blockx_no_cache__"

_F = TypeVar("_F", bound=Callable[..., Any])


class Retryable(Exception):
    """Raise it, or a subclass, to say that another attempt of the same call may succeed."""


class CurrentCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call that asks.

    ``attempt`` counts from 1. ``remaining_budget_ms`` is what is left at the moment of asking, None without a budget.
    ``deadline_unix_ms`` is the end of the whole task, None when it has none.
    """

    task_id: str
    call_id: str
    function_id: str
    attempt: int
    remaining_budget_ms: int | None
    deadline_unix_ms: int | None


class Runtime(Protocol):
    """What the SDK needs of the executor."""

    def current(self) -> CurrentCall:
        """Describe the call that asks; RuntimeError when no call does."""

    def sleep(self, seconds: float) -> None:
        """Let the call that asks rest; RuntimeError when no call does."""


class _NoRuntime:
    """Outside an executor."""

    def current(self) -> CurrentCall:
        raise _not_in_an_executor("current")

    def sleep(self, seconds: float) -> None:  # noqa: ARG002 - the protocol's signature
        raise _not_in_an_executor("sleep")


_runtime: Runtime = _NoRuntime()


def attach(runtime: Runtime) -> None:
    """Connect the SDK with the executor of this process; done once, at its start."""
    global _runtime  # noqa: PLW0603 - functions of the SDK are called without an object to hold it
    _runtime = runtime


def current() -> CurrentCall:
    """The call that runs this code."""
    return _runtime.current()


def sleep(seconds: float) -> None:
    """Rest for ``seconds`` while other calls run; it counts as budget, and a cancel or the budget's end wakes it."""
    _runtime.sleep(seconds)


def no_cache(function: _F) -> _F:
    """Mark ``function`` as one whose results must not be shared between calls with equal arguments."""
    setattr(function, NO_CACHE_ATTRIBUTE, True)
    return function


def _not_in_an_executor(name: str) -> RuntimeError:
    return RuntimeError(f"sdk.{name}() works only inside a call that a BlockX executor runs.")
