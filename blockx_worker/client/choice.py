"""Which worker to ask first. Pure: time and randomness come in.

What the registry says of free slots is some hundred milliseconds old, so that many clients would all run to the same
worker. Therefore a client counts what it has offered itself a moment ago, and ties are broken by chance. A worker that
could not be reached comes last for a while: its key stays until its lease ends, with slots that look free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blockx_worker.registry.value import WorkerValue

__all__ = ["Chooser"]

OFFERED_S = 1.0
AVOIDED_S = 5.0


class Chooser:
    """One client's memory of what it did to which worker; times are seconds of any steady clock."""

    def __init__(self, rank: Callable[[], float]) -> None:
        """``rank`` gives numbers from 0 to 1."""
        self._rank = rank
        self._offered: dict[str, list[float]] = {}
        self._avoided: dict[str, float] = {}

    def in_order(self, workers: Iterable[WorkerValue], now_s: float) -> list[WorkerValue]:
        """Those to ask, best first; draining ones not at all, full ones last: they may have a place by now."""
        self._forget(now_s)
        asked = [worker for worker in workers if not worker.draining]
        return sorted(asked, key=lambda w: (w.address in self._avoided, -self._free(w), self._rank()))

    def offered(self, worker: WorkerValue, now_s: float) -> None:
        """The worker is asked to take a task."""
        self._offered.setdefault(worker.address, []).append(now_s)

    def unreachable(self, worker: WorkerValue, now_s: float) -> None:
        """The worker could not be reached."""
        self._avoided[worker.address] = now_s

    def _free(self, worker: WorkerValue) -> int:
        return max(0, worker.free_slots - len(self._offered.get(worker.address, ())))

    def _forget(self, now_s: float) -> None:
        kept = {a: [t for t in times if t > now_s - OFFERED_S] for a, times in self._offered.items()}
        self._offered = {address: times for address, times in kept.items() if times}
        self._avoided = {a: t for a, t in self._avoided.items() if t > now_s - AVOIDED_S}
