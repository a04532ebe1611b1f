"""The pure machine of a registration: given these facts, exactly these steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockx_worker.registry.lease import (
    AttemptStarted,
    CallFailed,
    LeaseConfig,
    LeaseMachine,
    LeaseRefreshed,
    Put,
    Refresh,
    Register,
    Registered,
    ValuePut,
    Wait,
)
from blockx_worker.registry.states import TRANSITIONS, LeaseState

TTL = 9000
CONFIG = LeaseConfig(endpoints=3, ttl_ms=TTL, put_interval_ms=500)


def machine(config: LeaseConfig = CONFIG) -> LeaseMachine:
    made = LeaseMachine(config, jitter=lambda: 0.0)
    made.want(b"v1")
    return made


def registered(now_ms: int = 0, config: LeaseConfig = CONFIG) -> LeaseMachine:
    made = machine(config)
    made.handle(AttemptStarted(), now_ms)
    made.handle(Registered(asked_ms=now_ms, ttl_ms=config.ttl_ms, value=b"v1"), now_ms)
    return made


def test_a_worker_registers_at_once_and_then_refreshes_every_third_of_the_ttl():
    lease = machine()
    assert lease.next_step(0) == Register(0)
    lease.handle(AttemptStarted(), 0)
    assert lease.state is LeaseState.REGISTERING
    lease.handle(Registered(asked_ms=0, ttl_ms=TTL, value=b"v1"), 10)
    assert lease.next_step(10) == Wait(3000)
    assert lease.next_step(3000) == Refresh()
    lease.handle(LeaseRefreshed(asked_ms=3000, ttl_ms=TTL), 3400)
    assert lease.next_step(3400) == Wait(6000), "counted from when it was asked for"


def test_the_ttl_that_etcd_grants_counts_not_the_one_asked_for():
    lease = machine()
    lease.handle(AttemptStarted(), 0)
    lease.handle(Registered(asked_ms=0, ttl_ms=2 * TTL, value=b"v1"), 0)
    assert lease.next_step(0) == Wait(6000)


def test_a_refresh_that_answers_ttl_0_is_a_lost_lease_and_the_same_endpoint_is_asked_for_a_new_one():
    lease = registered()
    lease.handle(LeaseRefreshed(asked_ms=3000, ttl_ms=0), 3001)
    assert lease.state is LeaseState.LOST
    assert lease.next_step(3001) == Register(0)


@pytest.mark.parametrize("due", [3000, 3500])
def test_a_failed_call_means_the_next_endpoint_at_once(due):
    lease = registered()
    lease.handle(CallFailed(), due)
    assert lease.state is LeaseState.LOST
    assert lease.next_step(due) == Register(1)


def test_failures_in_a_row_go_round_the_endpoints_and_wait_longer_up_to_a_limit():
    lease = machine()
    now, seen, pauses = 0, [], []
    for _ in range(8):
        step = lease.next_step(now)
        assert isinstance(step, Register)
        seen.append(step.endpoint)
        lease.handle(AttemptStarted(), now)
        lease.handle(CallFailed(), now)
        wait = lease.next_step(now)
        assert isinstance(wait, Wait)
        pauses.append(wait.until_ms - now)
        now = wait.until_ms
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1]
    assert pauses == [100, 200, 400, 800, 1600, 3000, 3000, 3000]
    lease.handle(AttemptStarted(), now)
    lease.handle(Registered(asked_ms=now, ttl_ms=TTL, value=b"v1"), now)
    lease.handle(CallFailed(), now)
    assert lease.next_step(now) == Register(0), "a success ends the row"


def test_no_pause_is_longer_than_a_third_of_the_ttl_and_jitter_only_shortens_it():
    lease = LeaseMachine(LeaseConfig(endpoints=1, ttl_ms=1500, put_interval_ms=500), jitter=lambda: 1.0)
    for _ in range(20):
        lease.handle(AttemptStarted(), 0)
        lease.handle(CallFailed(), 0)
    assert lease.next_step(0) == Wait(375)


def test_a_changed_value_is_put_at_most_once_an_interval():
    lease = registered()
    assert lease.next_step(100) == Wait(3000)
    lease.want(b"v2")
    assert lease.next_step(100) == Wait(500)
    lease.want(b"v3")
    assert lease.next_step(500) == Put()
    lease.handle(ValuePut(b"v3"), 510)
    assert lease.next_step(510) == Wait(3000)


def test_a_value_that_changed_back_meanwhile_is_not_put():
    lease = registered()
    lease.want(b"v2")
    lease.want(b"v1")
    assert lease.next_step(600) == Wait(3000)


def test_an_urgent_value_does_not_wait_for_the_interval():
    lease = registered()
    lease.want(b"draining", urgent=True)
    assert lease.next_step(1) == Put()


def test_the_refresh_goes_before_the_value():
    lease = registered()
    lease.want(b"v2")
    assert lease.next_step(3000) == Refresh()


def test_a_key_that_somebody_took_or_deleted_is_put_again_at_once():
    lease = registered()
    lease.handle(LeaseRefreshed(asked_ms=3000, ttl_ms=TTL, held=False), 3001)
    assert lease.state is LeaseState.REGISTERED
    assert lease.next_step(3001) == Put()


def test_while_unregistered_a_changed_value_starts_nothing():
    lease = machine()
    lease.handle(AttemptStarted(), 0)
    lease.handle(CallFailed(), 0)
    lease.want(b"v2", urgent=True)
    assert lease.next_step(0) == Wait(100)


@pytest.mark.parametrize("fact", [CallFailed(), ValuePut(b""), LeaseRefreshed(asked_ms=0, ttl_ms=1)])
def test_a_fact_that_cannot_follow_is_a_defect_of_the_owner(fact):
    with pytest.raises(KeyError):
        machine().handle(fact, 0)


FACTS = st.sampled_from(["ok", "fail", "gone", "taken", "change", "urgent", "sleep"])


@given(st.lists(FACTS, max_size=60))
def test_whatever_happens_there_is_always_a_next_step_and_a_held_lease_is_never_left_to_run_out(facts):
    """The owner carries out each step in no time; waiting never goes past the end of the lease."""
    lease, now, ends = machine(), 0, 0
    for number, fact in enumerate(facts):
        step = lease.next_step(now)
        good = fact not in ("fail", "gone")
        match step:
            case Wait(until_ms=until):
                if lease.state is LeaseState.REGISTERED:
                    assert until < ends
                if fact in ("change", "urgent"):
                    lease.want(str(number).encode(), urgent=fact == "urgent")
                else:
                    now = max(now + 1, until)
            case Register(endpoint=endpoint):
                assert 0 <= endpoint < 3
                lease.handle(AttemptStarted(), now)
                lease.handle(Registered(asked_ms=now, ttl_ms=TTL, value=b"x") if good else CallFailed(), now)
                ends = now + TTL
            case Refresh():
                assert now < ends
                ttl = 0 if fact == "gone" else TTL
                refreshed = LeaseRefreshed(asked_ms=now, ttl_ms=ttl, held=fact != "taken")
                lease.handle(CallFailed() if fact == "fail" else refreshed, now)
                ends = now + TTL
            case Put():
                lease.handle(ValuePut(lease._wanted) if good else CallFailed(), now)
    assert set(LeaseState) == {state for pair, after in TRANSITIONS.items() for state in (pair[0], after)}
