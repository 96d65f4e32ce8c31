"""Blocks that a tier encodes again: what happens to their room, and to blocks that are gone when that ends."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.core.tiering import copies, reencodings
from dataplane.core.tiering.jobs import JobState, TierJob
from dataplane.protocol.control.moves import MoveState
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


def begin(run: TierBench) -> tuple[TierJob, MoveState]:
    """Begin a move, up to the point at which its first blocks are being stored."""
    state = run.begin_move(scope=Scope(), compress=True)
    for _ in range(20):
        run.bench.pass_time(0.05)
        if job := run.tiering.copies.next_from_tier(run.now):
            run.load_from_tier(job)
            job.to(JobState.STORING)
            return job, state
    raise AssertionError("nothing is encoded again")


@pytest.mark.parametrize("target", ["none", "zstd"])
def test_room_is_taken_for_blocks_that_become_larger(target: Compress) -> None:
    run = encoded(4, 2 * SMALL + 2 * stored_size(PAGE), "fp8", target)
    job, move = begin(run)
    run.copies = [job]
    assert run.faults() == []
    run.copies = []
    charge = stored_size(PAGE) - 1
    run.end_copy(job, CopyEnd(Outcome.OK, charge, target))
    run.bench.pass_time(0.05)
    assert (move.moved_blocks, move.refused) == (2, {"budget": 2})


def test_a_block_that_was_forgotten_concurrently_is_deleted_again() -> None:
    run = encoded(2, 8 * stored_size(PAGE), "none", "zstd")
    (state,) = run.tiering.tiers
    job, move = begin(run)
    gone, stays = [block.name for block in job.blocks]
    run.catalog.forget(state, gone)
    run.end_copy(job, CopyEnd(Outcome.OK, SMALL, "zstd"))
    run.begin()
    run.bench.pass_time(0.05)
    assert list(run.stores[0]) == [stays]
    assert move.refused == {"gone": 1}


def test_blocks_are_chosen_some_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencodings, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.begin_move(scope=Scope(), compress=True)
    counts = []
    while state.ended_at is None:
        run.bench.pass_time(0.05)
        counts.append(state.blocks)
    assert (state.blocks, state.present_blocks) == (40, 40)
    assert {after - before for before, after in zip([0, *counts], counts, strict=False)} == {0, 10}


def test_a_cancelled_reencoding_leaves_the_remaining_blocks_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BATCH_BLOCKS", 2)
    run = encoded(6, 8 * stored_size(PAGE), "none", "zstd")
    job, move = begin(run)
    assert run.tiering.moves.cancel(move.number) is move
    assert (move.refused, move.ended_at) == ({"cancelled": 4}, None), "a job is under way"
    assert run.tiering.copies.next_from_tier(run.now) is None
    run.end_copy(job, CopyEnd(Outcome.OK, SMALL, "zstd"))
    run.bench.pass_time(0.05)
    assert (move.moved_blocks, move.refused) == (2, {"cancelled": 4})
    assert run.tiering.copies.next_from_tier(run.now) is None
    assert move.ended_at is not None


def test_a_selection_that_is_cancelled_chooses_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencodings, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.begin_move(scope=Scope(), compress=True)
    while not state.blocks:
        run.bench.pass_time(0.05)
    run.tiering.moves.cancel(state.number)
    run.bench.pass_time(0.05)
    assert (state.blocks, state.cancelled, state.ended_at is None) == (10, True, False)
