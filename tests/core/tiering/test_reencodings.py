"""Blocks that a tier encodes again: what happens to their room, and to blocks that are gone when that ends."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.core.tiering import reencodings
from dataplane.protocol.control.moves import Move
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import CopyEnd, Outcome
from dataplane.protocol.tiers import Compress
from tests.core.tiering.tier_bench import HEADER, PAGE, TierBench, stored_size, tier, tier_bench
from tests.dataplane import factories as make

SMALL = HEADER + PAGE // 2


def encoded(blocks: int, budget_bytes: int, stored: Compress, target: Compress) -> TierBench:
    """A tier that holds blocks in one form, and whose record asks for another one."""
    run = tier_bench(64, tier())
    run.store(make.keys(blocks))
    (state,) = run.tiering.tiers
    for entry in list(state.contents.entries.values()):
        state.contents.add(entry.stored, SMALL, run.now, stored)
    state.spec = msgspec.structs.replace(state.spec, compress=target, budget_bytes=budget_bytes)
    state.contents.budget_bytes = budget_bytes
    return run


def begin(run: TierBench) -> tuple[list[reencodings.PlannedReencoding], reencodings.Reencoding]:
    run.tiering.moves.start(Move("n", Scope(), "disk", compress=True), run.now)
    for _ in range(20):
        run.bench.pass_time(0.05)
        if plans := run.tiering.moves.next_reencodings(run.tiering.tiers[0], run.now):
            return plans, plans[0].move
    raise AssertionError("nothing is encoded again")


@pytest.mark.parametrize("target", ["none", "zstd"])
def test_room_is_taken_for_blocks_that_become_larger(target: Compress) -> None:
    run = encoded(4, 2 * SMALL + 2 * stored_size(PAGE), "fp8", target)
    (state,) = run.tiering.tiers
    plans, move = begin(run)
    run.growths = [(state, plan) for plan in plans]
    assert run.faults() == []
    run.growths = []
    charge = stored_size(PAGE) - 1
    move.ended(plans, [CopyEnd(Outcome.OK, charge, target)] * len(plans), run.now)
    assert (move.state.moved_blocks, move.state.refused) == (2, {"budget": 2})


def test_a_block_that_was_forgotten_concurrently_is_deleted_again() -> None:
    run = encoded(2, 8 * stored_size(PAGE), "none", "zstd")
    (state,) = run.tiering.tiers
    plans, move = begin(run)
    run.tiering.forget(state, plans[0].stored.name)
    move.ended(plans, [CopyEnd(Outcome.OK, SMALL, "zstd")] * 2, run.now)
    run.begin()
    assert list(run.stores[0]) == [plans[1].stored.name]
    assert move.state.refused == {"gone": 1}


def test_blocks_are_chosen_some_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencodings, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.tiering.moves.start(Move("n", Scope(), "disk", compress=True), run.now)
    counts = []
    while state.ended_at is None:
        run.bench.pass_time(0.05)
        counts.append(state.blocks)
    assert (state.blocks, state.present_blocks) == (40, 40)
    assert {after - before for before, after in zip([0, *counts], counts, strict=False)} == {0, 10}


def test_a_cancelled_reencoding_leaves_the_remaining_blocks_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencodings, "BATCH_BLOCKS", 2)
    run = encoded(6, 8 * stored_size(PAGE), "none", "zstd")
    (state,) = run.tiering.tiers
    plans, move = begin(run)
    assert run.tiering.moves.cancel(move.state.number) is move.state
    assert (move.state.refused, move.state.ended_at) == ({"cancelled": 4}, None), "a batch is under way"
    assert run.tiering.moves.next_reencodings(state, run.now) == []
    move.ended(plans, [CopyEnd(Outcome.OK, SMALL, "zstd")] * 2, run.now)
    run.bench.pass_time(0.05)
    assert (move.state.moved_blocks, move.state.refused) == (2, {"cancelled": 4})
    assert move.state.ended_at is not None


def test_a_selection_that_is_cancelled_chooses_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencodings, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.tiering.moves.start(Move("n", Scope(), "disk", compress=True), run.now)
    while not state.blocks:
        run.bench.pass_time(0.05)
    run.tiering.moves.cancel(state.number)
    run.bench.pass_time(0.05)
    assert (state.blocks, state.cancelled, state.ended_at is None) == (10, True, False)
