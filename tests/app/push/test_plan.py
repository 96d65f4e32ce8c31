"""The decisions of a push, without sockets and clocks."""

import pytest

from app.push.plan import MAX_OBSERVED, DesiredSnapshot, Push, PushMemory, Supersede, Wait, plan
from app.store import restore
from dataplane.protocol.observed import Observed

W = DesiredSnapshot("store", 5, "d5")
APPLIED = Observed(5, "d5", "store")
OLD = Observed(4, "d4", "store")


def test_a_node_in_sync_is_left_alone() -> None:
    assert plan(W, APPLIED, PushMemory(), 0) == Wait()


@pytest.mark.parametrize("observed", [None, OLD, Observed(5, "d5", "another"), Observed(9, "x", "another")])
def test_a_node_out_of_sync_is_pushed_to(observed: Observed | None) -> None:
    assert isinstance(plan(W, observed, PushMemory(), 0), Push)


def test_the_reason_is_shown() -> None:
    assert plan(W, None, PushMemory(), 0) == Push("joined")
    assert plan(W, OLD, PushMemory(acked=OLD, pushed=True), 0) == Push("change")
    assert plan(W, OLD, PushMemory(acked=APPLIED, pushed=True), 0) == Push("drift")
    assert plan(W, Observed(5, "xx", "store"), PushMemory(acked=APPLIED), 0) == Push("drift")
    other_labels = DesiredSnapshot("store", 5, "for others")
    assert plan(other_labels, APPLIED, PushMemory(acked=APPLIED), 0) == Push("change")


def test_pauses_grow_and_end() -> None:
    memory, pauses = PushMemory(), []
    for _ in range(10):
        memory.failed(100.0)
        pauses.append(memory.not_before - 100)
    assert pauses[:3] == [0.25, 0.5, 1.0]
    assert pauses[-1] == 15.0
    assert plan(W, OLD, memory, 101) == Wait(memory.not_before)
    assert plan(W, OLD, memory, memory.not_before) == Push("retry")


def test_a_nack_waits_for_another_generation_or_a_long_time() -> None:
    memory = PushMemory()
    memory.refused(W, 0)
    assert plan(W, OLD, memory, 1) == Wait(60)
    assert plan(W, OLD, memory, 60) == Push("retry")
    assert plan(DesiredSnapshot("store", 6, "d6"), OLD, memory, 1) == Push("change")
    assert plan(DesiredSnapshot("store", 5, "for others"), OLD, memory, 1) == Push("change")


def test_generation_0_wipes_no_node_but_arms_an_empty_one() -> None:
    empty = DesiredSnapshot("store", 0, "d0")
    assert plan(empty, Observed(7, "x", "another"), PushMemory(), 0) == Wait()
    assert plan(empty, None, PushMemory(), 0) == Push("joined")


def test_a_node_ahead_of_us_is_overtaken() -> None:
    assert plan(W, Observed(8, "x", "store"), PushMemory(), 0) == Supersede(8)


def test_a_generation_that_no_database_has_had_is_not_overtaken() -> None:
    assert plan(W, Observed(MAX_OBSERVED, "x", "store"), PushMemory(), 0) == Supersede(MAX_OBSERVED)
    assert MAX_OBSERVED < restore.MAX_NUMBER // 2 + 1, "a backup can be restored, and many changes follow"
    assert plan(W, Observed(MAX_OBSERVED + 1, "x", "store"), PushMemory(), 0) == Push("joined")
