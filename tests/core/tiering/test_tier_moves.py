"""Moves from one tier to another: what is copied and released, and why the rest is not."""

from __future__ import annotations

import pytest

from dataplane.core.tiering import copies, move_chains
from dataplane.core.tiering.jobs import JobState
from dataplane.protocol.codes import Code
from dataplane.protocol.control.moves import MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import MoveEnded
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Outcome, StoredBlock
from tests.core.tiering.tier_bench import CHECKSUM, PAGE, TierBench, quota, tier, tier_bench
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused

DISK = tier()
S3 = tier("s3", spill="off", order=1)


def move(run: TierBench, scope: Scope | None = None, *, release: bool = False) -> MoveState:
    """Move blocks from the disk to S3, and return the result."""
    return run.move("s3", scope, release=release, source="disk")


def test_blocks_are_copied_without_memory_and_stay_where_they_were() -> None:
    run = tier_bench(256, DISK, S3)
    run.store(make.keys(200))
    run.evict_all()
    state = move(run)
    assert (state.blocks, state.moved_blocks, state.moved_bytes) == (200, 200, 200 * PAGE)
    assert (state.released_blocks, state.refused, state.source) == (0, {}, "disk")
    assert run.stores[1] == run.stores[0]
    assert run.transfer_batches == -(-200 // copies.BATCH_BLOCKS)
    assert not run.bench.node.pool.table.blocks, "nothing is loaded into memory"
    assert move(run).present_blocks == 200
    (ended, *_) = run.bench.events(MoveEnded)
    assert (ended.source, ended.tier, ended.moved) == ("disk", "s3", 200)


def test_released_blocks_leave_their_tier_and_no_other_blocks_do() -> None:
    run = tier_bench(64, DISK, S3)
    run.engine.store(make.keys(4, "mine"), PAGE, tenant="acme")
    run.store(make.keys(2, "other"))
    state = move(run, Scope(tenant="acme"), release=True)
    assert (state.moved_blocks, state.released_blocks, state.released_bytes) == (4, 4, 4 * PAGE)
    assert (len(run.stores[0]), len(run.stores[1]), run.held("acme", 1)) == (2, 4, 4)
    assert run.tiering.tiers[0].contents.evicted_blocks == 0


def test_blocks_of_guaranteed_pins_are_copied_and_stay() -> None:
    run = tier_bench(64, DISK, S3)
    chain = make.keys(4)
    run.store(chain)
    run.pins(make.pin("keep", chain[:1], strength="guaranteed"))
    state = move(run, release=True)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (4, 3, {"pinned": 1})


def test_blocks_of_an_unattached_space_are_moved_unless_a_model_is_given() -> None:
    run = tier_bench(64, DISK, S3)
    space = bytes.fromhex(Space("later").identity())
    run.hold(make.keys(2), space=Space("later"))
    assert move(run, Scope(model="later")).blocks == 0
    assert move(run, Scope(space=space.hex())).moved_blocks == 2


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LATE, Outcome.FULL])
def test_copies_that_fail_say_why_and_are_not_released(outcome: Outcome) -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    run.transferred = outcome
    state = move(run, release=True)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (0, 0, {outcome.value: 4})
    assert len(run.stores[0]) == 4


def test_blocks_that_the_source_lost_are_forgotten() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    run.stores[0].clear()
    assert move(run).refused == {"missing": 4}
    assert not run.tiering.tiers[0].contents.entries


def test_the_budget_and_the_quotas_of_the_target_apply() -> None:
    run = tier_bench(64, DISK, tier("s3", budget_blocks=3, spill="off", order=1))
    run.store(make.keys(5))
    state = move(run)
    assert len(run.stores[1]) == 3
    assert state.moved_blocks + sum(state.refused.values()) == 5
    run = tier_bench(64, DISK, S3)
    run.quotas(quota("acme", limit=0, name="s3"))
    run.store(make.keys(2), "acme")
    assert move(run, Scope(tenant="acme")).refused == {"limit": 2}


def test_an_invalidation_during_a_copy_deletes_it() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    run.begin_move("s3", source="disk")
    while not (job := run.tiering.copies.next_from_tier(run.now)):
        run.bench.pass_time(0.05)
    run.load_from_tier(job)
    job.to(JobState.STORING)
    run.invalidate(Scope(tenant=""))
    run.end_copy(job, CopyEnd(Outcome.OK))
    run.settle()
    assert run.stores == {0: {}, 1: {}}


def test_a_move_evicts_nothing_that_it_has_just_moved() -> None:
    run = tier_bench(64, DISK, tier("s3", budget_blocks=6, spill="off", order=1))
    run.store(make.keys(4, "old"), "other")
    move(run, Scope(tenant="other"), release=True)
    run.evict_all()
    run.bench.pass_time(10.0)
    run.store(make.keys(9), "acme")
    run.evict_all()
    state = move(run, Scope(tenant="acme"), release=True)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (6, 6, {"budget": 3})
    assert run.held("acme", 0) + run.held("acme", 1) == 9
    assert run.held("other", 1) == 0


def test_a_move_that_ends_early_stops_no_copy_of_another_move() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    early, late = (run.begin_move("s3", source="disk", deadline_s=seconds) for seconds in (1.0, 60.0))
    run.bench.pass_time(0.05, times=8)
    run.bench.pass_time(1.0)
    assert early.refused == {"late": 4}
    run.settle()
    run.bench.pass_time(0.05)
    assert (late.moved_blocks, late.refused) == (4, {})
    assert not run.tiering.tiers[1].watched


def test_a_block_that_is_being_deleted_is_copied_once_that_has_ended() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    move(run)
    disk = run.tiering.tiers[0]
    for entry in list(disk.contents.entries.values()):
        run.tiering.catalog.release(disk, entry)
    names = run.tiering.catalog.take_deletions(disk)
    assert len(names) == 4
    run.begin_move(source="s3")
    run.begin_move()
    for _ in range(20):
        run.bench.pass_time(0.05)
        assert run.tiering.copies.next_from_tier(run.now) is None
        assert run.spill(disk) == []
    run.stores[0].clear()
    run.tiering.catalog.deleted(disk, names[:1])
    run.settle()
    assert (len(run.stores[0]), len(disk.contents)) == (4, 4)


def test_a_block_of_a_size_that_no_block_has_is_not_copied() -> None:
    run = tier_bench(8, DISK, S3)
    space = bytes.fromhex(Space("later").identity())
    large = StoredBlock(BlockName(space, make.keys(1)[0]), "", 1, 9 * PAGE, CHECKSUM, b"")
    run.restore([large])
    assert move(run).refused == {"size": 1}


@pytest.mark.parametrize("chain_blocks", [1, 50])
def test_a_selection_looks_at_a_bounded_number_of_blocks_in_each_step(
    monkeypatch: pytest.MonkeyPatch, chain_blocks: int
) -> None:
    run = tier_bench(256, DISK)
    for number in range(200 // chain_blocks):
        run.store(make.keys(chain_blocks, number))
    monkeypatch.setattr(move_chains, "MAX_STEP_BLOCKS", 50)
    selection = move_chains.ChainSelection(run.catalog, Scope(tenant=""))
    most, more = 0, True
    while more:
        before = selection.blocks
        more = selection.step()
        most = max(most, selection.blocks - before)
    assert (selection.blocks, most) == (200, 50)


def test_a_tier_out_of_service_refuses() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    run.tiering.tiers[1].serves = False
    assert move(run).refused == {"away": 4}


def test_a_source_that_is_removed_ends_the_move() -> None:
    run = tier_bench(64, DISK, S3)
    run.store(make.keys(4))
    state = run.begin_move("s3", source="disk")
    while run.tiering.moves._active[0].state.blocks == 0 or not run.tiering.table.copies:
        run.bench.pass_time(0.05)
    source = run.tiering.tiers[0]
    run.tiering.remove_tier(source)
    run.bench.pass_time(0.1)
    assert state.ended_at is not None
    assert state.refused == {"away": 4}


@pytest.mark.parametrize(("to", "source"), [("s3", "tape"), ("s3", "s3"), ("memory", "disk")])
def test_a_source_that_cannot_be_is_refused(to: str, source: str) -> None:
    run = tier_bench(8, DISK, S3)
    with refused(Code.UNKNOWN_TIER, "source"):
        run.begin_move(to, source=source)


TAPE = tier("tape", spill="off", order=2)


def begun(run: TierBench, to: str, source: str = "disk", tenant: str = "", *, release: bool = False) -> MoveState:
    """Begin a move between tiers, up to the point at which its blocks wait for copies."""
    state = run.begin_move(to, Scope(tenant=tenant), release=release, source=source)
    for _ in range(20):
        run.bench.pass_time(0.05)
        target = next(each for each in run.tiering.tiers if each.spec.name == to)
        if any(request.target is target for request in run.tiering.table.copies):
            return state
    raise AssertionError("no block of the move waits for its copy")


def two_tenants() -> TierBench:
    run = tier_bench(256, DISK, S3, TAPE)
    for tenant in ("acme", "other"):
        run.store(make.keys(4, tenant), tenant)
    return run


def pass_ticks(run: TierBench, count: int = 20) -> None:
    run.bench.pass_time(0.05, times=count)


@pytest.mark.parametrize("stores", [False, True])
def test_a_call_that_hangs_fails_its_move_and_no_other(stores: bool) -> None:
    run = two_tenants()
    hanging = begun(run, "s3", tenant="acme", release=True)
    other = begun(run, "tape", tenant="other")
    job = run.tiering.copies.next_from_tier(run.now)
    assert job is not None
    assert job.target is run.tiering.tiers[1]
    for _ in range(2):
        run.settle()
        pass_ticks(run)
    assert (other.moved_blocks, other.refused, other.ended_at is not None) == (4, {}, True)
    assert hanging.ended_at is None
    if stores:
        run.load_from_tier(job)
        job.to(JobState.STORING)
    else:
        job.to(JobState.LOADING)
    run.tiering.outcomes.hung(job)
    if stores:
        run.copies.append(job)
    run.settle()
    pass_ticks(run)
    assert (other.moved_blocks, other.refused, other.ended_at is not None) == (4, {}, True)
    assert (hanging.moved_blocks, hanging.refused, hanging.released_blocks) == (0, {"hung": 4}, 0)
    assert hanging.ended_at is not None
    assert run.held("acme", 0) == 4, "nothing is lost"
    s3 = run.tiering.tiers[1]
    assert bool(s3.spilling_bytes) is stores, "a call that stores may still do so"
    if stores:
        run.copies.clear()
        run.end_copy(job, CopyEnd(Outcome.OK))
    assert (s3.spilling_bytes, run.held("acme", 1)) == (0, 4 if stores else 0)
    assert not any(tier.watched for tier in run.tiering.tiers)


def test_a_target_that_takes_no_more_delays_no_other_move() -> None:
    run = two_tenants()
    waiting = begun(run, "s3", tenant="acme")
    other = begun(run, "tape", tenant="other")
    s3 = run.tiering.tiers[1]
    s3.spilling_bytes += s3.spec.max_bytes_in_flight
    run.settle()
    pass_ticks(run)
    assert (other.moved_blocks, waiting.moved_blocks, waiting.ended_at) == (4, 0, None)
    s3.serves = False
    run.settle()
    pass_ticks(run)
    assert (waiting.refused, waiting.ended_at is not None) == ({"away": 4}, True)
    s3.spilling_bytes -= s3.spec.max_bytes_in_flight


def test_a_move_that_is_cancelled_finishes_the_copies_under_way_and_begins_no_others() -> None:
    run = tier_bench(512, DISK, S3)
    run.store(make.keys(150))
    state = begun(run, "s3", release=True)
    job = run.tiering.copies.next_from_tier(run.now)
    assert job is not None
    assert run.tiering.moves.cancel(state.number) is state
    assert (state.cancelled, state.ended_at) == (True, None), "the copies under way end first"
    run.transfer(job)
    run.settle()
    pass_ticks(run, 4)
    moved = len(job.blocks)
    assert (state.moved_blocks, state.released_blocks) == (moved, 0)
    assert state.refused == {"cancelled": 150}, "those that were moved are still in the first tier, too"
    assert (len(run.stores[0]), len(run.stores[1])) == (150, moved)
    assert state.ended_at is not None
    (ended,) = run.bench.events(MoveEnded)
    assert (ended.cancelled, ended.moved) == (True, moved)
    before = state.ended_at
    assert run.tiering.moves.cancel(state.number).ended_at == before
    assert not any(tier.watched for tier in run.tiering.tiers)
