"""What shared tiers hold from before the start, and spaces that are forgotten and attached again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from dataplane.core.tiering import loads
from dataplane.core.tiering.catalog import SpaceRecords
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tiers import MEMORY
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine

# ---- listings of shared tiers


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


# ---- spaces


CHAIN = make.keys(6, "chain")
OTHER_SPACE = make.space("other-model", block_bytes=PAGE)
FORGET_S = 0.6
"""Seconds after which the node has forgotten spaces without engines and blocks."""


def waiting_move() -> tuple[TierBench, MoveState, BenchEngine]:
    """A tier that holds a chain, a move that waits to load it, and an engine of its space."""
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER_SPACE)
    engine = run.bench.attach(OTHER_SPACE, pid=200)
    run.bench.pass_time(0.1)
    run.ask(make.keys(1, "unknown"))  # the move waits for the request of an engine
    state = run.begin_move(MEMORY, Scope(model="other-model"))
    run.bench.pass_time(0.05, times=4)
    return run, state, engine


def mover_spaces(run: TierBench) -> list[int]:
    return list(run.tiering.loads._engine.spaces)


def test_a_move_goes_on_after_its_space_was_forgotten_and_attached_again() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    assert not run.spaces("other-model")
    engine = run.bench.attach(OTHER_SPACE, pid=200)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (6, {})
    assert engine.lookup(CHAIN) == 6


def test_a_move_attaches_a_space_that_was_forgotten_meanwhile() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (6, {})


def test_a_move_refuses_blocks_of_a_space_that_cannot_be_attached_again() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    del run.catalog.known_spaces.spaces[bytes.fromhex(OTHER_SPACE.identity())]
    run.bench.pass_time(FORGET_S)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (0, {"detached": 6})
    assert state.ended_at is not None


@pytest.mark.parametrize("shared", [False, True])
def test_a_request_whose_space_is_forgotten_while_it_waits_ends(shared: bool) -> None:
    """The engine that asks has no part in the space, like a scheduler of LMCache."""
    run = tier_bench(64, tier(max_bytes_in_flight=1 << 20))
    disk = run.tiering.tiers[0]
    disk.shared = shared
    if not shared:
        run.hold(CHAIN, space=OTHER_SPACE)
        disk.loading_bytes = 1 << 20  # other loads fill the tier: the request is BUSY
    engine = run.bench.attach(OTHER_SPACE, pid=200)
    run.bench.pass_time(0.1)
    request = run.tiering.loads.request(run.engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    assert request is not None
    run.begin()
    assert len(run.tiering.loads) == 1
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    disk.loading_bytes = 0
    run.catalog.existence.step(run.now)
    run.settle()
    assert (len(run.tiering.loads), run.loads) == (0, [])


def test_the_mover_keeps_no_space_that_it_has_loaded_into() -> None:
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER_SPACE)
    engine = run.bench.attach(OTHER_SPACE, pid=200)
    run.tiering.loads.request(engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    run.begin()
    run.bench.pass_time(0.1)
    assert mover_spaces(run) == engine.spaces, "the load is under way"
    run.end_loads()
    engine.detach_cleanly()
    run.evict_all()
    run.pass_time(FORGET_S, times=2)
    assert mover_spaces(run) == []
    run.bench.attach(make.space("other-model", block_bytes=2 * PAGE), pid=200)


def test_the_mover_keeps_a_space_as_long_as_a_thread_may_write_to_its_memory() -> None:
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER_SPACE)
    engine = run.bench.attach(OTHER_SPACE, pid=200)
    run.tiering.loads.request(engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    run.begin()
    engine.detach_cleanly()
    run.bench.pass_time(1000.0)
    assert run.tiering.loads._engine.expired
    assert mover_spaces(run) == engine.spaces
    run.end_loads()
    run.pass_time(FORGET_S, times=2)
    assert (mover_spaces(run), run.spaces("other-model")) == ([], [])


def test_a_move_holds_a_space_while_its_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "MAX_JOBS", 0)
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER_SPACE)
    run.catalog.know_space(bytes.fromhex(OTHER_SPACE.identity()), OTHER_SPACE)
    state = run.begin_move(MEMORY, Scope(model="other-model"))
    run.pass_time(FORGET_S, times=4)
    assert mover_spaces(run) == run.spaces("other-model") != []
    monkeypatch.undo()
    run.pass_time(0.1, times=5)
    assert state.moved_blocks == 6


def test_numbers_of_spaces_that_the_pool_has_forgotten_are_dropped() -> None:
    run = tier_bench(64, tier())
    for number in range(20):
        engine = run.bench.attach(make.space(f"model-{number}", block_bytes=PAGE), pid=200)
        run.bench.pass_time(0.1)
        assert run.catalog.identity(engine.spaces[0]) is not None
        engine.detach_cleanly()
        run.bench.pass_time(FORGET_S)
        assert run.catalog.identity(engine.spaces[0]) is None
    assert list(run.bench.node.pool.spaces.by_identity.values()) == run.engine.spaces
    assert len(run.bench.node.pool.spaces.identities) == 1


def test_models_are_known_as_long_as_a_tier_holds_blocks_of_their_spaces() -> None:
    run = tier_bench(64, tier(), known=SpaceRecords(1))
    run.hold(CHAIN, space=OTHER_SPACE)
    for space in (OTHER_SPACE, *(make.space(f"model-{number}", block_bytes=PAGE) for number in range(20))):
        engine = run.bench.attach(space, pid=200)
        run.bench.pass_time(0.1)
        engine.detach_cleanly()
        run.bench.pass_time(FORGET_S)
    assert len(run.catalog._models) == len(run.catalog.spaces_of_model) <= 4
    assert "other-model" in run.catalog.spaces_of_model
    disk = run.tiering.tiers[0]
    for entry in list(disk.contents.entries.values()):
        run.catalog.release(disk, entry)
    run.settle()
    for number in range(4):
        run.bench.attach(make.space(f"later-{number}", block_bytes=PAGE), pid=200 + number)
        run.bench.pass_time(0.1)
    assert "other-model" not in run.catalog.spaces_of_model
