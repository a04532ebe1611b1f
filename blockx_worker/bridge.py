"""The asyncio fence: everything that crosses between Trio and asyncio goes through here.

Both run on the one thread. `trio_asyncio` turns each asyncio callback into work of a Trio task, so that a synchronous
function of the Trio side may be called from an asyncio callback as it is; only what awaits has to cross.

Rules and traps:

* An exception that nobody retrieves in an asyncio callback ends the whole loop, and with it every connection, unless
  the loop has an exception handler. `open_loop` installs one: it counts, logs and carries on.
* Cancellation crosses both ways and always waits: cancelling the asyncio side cancels the Trio function and waits for
  its clean-up, and the other way round.
* An async context manager of the Trio side must be entered and left by one Trio function; carry the function across
  (`call_trio`), never the context manager.
* Never await asyncio's ``Server.wait_closed()`` inside a cancel scope: it does not come back when it is cancelled.
* Importing `trio_asyncio` changes asyncio's loop policy for the whole process, so nothing that a plain asyncio program
  imports may import this module at its top.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import structlog
import trio
import trio_asyncio

__all__ = [
    "BridgeStatistic",
    "call_trio",
    "clean_up_asyncio",
    "have_loop",
    "open_loop",
    "run_asyncio",
    "statistic",
]

T = TypeVar("T")

log = structlog.get_logger(__name__)


@attrs.define
class BridgeStatistic:
    """Counts since the start of the process."""

    callback_errors: int = 0


statistic = BridgeStatistic()


def have_loop() -> bool:
    """Whether an asyncio loop stands around the calling Trio task."""
    return trio_asyncio.current_loop.get() is not None


@asynccontextmanager
async def open_loop() -> AsyncIterator[None]:
    """Provide an asyncio loop to the body and to the tasks started in it; one that stands already is used.

    Leaving the body cancels what still runs on the loop and waits for it. An exception of the body comes out as it is,
    not inside the exception groups of the loop's own nurseries.
    """
    if have_loop():
        yield
        return
    body_error: BaseException | None = None
    try:
        async with trio_asyncio.open_loop() as loop:
            loop.set_exception_handler(_carry_on)
            try:
                yield
            except BaseException as error:
                body_error = error
                raise
    except BaseExceptionGroup as group:
        if body_error is None or _leaves(group) != _leaves(body_error):
            raise
    if body_error is not None:
        raise body_error


async def call_trio(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """From asyncio: run the Trio function to its end. Cancelling the caller cancels the function."""
    result: T = await trio_asyncio.trio_as_aio(function)(*args)
    return result


async def run_asyncio(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """From Trio: run the asyncio function to its end. Cancelling the caller cancels the function."""
    if not have_loop():
        raise RuntimeError(
            "no asyncio loop here; open one around this task with blockx_worker.bridge.open_loop()"
        )
    result: T = await trio_asyncio.aio_as_trio(function)(*args)
    return result


async def clean_up_asyncio(function: Callable[..., Awaitable[object]], *args: Any) -> None:
    """`run_asyncio` for clean-up that must happen in a cancelled scope too; ``function`` must not wait for a peer."""
    with trio.CancelScope(shield=True):
        await run_asyncio(function, *args)


def _leaves(error: BaseException) -> set[int]:
    """Which exceptions stand in ``error``, by identity; the loop copies groups, so those cannot be compared."""
    if isinstance(error, BaseExceptionGroup):
        return set().union(*map(_leaves, error.exceptions))
    return {id(error)}


def _carry_on(_loop: Any, context: dict[str, Any]) -> None:
    statistic.callback_errors += 1
    error = context.get("exception")
    if isinstance(error, trio.Cancelled):
        return
    log.error("asyncio_callback_failed", message=context.get("message", ""), exc_info=error)
