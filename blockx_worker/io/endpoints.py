"""Which of several JSON-RPC servers gets the next request. No network; the time (seconds) is an argument.

Healthy endpoints take turns. One that fails rests, each time in a row twice as long; then a single request tries it, and
only when that succeeds is it healthy again. So a dead endpoint costs one delayed request a rest, not one of every two.
A failure that was already on its way when the rest began makes it no longer.

An endpoint that refuses a batch gets smaller ones, for a while: the refusal may have been a passing one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from blockx_worker.config.redact import redact_endpoint

__all__ = ["Endpoint", "EndpointConfig", "Endpoints"]

SMALL_BATCHES_S = 60.0
MAX_REST_MS = 60_000
"""What a server may ask for at most (Retry-After)."""
JITTER = 0.25


@attrs.frozen(kw_only=True)
class EndpointConfig:
    """Rest after the first failure and at most, in ms; requests in one batch."""

    backoff_ms: int
    max_backoff_ms: int
    max_batch: int


@attrs.define(eq=False)
class Endpoint:
    """One server. ``name`` may be shown. ``rest_number`` rises with each rest."""

    url: str
    name: str
    max_batch: int
    failures: int = 0
    rest_until_s: float = 0.0
    rest_number: int = 0
    trying: bool = False
    small_until_s: float = 0.0


class Endpoints:
    """All endpoints of a back end; ``jitter`` yields numbers from 0 to 1."""

    def __init__(self, urls: Sequence[str], config: EndpointConfig, jitter: Callable[[], float]) -> None:
        self._config = config
        self._jitter = jitter
        self._round = [Endpoint(url, redact_endpoint(url), config.max_batch) for url in urls]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._round)

    def choose(self, now_s: float) -> Endpoint | None:
        """The next in turn that may be asked now; None while all rest or are being tried."""
        for index, endpoint in enumerate(self._round):
            if endpoint.rest_until_s <= now_s and not endpoint.trying:
                self._round.append(self._round.pop(index))
                endpoint.trying = endpoint.failures > 0
                if endpoint.small_until_s <= now_s:
                    endpoint.max_batch = self._config.max_batch
                return endpoint
        return None

    def next_end_s(self, now_s: float) -> float | None:
        """When the first rest ends; None if none does by itself."""
        return min((e.rest_until_s for e in self._round if e.rest_until_s > now_s), default=None)

    def answered(self, endpoint: Endpoint, rest_number: int) -> bool:
        """A request that began at `rest_number` was answered, well or badly; True if the endpoint is back by it."""
        if rest_number != endpoint.rest_number:
            return False
        back = endpoint.failures > 0
        endpoint.failures = 0
        endpoint.trying = False
        return back

    def failed(self, endpoint: Endpoint, rest_number: int, now_s: float, rest_ms: int | None = None) -> bool:
        """A request that began at `rest_number` failed; True if the endpoint was healthy until now.

        ``rest_ms``: the server asks for so long a rest.
        """
        if rest_number != endpoint.rest_number:
            return False
        own = min(self._config.backoff_ms << min(endpoint.failures, 20), self._config.max_backoff_ms)
        rest = max(own * (1 + JITTER * self._jitter()), min(rest_ms or 0, MAX_REST_MS))
        endpoint.failures += 1
        endpoint.rest_number += 1
        endpoint.rest_until_s = now_s + rest / 1000
        endpoint.trying = False
        return endpoint.failures == 1

    def given_up(self, endpoint: Endpoint, rest_number: int) -> None:
        """Nobody waits for a request any more: nothing is known of the endpoint."""
        if rest_number == endpoint.rest_number:
            endpoint.trying = False

    def refused_batch(self, endpoint: Endpoint, size: int, now_s: float) -> None:
        """A batch of so many requests was too many."""
        endpoint.max_batch = max(1, min(endpoint.max_batch, size // 2))
        endpoint.small_until_s = now_s + SMALL_BATCHES_S
