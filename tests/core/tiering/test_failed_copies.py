"""A tier may hold a block although its copy failed or ended late. The tier then deletes it."""

from __future__ import annotations

import pytest

from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import CopyEnd, Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, stored_of, tier, tier_bench
from tests.dataplane import factories as make

ENDS = [Outcome.FAILED, Outcome.LATE]


def shared(run: TierBench, number: int = 0) -> TierState:
    state = run.tiering.tiers[number]
    state.shared = True
    return state


def stored_all_the_same(run: TierBench, outcome: Outcome) -> None:
    """End the copies under way with a failure, although the tier has stored the blocks."""
    spills, run.spills = run.spills, []
    for job in spills:
        run.stores[0].update({block.name: stored_of(block) for block in job.blocks})
        run.end_copy(job, CopyEnd(outcome))


@pytest.mark.parametrize("outcome", ENDS)
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_block_whose_copy_failed_is_deleted(outcome: Outcome, is_shared: bool) -> None:
    run = tier_bench(8, tier())
    run.tiering.tiers[0].shared = is_shared
    run.engine.store(make.keys(4, "chain"), PAGE)
    run.begin()
    stored_all_the_same(run, outcome)
    assert (len(run.stores[0]), run.bench.faults()) == (4, []), "they wait to be deleted"
    run.begin()
    assert (run.stores[0], run.tiering.tiers[0].contents.used_bytes) == ({}, 0)


@pytest.mark.parametrize("outcome", ENDS)
def test_a_block_that_was_invalidated_during_a_copy_that_failed_is_deleted(outcome: Outcome) -> None:
    run = tier_bench(8, tier())
    state = shared(run)
    run.engine.store(make.keys(4, "chain"), PAGE, tenant="a")
    run.begin()
    run.invalidate(Scope(tenant="a"))
    stored_all_the_same(run, outcome)
    run.begin()
    assert (run.stores[0], state.deletions_left) == ({}, 0)


@pytest.mark.parametrize("outcome", ENDS)
def test_a_block_that_is_stored_again_is_not_deleted(outcome: Outcome) -> None:
    run = tier_bench(8, tier())
    shared(run)
    chain = make.keys(4, "chain")
    run.engine.store(chain, PAGE)
    run.begin()
    stored_all_the_same(run, outcome)
    run.tiering.spills.stored(list(run.bench.node.pool.table.blocks.values()))
    jobs = run.spill(run.tiering.tiers[0])
    assert len(jobs) == 4
    assert run.catalog.take_deletions(run.tiering.tiers[0]) == []
    for job in jobs:
        run.end_copy(job, CopyEnd(Outcome.OK))
    run.begin()
    assert len(run.stores[0]) == 4


@pytest.mark.parametrize("outcome", ENDS)
def test_a_block_of_another_tier_whose_copy_failed_is_deleted_in_the_target_alone(outcome: Outcome) -> None:
    run = tier_bench(8, tier("a"), tier("b", order=1, spill="off"))
    shared(run, 1)
    run.store(make.keys(4, "chain"))
    run.stores[1].update(run.stores[0])
    run.transferred = outcome
    state = run.begin_move("b", source="a")
    run.pass_time(0.05, times=4)
    assert (state.moved_blocks, len(run.stores[0]), len(run.stores[1])) == (0, 4, 0)


def test_a_tier_that_is_being_closed_or_is_full_deletes_nothing() -> None:
    run = tier_bench(8, tier())
    state = shared(run)
    run.engine.store(make.keys(4, "chain"), PAGE)
    run.begin()
    run.end_spills(Outcome.FULL, 2)
    state.closing = True
    run.end_spills(Outcome.FAILED)
    assert len(state.deletions) == 0
