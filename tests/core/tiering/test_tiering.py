"""What is copied to tiers, what is loaded from them, and what they give up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.engines import storing
from dataplane.core.eviction.ancestors import chains_up_to
from dataplane.core.tiering import loads
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.states import State
from dataplane.protocol.stored_blocks import CopyEnd, Outcome
from dataplane.protocol.tier_directory import space_word
from tests.core.tiering.tier_bench import PAGE, TierBench, stored_of, tier, tier_bench
from tests.dataplane import factories as make
from tests.work import lines_run


def listed(run: TierBench, chain: list[bytes]) -> int:
    """Leading blocks of a chain that an engine finds in the directory."""
    word = space_word(make.space(block_bytes=PAGE).identity())
    return len(run.tiering.catalog.directory.leading(pack_keys(chain), word).tiers) if serve(run) else 0


def serve(run: TierBench) -> bool:
    for each in run.tiering.tiers:
        run.tiering.catalog.directory.publish(
            each.number, waiting_bytes=0, bytes_per_s=1 << 30, latency_us=0, serves=True
        )
    return True


def test_stored_blocks_are_copied_and_loaded_again_after_eviction() -> None:
    run = tier_bench(8, tier())
    first, second = make.keys(8, "first"), make.keys(8, "second")
    run.store(first)
    assert listed(run, first) == 8
    run.engine.store(second, PAGE)
    assert run.engine.lookup(first) == 0
    run.settle()
    run.ask(first)
    run.settle()
    assert run.engine.lookup(first) == 8
    assert run.tiering.tiers[0].counters.loaded_blocks == 8


def test_a_load_of_many_jobs_lines_its_chain_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "BATCH_BYTES", PAGE)
    run = tier_bench(64, tier())
    chain = make.keys(32)
    run.store(chain)
    run.evict_all()
    run.ask(chain)
    lined_up = 0

    def counted(table: BlockTable, last: Sequence[Block]) -> list[Block]:
        nonlocal lined_up
        line = chains_up_to(table, last)
        lined_up += len(line)
        return line

    run.begin()
    assert len(run.loads) == 32, "a job each"
    with monkeypatch.context() as patched:
        patched.setattr(storing, "chains_up_to", counted)
        run.end_loads()
    assert lined_up == 31
    for number in range(6):
        assert run.engine.store(make.keys(8, number), PAGE).written == 8
        assert sum(run.engine.has(chain)) == run.engine.lookup(chain), "what is left of it is its start"
    assert 0 < run.engine.lookup(chain) < 32


@pytest.mark.parametrize("kept", [0, 2], ids=["no block in memory", "every second block in memory"])
@pytest.mark.parametrize("invalidated", [False, True])
def test_a_job_of_a_load_takes_no_more_steps_the_longer_the_chain_before_it_is(
    monkeypatch: pytest.MonkeyPatch, kept: int, invalidated: bool
) -> None:
    monkeypatch.setattr(loads, "BATCH_BYTES", PAGE)
    run = tier_bench(512, tier())
    chain = make.keys(240)
    run.store(chain)
    if invalidated:
        run.tiering.tiers[0].shared = True
        prefix = make.keys(4, "other")
        run.tiering.tiers[0].tombstones = lambda: [Tombstone(1 << 62, keys=frozenset(prefix), last_key=prefix[-1])]
    evicted = set(chain[:: kept or 1])
    blocks = [block for block in run.bench.node.pool.table.blocks.values() if block.key in evicted]
    assert run.bench.node.room.evict(blocks, "room", run.now) == len(evicted)
    run.ask(chain)
    steps: list[int] = []
    while run.tiering.loads:
        steps.append(lines_run(run.begin_job) + lines_run(run.end_loads))
    assert run.engine.lookup(chain) == len(chain)
    assert len(steps) >= len(evicted)
    assert max(steps[-20:-2]) <= max(steps[10:30])


def test_a_chain_that_does_not_fit_is_loaded_up_to_where_it_would_evict_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "BATCH_BYTES", PAGE)
    run = tier_bench(16, tier())
    chain = make.keys(24)
    run.hold(chain)
    assert run.engine.store(chain[:3], PAGE).written == 3
    run.settle()
    assert run.engine.store(make.keys(13, "older"), PAGE).written == 13
    run.settle()
    run.ask(chain)
    while run.tiering.loads:
        assert run.begin_job() == bool(run.loads)
        run.end_loads()
    assert run.engine.lookup(chain) == 16
    assert run.tiering.tiers[0].counters.lost == {"memory": 1}


@pytest.mark.parametrize("in_flight", [1, 2, 3, 6, 16])
def test_two_engines_that_load_a_chain_do_not_evict_it(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    monkeypatch.setattr(loads, "BATCH_BYTES", PAGE)
    run = tier_bench(16, tier(max_bytes_in_flight=in_flight * PAGE))
    chain, other = make.keys(24), run.bench.attach(make.space(block_bytes=PAGE), pid=2)
    run.hold(chain)
    assert run.engine.store(make.keys(16, "older"), PAGE).written == 16
    run.settle()
    run.ask(chain)
    run.tiering.loads.request(other.client, other.spaces[0], make.packed(chain), run.now + 5.0)
    while run.tiering.loads:
        while run.begin_job():
            pass
        run.end_loads()
    assert run.engine.lookup(chain) == 16


def test_a_block_is_leased_while_it_is_copied_and_no_longer() -> None:
    run = tier_bench(8, tier())
    run.engine.store(make.keys(8, "first"), PAGE)
    run.begin()
    assert run.engine.store(make.keys(1, "second"), PAGE).written == 0, "all blocks are being copied"
    run.end_spills()
    assert run.engine.store(make.keys(1, "second"), PAGE).written == 1


def test_a_block_that_is_stored_again_while_its_older_one_waits_is_copied() -> None:
    run = tier_bench(8, tier(max_bytes_in_flight=2 * PAGE))
    chain = make.keys(2)
    run.engine.store(chain, PAGE)
    run.begin()
    assert len(run.spills) == 1, "the other block waits"
    table = run.bench.node.pool.table
    waiting = [block for block in table.blocks.values() if block.key == chain[1]]
    assert run.bench.node.room.evict(waiting, "room", run.now)
    run.engine.store(chain, PAGE)
    assert run.tiering.table.waiting(run.tiering.tiers[0]) == (1, PAGE)
    run.settle()
    assert len(run.stores[0]) == 2


def test_a_tier_that_hangs_keeps_no_more_than_its_bytes_in_flight() -> None:
    run = tier_bench(1024, tier(max_bytes_in_flight=1 << 20))
    run.engine.store(make.keys(512, "first"), PAGE)
    run.begin()
    assert len(run.spills) == (1 << 20) // (2 * PAGE)
    assert run.engine.store(make.keys(800, "second"), PAGE).written == 800


@pytest.mark.parametrize("outcome", [Outcome.FULL, Outcome.FAILED, Outcome.LATE])
def test_a_copy_that_fails_is_counted_and_not_listed(outcome: Outcome) -> None:
    run = tier_bench(8, tier())
    chain = make.keys(4, "chain")
    run.engine.store(chain, PAGE)
    run.begin()
    run.end_spills(outcome)
    assert listed(run, chain) == 0
    assert run.tiering.tiers[0].counters.refused == {outcome.value: 4}


def test_a_tier_that_was_full_makes_room_before_it_is_full_again() -> None:
    run = tier_bench(64, tier())
    run.store(make.keys(4, "old"))
    run.engine.store(make.keys(1, "full"), PAGE)
    run.begin()
    run.end_spills(Outcome.FULL)
    (full,) = run.tiering.tiers
    assert (len(full.contents), full.contents.room_bytes) == (3, 4 * 2 * PAGE)
    run.store(make.keys(3, "new"))
    assert (len(full.contents), full.counters.refused) == (4, {"full": 1})
    for _ in range(200):
        run.tiering.tick(run.now)
    run.store(make.keys(8, "newer"))
    assert len(full.contents) == 12, "more room is tried after a while"


def test_a_tier_that_is_full_before_its_budget_gives_up_blocks() -> None:
    run = tier_bench(64, tier())
    old, new = make.keys(4, "old"), make.keys(2, "new")
    run.store(old)
    run.engine.store(new, PAGE)
    run.begin()
    run.end_spills(Outcome.FULL)
    run.settle()
    assert len(run.stores[0]) == 2
    assert run.tiering.tiers[0].contents.evicted_blocks == 2


def test_many_requests_for_one_chain_cause_one_load() -> None:
    run = tier_bench(16, tier())
    chain = make.keys(8, "chain")
    run.store(chain)
    run.store(make.keys(16, "other"))
    for _ in range(5):
        run.ask(chain)
    run.begin()
    assert len(run.loads) == 8
    run.ask(chain)
    run.begin()
    assert len(run.loads) == 8
    run.settle()
    assert run.engine.lookup(chain) == 8
    assert run.tiering.tiers[0].counters.loaded_blocks == 8


def test_an_engine_withdraws_its_own_request_and_no_other() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(8)
    run.store(chain)
    run.bench.node.room.evict(list(run.bench.node.pool.table.blocks.values()), "room", run.now)
    other = run.bench.attach(make.space(block_bytes=PAGE))
    loads, keys = run.tiering.loads, make.packed(chain)
    run.ask(chain)
    run.ask(chain[:4])
    loads.request(other.client, other.spaces[0], keys, run.now + 5.0)
    loads.withdraw(run.engine.client, run.engine.spaces[0], make.packed(chain[:6]))
    assert len(loads) == 3, "no request asked for these"
    loads.withdraw(run.engine.client, run.engine.spaces[0], keys)
    loads.withdraw(run.engine.client, run.engine.spaces[0], make.packed(chain[:4]))
    assert len(loads) == 1
    run.settle()
    assert run.engine.lookup(chain) == 8


def test_a_load_past_its_deadline_or_of_a_gone_engine_does_not_begin() -> None:
    run = tier_bench(8, tier())
    chain = make.keys(8, "chain")
    run.store(chain)
    run.store(make.keys(8, "other"))
    run.ask(chain, wait_s=1.0)
    run.bench.pass_time(2.0)
    run.begin()
    assert run.loads == []
    run.ask(chain)
    run.engine.detach()
    run.begin()
    assert run.loads == []
    assert len(run.tiering.loads) == 0


@pytest.mark.parametrize("outcome", [Outcome.CORRUPT, Outcome.MISSING])
def test_a_block_that_is_corrupt_or_missing_is_forgotten_and_the_others_are_published(outcome: Outcome) -> None:
    run = tier_bench(8, tier())
    chain = make.keys(8, "chain")
    run.store(chain)
    run.store(make.keys(8, "other"))
    run.ask(chain)
    run.begin()
    run.end_loads(Outcome.OK, 3)
    run.end_loads(outcome, 1)
    run.end_loads()
    assert run.engine.lookup(chain) == 3
    assert listed(run, chain) == 3
    assert run.tiering.tiers[0].counters.lost == {outcome.value: 1}
    run.stores[0].pop(next(name for name in run.stores[0] if name.key == chain[3]))  # the tier removed it


def test_a_tier_evicts_least_recently_used_blocks_and_never_exceeds_its_budget() -> None:
    run = tier_bench(64, tier(budget_blocks=8))
    chains = [make.keys(4, number) for number in range(4)]
    for chain in chains:
        run.store(chain)
        assert run.bench.faults() == []
    assert [listed(run, chain) for chain in chains] == [0, 0, 4, 4]
    assert len(run.stores[0]) == 8


def test_a_block_that_does_not_fit_the_budget_is_refused() -> None:
    run = tier_bench(64, tier(budget_blocks=1, spill="commit"))
    run.tiering.tiers[0].contents.budget_bytes = PAGE
    run.store(make.keys(2, "chain"))
    assert run.tiering.tiers[0].counters.refused == {"budget": 2}


def test_blocks_used_a_second_time_are_copied_on_request() -> None:
    run = tier_bench(64, tier(spill="second_touch"))
    chain = make.keys(4, "chain")
    run.store(chain)
    assert listed(run, chain) == 0
    assert run.engine.acquire(chain) == 4
    run.engine.release()
    run.pass_time(1.0)
    assert listed(run, chain) == 4


def test_blocks_that_are_soon_evicted_are_copied_on_request() -> None:
    run = tier_bench(512, tier(spill="evict"))
    run.engine.store(make.keys(64, "first"), PAGE)
    run.pass_time(1.0)
    assert len(run.stores[0]) == 0, "the pool has room"
    run.engine.store(make.keys(440, "second"), PAGE)
    run.pass_time(1.0)
    assert listed(run, make.keys(64, "first")) == 64


def test_an_invalidation_reaches_tiers_blocks_under_way_and_blocks_behind_a_prefix() -> None:
    run = tier_bench(64, tier())
    a, b = make.keys(6, "a"), make.keys(6, "b")
    run.engine.store(a, PAGE, tenant="acme")
    run.store(b, "rival")
    late = make.keys(2, "late")
    run.engine.store(late, PAGE, tenant="acme")
    run.begin()
    run.invalidate(Scope(keys=make.packed(a[:2])))
    assert (listed(run, a), listed(run, b)) == (0, 6)
    run.invalidate(Scope(tenant="acme"))
    run.end_spills()
    run.settle()
    assert (listed(run, late), listed(run, b)) == (0, 6)
    run.bench.pass_time(1.0, times=3)
    run.ask(late)
    run.ask(a)
    run.settle()
    assert (run.engine.lookup(a), run.engine.lookup(late), run.engine.lookup(b)) == (0, 0, 6)
    assert len(run.stores[0]) == 6
    run.bench.node.clear(run.now, permanent=True)
    run.settle()
    assert len(run.stores[0]) == 0


def test_an_invalidated_block_is_deleted_although_its_next_copy_fails() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(2, "chain")
    run.store(chain)
    run.invalidate(Scope(tenant=""))
    run.engine.store(chain, PAGE)
    run.begin()
    assert len(run.spills) == 2
    run.end_spills(Outcome.FAILED)
    run.begin()
    assert len(run.stores[0]) == 0


def test_a_load_under_way_that_is_invalidated_is_not_published() -> None:
    run = tier_bench(8, tier())
    chain = make.keys(4, "chain")
    run.store(chain, "acme")
    run.store(make.keys(8, "other"))
    run.ask(chain)
    run.begin()
    run.invalidate(Scope(tenant="acme"))
    run.end_loads()
    run.settle()
    assert run.engine.lookup(chain) == 0


def test_earlier_blocks_of_a_tier_are_found_newest_first() -> None:
    before = tier_bench(64, tier())
    old, new = make.keys(4, "old"), make.keys(4, "new")
    before.engine.store(old, PAGE, tenant="acme")
    before.bench.pass_time(1.0)
    before.engine.store(new, PAGE, tenant="acme")
    before.settle()
    run = tier_bench(64, tier(budget_blocks=6))
    beyond = run.restore(before.stores[0].values())
    assert len(beyond) == 2
    assert {name.key for name in beyond} <= set(old)
    assert listed(run, new) == 4
    run.ask(new)
    run.settle()
    assert run.engine.lookup(new) == 4
    assert run.tiering.tiers[0].contents.tenants["acme"].blocks == 6


def test_a_block_is_loaded_from_the_first_tier_in_service() -> None:
    run = tier_bench(8, tier("far", order=2), tier("near", order=1))
    chain = make.keys(4, "chain")
    run.store(chain)
    for serving, expected in (("near", "near"), ("far", "far")):
        run.engine.store(make.keys(8, serving), PAGE)
        for each in run.tiering.tiers:
            each.serves = each.spec.name == serving or serving == "near"
        run.settle()
        run.ask(chain)
        run.begin()
        assert {load.tier.spec.name for load in run.loads} == {expected}
        run.settle()
        assert run.engine.lookup(chain) == 4


@pytest.mark.parametrize("seed", range(6))
def test_accounts_are_consistent_after_any_steps(seed: int) -> None:
    chance = random.Random(seed)
    run = tier_bench(24, tier("a", 40, spill="commit"), tier("b", 12, order=1, spill="second_touch"))
    chains = [make.keys(chance.randrange(1, 9), ("chain", number)) for number in range(20)]
    tenants = ["", "acme", "rival"]
    for step in range(400):
        number = chance.randrange(len(chains))
        chain, tenant = chains[number], tenants[number % 3]
        action = chance.randrange(10)
        if action < 3:
            run.engine.store(chain, PAGE, tenant=tenant)
        elif action < 5:
            run.ask(chain, chance.choice([0.5, 5.0]))
        elif action == 5:
            run.engine.acquire(chain)
            if chance.random() < 0.7:
                run.engine.release()
        elif action == 6:
            run.bench.pass_time(chance.random())
        elif action == 7 and step % 7 == 0:
            run.invalidate(Scope(tenant=tenant))
        elif action == 8:
            run.begin()
            run.end_spills(chance.choice([Outcome.OK, Outcome.OK, Outcome.FULL]), chance.randrange(4))
        else:
            run.begin()
            run.end_loads(chance.choice([Outcome.OK, Outcome.OK, Outcome.LATE]), chance.randrange(4))
        assert run.bench.faults() == []
    run.engine.release()
    run.settle()
    reserved = [b for b in run.bench.node.pool.table.blocks.values() if b.state is State.RESERVED]
    assert reserved == []


def test_a_block_that_a_tier_lost_is_missing_for_the_reason_of_the_tier() -> None:
    run = tier_bench(8, tier(budget_blocks=8))
    gone, kept = make.keys(8, "gone"), make.keys(8, "kept")
    run.store(gone)
    run.store(kept)
    space = run.engine.spaces[0]
    removals, tiering = run.bench.node.pool.removals, run.tiering
    assert {removals.of(each, space)[:2] for each in gone} == {("evicted", "tier")}  # type: ignore[index]
    assert [tiering.is_served(each, space) for each in (gone[0], kept[0])] == [None, True]
    tiering.tiers[0].serves = False
    assert tiering.is_served(kept[0], space) is False, "the tier is away"
    tiering.tiers[0].serves = True
    run.engine.store(make.keys(8, "other"), PAGE)  # not copied to the tier yet
    run.bench.node.invalidate(Scope(tenant=""), run.now)
    assert tiering.is_served(kept[0], space) is None, "an invalidation covers it"
    run.settle()
    found = removals.of(kept[0], space)
    assert found is not None
    assert (found.reason, found.cause) == ("invalidated", "invalidated")


# ---- copies that failed, although the tier may hold the block


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
