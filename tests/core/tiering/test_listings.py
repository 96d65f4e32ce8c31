"""What a shared tier holds from before the start: charged when it is found, evicted in the order of age."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

WRITER, OTHER = 7, 8


def shared_bench(budget_blocks: int = 1000) -> tuple[TierBench, TierState]:
    run = tier_bench(64, tier(budget_blocks=budget_blocks))
    (state,) = run.tiering.tiers
    state.shared = True
    run.tiering.catalog.writer = WRITER
    run.tiering.catalog.begin_listing(state)
    return run, state


def old(run: TierBench, number: int, tenant: str = "acme", writer: int = WRITER, age: int = 0) -> StoredBlock:
    """Put a block that was stored before the start into the store, `age` ns before one of age 0, and return it."""
    sequence = int(run.now * 1e9) - 1000 - age
    name = BlockName(run.identity(), number.to_bytes(32, "big"))
    stored = StoredBlock(name, tenant, sequence, PAGE, b"c" * 16, writer=writer)
    run.stores[0][name] = stored
    return stored


def end(run: TierBench, state: TierState, found: Sequence[StoredBlock], dead: Sequence[StoredBlock] = ()) -> None:
    """End the listing as the mover does, and bring the tier within its budget."""
    newest_first = sorted(found, key=lambda stored: -stored.sequence)
    for _ in run.tiering.catalog.ending_listing(state, newest_first, dead):
        pass
    while state.contents.budget_bytes != state.spec.budget_bytes:
        run.tiering.catalog.shrink(state, run.now)
    run.begin()


def test_blocks_of_this_node_are_charged_to_their_tenants_as_they_are_found() -> None:
    run, state = shared_bench()
    mine = [old(run, number, tenant=f"tenant {number % 2}") for number in range(4)]
    theirs = old(run, 9, writer=OTHER)
    assert run.tiering.catalog.listed(state, [*mine[:2], theirs], run.now) == mine[:2]
    assert (state.listed_blocks, state.contents.used_bytes) == (2, 2 * stored_size(PAGE))
    assert run.tiering.catalog.listed(state, mine, run.now) == mine[2:], "a block is counted once"
    assert (run.held("tenant 0"), run.held("tenant 1"), state.listed_blocks) == (2, 2, 4)
    end(run, state, mine)
    assert state.listed_blocks is None
    assert theirs.name in run.stores[0]
    del run.stores[0][theirs.name]


def test_the_oldest_blocks_beyond_the_budget_are_deleted_in_any_listing_order() -> None:
    run, state = shared_bench(budget_blocks=3)
    ages = [300, 0, 500, 100, 400, 200]
    found = [old(run, number, age=age) for number, age in enumerate(ages)]
    run.tiering.catalog.listed(state, found, run.now)
    assert len(state.contents) == 6, "nothing is evicted before the ages of all are known"
    end(run, state, found)
    assert sorted(each.sequence for each in run.stores[0].values()) == sorted(
        each.sequence for each in (found[1], found[3], found[5])
    )


def test_new_blocks_are_stored_while_there_is_room_and_stay_longer_than_old_ones() -> None:
    run, state = shared_bench(budget_blocks=6)
    found = [old(run, number, age=number) for number in range(4)]
    run.tiering.catalog.listed(state, found[:2], run.now)
    run.store(make.keys(2, "new"))
    run.tiering.catalog.listed(state, found[2:], run.now)
    run.store(make.keys(1, "later"))
    assert state.counters.refused == {"listing": 1}
    end(run, state, found)
    run.store(make.keys(3, "newer"))
    assert [name for name in run.stores[0] if int.from_bytes(name.key, "big") < 4] == [found[0].name]


def test_limits_of_tenants_apply_to_listed_blocks() -> None:
    run, state = shared_bench()
    run.quotas(quota("acme", limit=2))
    found = [old(run, number, age=number) for number in range(5)]
    run.tiering.catalog.listed(state, found, run.now)
    run.bench.pass_time(1.0)
    assert run.held("acme") == 5
    end(run, state, found)
    run.pass_time(1.0)
    assert list(run.stores[0]) == [found[0].name, found[1].name]


def test_dead_blocks_are_deleted_unless_they_were_stored_again() -> None:
    run, state = shared_bench()
    dead, again = old(run, 1), old(run, 2)
    run.tiering.catalog.listed(state, [dead, again], run.now)
    state.contents.add(
        StoredBlock(again.name, "acme", again.sequence + 500, PAGE, b"c" * 16), stored_size(PAGE), run.now
    )
    end(run, state, [dead, again], [dead, again])
    assert list(run.stores[0]) == [again.name]


def test_an_invalidation_during_the_listing_covers_listed_blocks() -> None:
    run, state = shared_bench()
    found = [old(run, number, tenant="acme" if number else "other") for number in range(3)]
    run.tiering.catalog.listed(state, found, run.now)
    run.invalidate(Scope(tenant="acme"))
    end(run, state, found)
    assert list(run.stores[0]) == [found[0].name]


def test_a_sequence_of_the_far_future_is_not_taken_over() -> None:
    run, state = shared_bench()
    forged = old(run, 1, age=-(1 << 62))
    assert run.tiering.catalog.listed(state, [forged], run.now) == []
    end(run, state, [])
    assert run.bench.node.pool.sweeps.timestamp(run.now) < forged.sequence


def test_a_block_that_was_forgotten_during_the_listing_is_not_found_again() -> None:
    run, state = shared_bench()
    stored = old(run, 1)
    run.tiering.catalog.listed(state, [stored], run.now)
    run.tiering.catalog.release(state, state.contents.entries[stored.name])
    assert run.tiering.catalog.listed(state, [stored], run.now) == []
    end(run, state, [stored])
    assert run.stores[0] == {}
    assert not state.forgotten


def test_a_block_larger_than_the_pool_is_not_counted() -> None:
    run, state = shared_bench()
    stored = msgspec.structs.replace(old(run, 1), length=1 << 40)
    assert run.tiering.catalog.listed(state, [stored], run.now) == []
    assert (len(state.contents), state.contents.logical_bytes) == (0, 0)
