"""The transition tables themselves."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from blockx_worker.core.states import (
    COMMITTING_STAGES,
    ENDED_STAGES,
    INITIAL_SLOT_STATE,
    INITIAL_STAGE,
    SLOT_TRANSITIONS,
    TASK_TRANSITIONS,
    VISIBLE,
    Move,
    SlotMove,
    SlotState,
    Stage,
)
from blockx_worker.model.tasks import ENDED_STATES


@pytest.mark.parametrize(
    ("table", "initial", "states", "moves"),
    [
        (SLOT_TRANSITIONS, INITIAL_SLOT_STATE, SlotState, SlotMove),
        (TASK_TRANSITIONS, INITIAL_STAGE, Stage, Move),
    ],
)
def test_every_state_is_reached_and_every_move_is_used(
    table: Mapping[tuple[StrEnum, str], StrEnum],
    initial: StrEnum,
    states: type[StrEnum],
    moves: type[StrEnum],
):
    reached = {initial}
    for _ in states:
        reached |= {after for (state, _), after in table.items() if state in reached}
    assert reached == set(states)
    assert {move for _, move in table} == set(moves)


def test_nothing_leads_out_of_an_end():
    assert not [state for state, _ in TASK_TRANSITIONS if state in (*ENDED_STAGES, Stage.RELEASED)]


def test_ends_never_interrupt_a_commit():
    for move in (Move.TIMED_OUT, Move.CANCELLED, Move.WATCH_GRACE_EXPIRED, Move.DRAIN_EXPIRED):
        for stage in COMMITTING_STAGES:
            assert TASK_TRANSITIONS[stage, move] is stage


def test_every_stage_is_visible_and_the_ended_ones_look_ended():
    assert set(VISIBLE) == set(Stage)
    assert {VISIBLE[stage][0] for stage in ENDED_STAGES} == ENDED_STATES
