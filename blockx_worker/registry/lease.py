"""LeaseMachine: when a worker registers, refreshes its lease, puts its value again, and waits.

Pure: it does not know etcd or the clock. Its owner asks for the next step, carries it out and tells the outcome as a
fact; ``now_ms`` is the owner's time. The rules:

* A lease is refreshed every third of its TTL, counted from when the refresh was *asked* for: etcd counts from no earlier.
* A refresh that answers with TTL 0 says that the lease is gone. That is no error to etcd, and easily taken for success.
* Whatever goes wrong means LOST: the next attempt follows at once, with a new connection and a new lease, at the next
  endpoint unless it was only the lease that had gone. Further failures in a row wait longer and longer.
* The value is put when it changed, at most once in ``put_interval_ms``, unless it is urgent.
* A key that is missing or belongs to another lease is put again. It may have been deleted by hand; or a put of ours that
  had timed out was carried out late, under a lease that is about to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

import attrs

from blockx_worker.registry.states import INITIAL_STATE, TRANSITIONS, LeaseMove, LeaseState

__all__ = [
    "AttemptStarted",
    "CallFailed",
    "Fact",
    "LeaseConfig",
    "LeaseMachine",
    "LeaseRefreshed",
    "Put",
    "Refresh",
    "Register",
    "Registered",
    "Step",
    "ValuePut",
    "Wait",
]


@attrs.frozen(kw_only=True)
class LeaseConfig:
    """Times in ms. ``endpoints`` is how many there are to choose from."""

    endpoints: int
    ttl_ms: int
    put_interval_ms: int
    first_backoff_ms: int = 100
    max_backoff_ms: int = 3000


# --- facts ------------------------------------------------------------------------------------------------------


@attrs.frozen
class AttemptStarted:
    """A connection is being opened to register."""


@attrs.frozen(kw_only=True)
class Registered:
    """The value was put under a new lease, asked for at ``asked_ms``; ``ttl_ms`` is what etcd granted."""

    asked_ms: int
    ttl_ms: int
    value: bytes


@attrs.frozen(kw_only=True)
class LeaseRefreshed:
    """The answer to a refresh asked for at ``asked_ms``; ``ttl_ms`` 0 = the lease is gone.

    ``held``: the key was there, under our lease.
    """

    asked_ms: int
    ttl_ms: int
    held: bool = True


@attrs.frozen
class ValuePut:
    """The value was put."""

    value: bytes


@attrs.frozen
class CallFailed:
    """A call failed, was refused or took too long."""


Fact: TypeAlias = AttemptStarted | Registered | LeaseRefreshed | ValuePut | CallFailed


# --- steps ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Register:
    """Open a connection to this endpoint (by index), get a lease and put the value."""

    endpoint: int


@attrs.frozen
class Refresh:
    """Refresh the lease, and look whether the key is there."""


@attrs.frozen
class Put:
    """Put the value."""


@attrs.frozen
class Wait:
    """Nothing is due before ``until_ms``."""

    until_ms: int


Step: TypeAlias = Register | Refresh | Put | Wait


class LeaseMachine:
    """The pure machine of one registration."""

    def __init__(self, config: LeaseConfig, jitter: Callable[[], float]) -> None:
        """``jitter`` gives numbers from 0 to 1."""
        self._config = config
        self._jitter = jitter
        self._state = INITIAL_STATE
        self._endpoint = 0
        self._failures = 0
        self._due_ms = 0  # of the next attempt, or of the next refresh
        self._put_due_ms = 0
        self._wanted = b""
        self._put: bytes | None = None

    @property
    def state(self) -> LeaseState:
        """The state."""
        return self._state

    @property
    def failures(self) -> int:
        """Failed attempts in a row."""
        return self._failures

    def want(self, value: bytes, *, urgent: bool = False) -> None:
        """This is what etcd should hold from now on; ``urgent``: without regard to the interval."""
        self._wanted = value
        if urgent:
            self._put_due_ms = 0

    def next_step(self, now_ms: int) -> Step:
        """What to do now."""
        if self._state is not LeaseState.REGISTERED:
            return Register(self._endpoint) if now_ms >= self._due_ms else Wait(self._due_ms)
        if now_ms >= self._due_ms:
            return Refresh()
        if self._wanted == self._put:
            return Wait(self._due_ms)
        return Put() if now_ms >= self._put_due_ms else Wait(min(self._due_ms, self._put_due_ms))

    def handle(self, fact: Fact, now_ms: int) -> None:
        """Take in what happened; KeyError for a fact that cannot follow in this state."""
        match fact:
            case AttemptStarted():
                self._move(LeaseMove.ATTEMPT_STARTED)
            case Registered(asked_ms=asked_ms, ttl_ms=ttl_ms, value=value):
                self._move(LeaseMove.REGISTERED)
                self._failures = 0
                self._refreshed(asked_ms, ttl_ms)
                self._now_holds(value, now_ms)
            case LeaseRefreshed(ttl_ms=ttl_ms) if ttl_ms <= 0:
                self._move(LeaseMove.LEASE_GONE)
                self._due_ms = now_ms
            case LeaseRefreshed(asked_ms=asked_ms, ttl_ms=ttl_ms, held=held):
                self._move(LeaseMove.REFRESHED)
                self._refreshed(asked_ms, ttl_ms)
                if not held:
                    self._put, self._put_due_ms = None, 0
            case ValuePut(value=value):
                self._move(LeaseMove.VALUE_PUT)
                self._now_holds(value, now_ms)
            case CallFailed():
                self._failed(now_ms)
            case _:
                assert_never(fact)

    def _failed(self, now_ms: int) -> None:
        self._endpoint = (self._endpoint + 1) % self._config.endpoints
        if self._state is LeaseState.REGISTERED:
            self._move(LeaseMove.CALL_FAILED)
            self._due_ms = now_ms
            return
        self._move(LeaseMove.ATTEMPT_FAILED)
        self._failures += 1
        self._due_ms = now_ms + self._backoff_ms()

    def _backoff_ms(self) -> int:
        longest = min(self._config.max_backoff_ms, self._config.ttl_ms // 3)
        doublings = min(self._failures - 1, 20)
        plain: int = min(longest, self._config.first_backoff_ms * 2**doublings)
        return round(plain * (1 - self._jitter() / 4))

    def _refreshed(self, asked_ms: int, ttl_ms: int) -> None:
        self._due_ms = asked_ms + ttl_ms // 3

    def _now_holds(self, value: bytes, now_ms: int) -> None:
        self._put = value
        self._put_due_ms = now_ms + self._config.put_interval_ms

    def _move(self, move: LeaseMove) -> None:
        self._state = TRANSITIONS[self._state, move]
