"""The states of an engine's connection and of that to the holder, and when they are tried again."""

from __future__ import annotations

from itertools import product

import pytest

from dataplane.client.link_state import (
    EAGER_S,
    FIRST_RETRY_S,
    LAST_RETRY_S,
    TRANSITIONS,
    IllegalLinkTransition,
    LinkState,
    LinkStep,
    RetrySchedule,
    advance,
)
from dataplane.holding import connection_state as holder


def waits(retries: RetrySchedule, now: float, attempts: int) -> list[float]:
    """The waits after failed attempts in a row."""
    found = []
    for _ in range(attempts):
        retries.failed(now)
        wait = next(ms / 1000 for ms in range(1000) if retries.due(now + ms / 1000 + 1e-9))
        found.append(wait)
        now += wait
    return found


def test_every_state_can_be_dropped_and_closed_and_a_closed_one_stays_closed() -> None:
    for state in LinkState:
        assert advance(state, LinkStep.CLOSE) is LinkState.CLOSED
        after = LinkState.CLOSED if state is LinkState.CLOSED else LinkState.DETACHED
        assert advance(state, LinkStep.DROP) is after


def test_a_step_that_the_table_lacks_raises() -> None:
    for state, step in set(product(LinkState, LinkStep)) - TRANSITIONS.keys():
        with pytest.raises(IllegalLinkTransition, match=f"{step.name} of a connection in state {state.name}"):
            advance(state, step)


def test_a_connection_to_the_holder_can_always_be_ended_and_nothing_follows() -> None:
    for state in holder.HolderState:
        assert holder.advance(state, holder.HolderStep.END) is holder.HolderState.ENDED
    for step in (holder.HolderStep.CONNECT, holder.HolderStep.LOSE):
        with pytest.raises(holder.IllegalHolderTransition, match=f"{step.name} of a connection in state ENDED"):
            holder.advance(holder.HolderState.ENDED, step)


def test_a_holder_that_served_for_long_is_replaced_at_once_and_others_after_longer_and_longer_pauses() -> None:
    schedule, now = holder.ReplaceSchedule(), 1000.0
    for pause_s in (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        schedule.connected(now)
        schedule.lost(now)
        assert not schedule.due(now + pause_s - 0.1)
        assert schedule.due(now + pause_s)
    schedule.connected(now)
    schedule.lost(now + holder.MAX_PAUSE_S + 1)
    assert schedule.due(now + holder.MAX_PAUSE_S + 1)


def test_attempts_become_rarer_until_an_answer_comes() -> None:
    retries = RetrySchedule()
    assert retries.due(0.0)
    assert waits(retries, 1000.0, 6) == [0.02, 0.04, 0.08, 0.16, LAST_RETRY_S, LAST_RETRY_S]
    retries.answered()
    assert waits(retries, 2000.0, 1) == [FIRST_RETRY_S]


def test_after_a_loss_the_attempts_are_eager_for_a_time() -> None:
    retries = RetrySchedule()
    retries.attached()
    retries.lost(1000.0)
    assert retries.due(1000.0)
    assert waits(retries, 1000.0, 10) == [FIRST_RETRY_S] * 10
    assert max(waits(retries, 1000.0 + EAGER_S, 6)) == LAST_RETRY_S


def test_after_a_protocol_violation_they_are_not() -> None:
    retries = RetrySchedule()
    retries.violated()
    retries.lost(1000.0)
    assert not retries.due(1000.0)
    retries.attached()  # it may violate the protocol again
    assert waits(retries, 1001.0, 2) == [0.04, 0.08]
