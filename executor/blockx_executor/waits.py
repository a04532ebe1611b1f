"""What a call asks of the worker while it waits, and how the answers come together.

One `Wait` may have several requests open at once (a gather); the call goes on when all of them are answered. Waiting is
free by itself: what a wait costs of the budget is what the answers say that was used, by a back end or a subcall. Things
that ran side by side are not charged twice: together they cost at most the time that passed, or the longest of them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from blockx_executor.wire.messages import CallError

__all__ = ["Answer", "IoRequest", "Request", "SubcallRequest", "Wait"]


class SubcallRequest(msgspec.Struct, frozen=True):
    """Call a function; ``args`` is the JSON text of an array."""

    function_id: str
    args: bytes


class IoRequest(msgspec.Struct, frozen=True):
    """Let a back end do ``op``; ``request`` is the JSON text of an object."""

    backend: str
    op: str
    request: bytes


Request: TypeAlias = SubcallRequest | IoRequest


class Answer(msgspec.Struct, frozen=True):
    """One of: JSON text in ``result``, raw bytes in ``sidecar``, ``error``."""

    result: msgspec.Raw
    sidecar: bytes | None = None
    error: CallError | None = None


class Wait(msgspec.Struct, eq=False):
    """``open`` leads from request id to position; ``answers`` is complete once it is empty."""

    started_ns: int
    open: dict[int, int]
    answers: list[Answer | None]
    used_ns: int = 0
    longest_ns: int = 0

    def take(self, request_id: int, answer: Answer, used_ns: int) -> None:
        """``answer`` is for the open request ``request_id``, and took ``used_ns`` of budget."""
        self.answers[self.open.pop(request_id)] = answer
        self.used_ns += used_ns
        self.longest_ns = max(self.longest_ns, used_ns)

    def charge_ns(self, now_ns: int) -> int:
        """What this wait has cost until now."""
        return min(self.used_ns, max(self.longest_ns, now_ns - self.started_ns))
