"""The block's life: the table and nothing but the table."""

from itertools import product

import pytest

from dataplane.protocol.states import (
    STATE_BITS,
    STATE_MASK,
    TRANSITIONS,
    BlockStep,
    IllegalBlockTransition,
    State,
    advance,
)


def test_a_step_follows_the_table_or_raises() -> None:
    for state, step in product(State, BlockStep):
        control = 41 << STATE_BITS | state
        if (state, step) not in TRANSITIONS:
            with pytest.raises(IllegalBlockTransition, match=step.name):
                advance(control, step)
            continue
        after = advance(control, step)
        assert after & STATE_MASK == TRANSITIONS[state, step]
        gives_bytes_up = TRANSITIONS[state, step] is State.FREE
        assert after >> STATE_BITS == 41 + gives_bytes_up, "the incarnation grows exactly when bytes are given up"


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert {step for _, step in TRANSITIONS} == set(BlockStep)


@pytest.mark.parametrize("control", [5, 255, 7 << STATE_BITS | 9])
def test_a_control_word_in_an_unknown_state_takes_no_step(control: int) -> None:
    for step in BlockStep:
        with pytest.raises(IllegalBlockTransition):
            advance(control, step)


def test_the_incarnation_wraps_within_its_bits() -> None:
    last = (1 << 64) - (1 << STATE_BITS) | State.RESERVED
    assert advance(last, BlockStep.ABORT) == State.FREE
