"""Moves on request: what is copied, released and loaded, and why the rest is not."""

from __future__ import annotations

import contextlib

import pytest

from dataplane.core.tiering import memory_moves, moves
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.moves import Move
from dataplane.protocol.control.records import Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import BlocksEvicted, MoveEnded
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import Outcome
from dataplane.protocol.tiers import MEMORY
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused

OFF = tier(spill="off")
MIB = 1 << 20


def test_blocks_are_copied_to_a_tier_and_stay_in_memory() -> None:
    run = tier_bench(64, OFF)
    mine, other = make.keys(4, "mine"), make.keys(2, "other")
    run.engine.store(mine, PAGE, tenant="a")
    run.engine.store(other, PAGE, tenant="b")
    state = run.move(scope=Scope(tenant="a"))
    assert (state.blocks, state.bytes, state.moved_blocks, state.moved_bytes) == (4, 4 * PAGE, 4, 4 * PAGE)
    assert (state.released_blocks, state.refused) == (0, {})
    assert {name.key for name in run.stores[0]} == set(mine)
    assert run.engine.lookup(mine) == 4
    again = run.move(scope=Scope(tenant="a"))
    assert (again.number, again.present_blocks, again.moved_blocks) == (2, 4, 0)


def test_with_release_memory_is_freed_once_the_copy_is_there() -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(4)
    run.engine.store(chain, PAGE)
    state = run.begin_move(release=True)
    run.bench.pass_time(0.05)
    run.begin()
    run.bench.pass_time(0.05)
    assert (len(run.spills), run.engine.lookup(chain)) == (4, 4), "the copies are still under way"
    run.end_move(state)
    assert (state.moved_blocks, state.released_blocks, state.released_bytes) == (4, 4, 4 * PAGE)
    assert (run.engine.lookup(chain), len(run.stores[0])) == (0, 4)
    evicted = run.bench.events(BlocksEvicted)
    assert {event.reason for event in evicted} == {memory_moves.RELEASED}
    run.ask(chain)
    run.settle()
    assert run.engine.lookup(chain) == 4


def test_a_block_that_is_copied_twice_because_of_another_invalidation_is_moved_and_released() -> None:
    run = tier_bench(64, OFF)
    chain, other = make.keys(4), make.keys(1, "other")
    run.engine.store(chain, PAGE)
    run.engine.store(other, PAGE)
    state = run.begin_move(scope=Scope(tenant="", keys=chain[0]), release=True)
    run.bench.pass_time(0.05)
    run.begin()
    run.invalidate(Scope(tenant="", keys=other[0]))
    run.end_spills()
    run.end_move(state)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (4, 4, {})
    assert (run.engine.lookup(chain), len(run.stores[0])) == (0, 4)


def test_a_failed_copy_releases_nothing_and_returns_the_reason() -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(4)
    run.engine.store(chain, PAGE)
    state = run.begin_move(release=True)
    run.bench.pass_time(0.05)
    run.begin()
    run.end_spills(Outcome.FAILED, 3)
    run.end_move(state)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (1, 1, {"failed": 3})
    assert run.engine.lookup(chain) in (0, 3)


def test_a_leased_block_leaves_memory_when_its_lease_ends() -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(4)
    run.engine.store(chain, PAGE)
    run.engine.acquire(chain[:2])
    state = run.begin_move(release=True)
    run.pass_time(0.05, times=5)
    assert (state.released_blocks, state.ended_at, run.engine.lookup(chain)) == (2, None, 2)
    run.engine.release()
    assert run.end_move(state).released_blocks == 4
    assert run.engine.lookup(chain) == 0


def test_blocks_leased_until_the_deadline_stay() -> None:
    run = tier_bench(64, OFF)
    run.engine.store(make.keys(4), PAGE)
    run.engine.acquire(make.keys(4)[:1])
    state = run.move(release=True, deadline_s=1.0)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (4, 3, {"leased": 1})
    assert state.ended_at is not None
    assert state.ended_at - state.started_at >= 1.0


@pytest.mark.parametrize("strength", ["guaranteed", "permanent", "soft"])
def test_a_guaranteed_block_never_leaves_memory(strength: Strength) -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(4)
    run.engine.store(chain, PAGE)
    run.pins(make.pin("system", chain[:2], strength=strength))
    state = run.move(release=True)
    pinned = 0 if strength == "soft" else 2
    assert (state.moved_blocks, state.released_blocks) == (4, 4 - pinned)
    assert state.refused == ({"pinned": 2} if pinned else {})
    assert run.engine.lookup(chain) == pinned


def test_a_limit_of_the_tier_refuses_blocks() -> None:
    run = tier_bench(64, OFF)
    run.quotas(quota("a", limit=3, on_exceed="reject"))
    run.engine.store(make.keys(5), PAGE, tenant="a")
    state = run.move(scope=Scope(tenant="a"), release=True)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (3, 3, {"limit": 2})


@pytest.mark.parametrize("removed", [False, True])
def test_a_tier_that_is_out_of_service_or_removed_takes_nothing(removed: bool) -> None:
    run = tier_bench(64, OFF)
    run.engine.store(make.keys(3), PAGE)
    (disk,) = run.tiering.tiers
    disk.serves = removed
    state = run.begin_move(release=True)
    run.bench.pass_time(0.05)
    if removed:
        run.tiering.remove_tier(disk)
    run.bench.pass_time(0.05)
    assert (state.refused, state.ended_at is not None) == ({"away": 3}, True)
    assert run.engine.lookup(make.keys(3)) == 3


def test_a_tier_that_hangs_ends_the_move_at_its_deadline() -> None:
    run = tier_bench(1024, tier(spill="off", max_bytes_in_flight=MIB))
    run.engine.store(make.keys(600), PAGE)
    state = run.begin_move(deadline_s=2.0)
    for _ in range(50):
        run.bench.pass_time(0.05)
        run.begin()
    assert len(run.spills) == MIB // stored_size(PAGE)
    assert (state.refused, state.moved_blocks) == ({"late": 600}, 0)
    assert not run.tiering.tiers[0].watched
    (ended,) = run.bench.events(MoveEnded)
    assert (ended.move, ended.tier, ended.moved, ended.refused) == (1, "disk", 0, 600)


def test_only_some_blocks_wait_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_moves, "MAX_OUTSTANDING", 10)
    run = tier_bench(256, OFF)
    run.engine.store(make.keys(100), PAGE)
    state = run.begin_move()
    run.bench.pass_time(0.05)
    assert run.tiering.table.waiting(run.tiering.tiers[0])[0] == 10
    assert run.end_move(state).moved_blocks == 100


@pytest.mark.parametrize("to", ["disk", MEMORY, "s3"])
def test_a_prefix_is_moved_with_the_blocks_behind_it(to: str) -> None:
    run = tier_bench(64, OFF if to == "disk" else tier(), tier("s3", spill="off", order=1))
    chain, other = make.keys(6), make.keys(3, "other")
    run.engine.store(chain, PAGE)
    run.store(other)
    if to != "disk":
        run.evict_all()
    state = run.move(to, Scope(keys=make.packed(chain[:2])), source="disk" if to == "s3" else MEMORY)
    assert (state.blocks, state.moved_blocks) == (6, 6)
    if to == MEMORY:
        assert (run.engine.lookup(chain), run.engine.lookup(other)) == (6, 0)
    else:
        assert run.keys_in(0 if to == "disk" else 1) == set(chain)


def test_blocks_of_a_tier_are_loaded_into_memory() -> None:
    run = tier_bench(64, tier())
    chains = [make.keys(4, name) for name in ("a", "b")]
    branch = [*chains[0][:2], *make.keys(2, "branch")]
    for chain in (*chains, branch):
        run.store(chain)
    run.evict_all()
    state = run.move(MEMORY)
    assert (state.blocks, state.bytes, state.moved_blocks, state.refused) == (10, 10 * PAGE, 10, {})
    assert [run.engine.lookup(chain) for chain in (*chains, branch)] == [4, 4, 4]
    again = run.move(MEMORY)
    assert (again.present_blocks, again.moved_blocks) == (10, 0)


def test_a_chain_that_was_loaded_is_invalidated_by_its_prefix() -> None:
    run = tier_bench(512, tier())
    chain = make.keys(400)
    run.store(chain)
    run.evict_all()
    assert run.move(MEMORY).moved_blocks == 400
    run.bench.node.operator.invalidate(Scope(keys=make.packed(chain[:1])), run.now)
    run.bench.pass_time(0.05)
    assert run.engine.lookup(chain) == 0
    assert not run.bench.node.pool.table.blocks


def test_a_move_to_memory_loads_less_than_the_pool_holds() -> None:
    run = tier_bench(1024, tier(budget_blocks=4000))
    for number in range(8):
        run.store(make.keys(256, number))
    run.evict_all()
    state = run.move(MEMORY)
    assert state.blocks == 8 * 256
    assert state.moved_blocks == 3 * 256
    assert state.refused == {"budget": 5 * 256}


def test_loads_that_fail_say_why() -> None:
    run = tier_bench(64, tier())
    run.store(make.keys(4))
    run.evict_all()
    run.stores[0].clear()
    assert run.move(MEMORY).refused == {"missing": 4}


def test_an_engine_that_waits_for_a_tier_comes_before_a_move() -> None:
    run = tier_bench(1024, tier(max_bytes_in_flight=MIB))
    for number in range(3):
        run.store(make.keys(256, number))
    run.evict_all()
    run.ask(make.keys(256, 0), wait_s=100.0)
    state = run.begin_move(MEMORY)
    run.bench.pass_time(0.05, times=5)
    assert len(run.tiering.loads) == 1, "the move asks for nothing"
    assert run.end_move(state).blocks == 3 * 256


def test_blocks_of_a_space_that_no_engine_attached_cannot_be_loaded() -> None:
    run = tier_bench(64, tier())
    run.hold(make.keys(2), space=Space("later"))
    state = run.move(MEMORY)
    assert (state.blocks, state.refused) == (2, {"detached": 2})


@pytest.mark.parametrize("scope", [Scope(tenant=""), Scope(model="later"), Scope(keys=make.packed(make.keys(2)))])
def test_blocks_of_a_space_that_an_engine_attached_earlier_are_loaded(scope: Scope) -> None:
    run = tier_bench(64, tier())
    later = Space("later", block_bytes=PAGE)
    run.hold(make.keys(2), space=later)
    run.catalog.known_spaces.add(bytes.fromhex(later.identity()), later)
    assert run.move(MEMORY, scope, dry_run=True).blocks == 2
    assert not run.spaces("later"), "a dry run attaches nothing"
    state = run.move(MEMORY, scope)
    assert (state.blocks, state.moved_blocks, state.refused) == (2, 2, {})
    engine = run.bench.attach(later)
    assert engine.lookup(make.keys(2)) == 2


def test_a_space_with_another_block_size_is_not_attached() -> None:
    run = tier_bench(64, tier(), spaces=[Space("later", block_bytes=2 * PAGE)])
    before = Space("later", block_bytes=PAGE)
    space = bytes.fromhex(before.identity())
    run.catalog.known_spaces.add(space, before)
    assert run.tiering.loads.attach(space) is None
    assert run.tiering.loads.attach(bytes(16)) is None


@pytest.mark.parametrize("to", ["disk", MEMORY])
def test_a_dry_run_only_counts(to: str) -> None:
    run = tier_bench(64, tier(spill="off" if to == "disk" else "commit"))
    run.store(make.keys(4))
    if to == MEMORY:
        run.evict_all()
    state = run.move(to, dry_run=True)
    assert (state.blocks, state.bytes, state.moved_blocks, state.refused) == (4, 4 * PAGE, 0, {})
    assert state.dry_run


def test_immovable_blocks_are_refused() -> None:
    run = tier_bench(8, OFF)
    for message, code, field in (
        (Move("n", Scope(tenant="a"), "tape"), Code.UNKNOWN_TIER, "tier"),
        (Move("n", Scope(), "disk"), Code.BAD_SCOPE, "scope"),
        (Move("n", Scope(keys=b"x"), "disk"), Code.BAD_KEYS, "scope.keys"),
        (Move("n", Scope(tenant="a/b"), MEMORY), Code.BAD_SALT, "scope.tenant"),
    ):
        with refused(code, field):
            run.tiering.moves.start(message, run.now)
    with refused(Code.UNKNOWN_MOVE):
        run.tiering.moves.state(7)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Move("n", Scope(tenant="a"), "tape"), "expected 'memory' or an open tier ('disk')"),
        (Move("n", Scope(), "tape", compress=True), "expected an open tier ('disk')"),
        (Move("n", Scope(), "disk", compress=True, source="tape"), "expected 'memory'"),
        (Move("n", Scope(tenant="a"), "disk", source="tape"), "expected 'memory' or an open tier ('disk')"),
        (Move("n", Scope(tenant="a"), MEMORY, source="tape"), "expected 'memory'"),
    ],
)
def test_an_unknown_tier_is_answered_with_the_names_that_are_valid_there(message: Move, expected: str) -> None:
    run = tier_bench(8, OFF)
    with pytest.raises(ProtocolError) as raised:
        run.tiering.moves.start(message, run.now)
    found = f"no tier 'tape' is open on this node; {expected}"
    advice = f". {moves.ADD_TIER}" if "open tier" in expected else ""
    assert raised.value.message == found + advice


def fill(run: TierBench, tenant: str) -> int:
    """Begin as many moves of a tenant as the node takes, and return their number."""
    count = 0
    with contextlib.suppress(ProtocolError):
        while count < 2 * moves.MAX_ACTIVE:
            run.begin_move(scope=Scope(tenant=tenant))
            count += 1
    return count


def test_the_moves_of_a_tenant_leave_room_for_those_of_others() -> None:
    run = tier_bench(8, OFF)
    begun = 0
    for tenant in ("", *map(str, range(20))):
        own = fill(run, tenant)
        assert own == moves.MAX_ACTIVE // 2 if tenant == "" else own >= 1
        begun += own
    assert begun <= moves.MAX_ACTIVE + 20
    run.bench.pass_time(0.05, times=begun)
    assert run.begin_move().number == begun + 1


def test_a_move_that_waits_for_a_lease_delays_no_other() -> None:
    run = tier_bench(64, OFF)
    leased, other = make.keys(4, "leased"), make.keys(4, "other")
    run.engine.store(leased, PAGE, tenant="a")
    run.engine.store(other, PAGE, tenant="b")
    run.engine.acquire(leased)
    waits = run.begin_move(scope=Scope(tenant="a"), release=True, deadline_s=86_400.0)
    assert run.move(scope=Scope(tenant="b"), release=True).released_blocks == 4
    assert waits.ended_at is None
    short = run.begin_move(scope=Scope(tenant="a"), release=True, deadline_s=1.0)
    run.bench.pass_time(0.05, times=30)
    assert short.refused == {"leased": 4}


@pytest.mark.parametrize("where", ["tier", "memory", "shared tier"])
def test_a_move_of_one_tenant_does_not_show_or_load_blocks_of_another(where: str) -> None:
    run = tier_bench(64, tier())
    theirs = make.keys(4, "theirs")
    run.store(theirs, "b")
    if where != "memory":
        run.evict_all()
    state = run.tiering.tiers[0]
    if where == "shared tier":
        state.shared = True
        for name in list(run.stores[0]):
            run.tiering.catalog.forget(state, name)
    move = run.begin_move(MEMORY, Scope(tenant="a", keys=make.packed(theirs)), deadline_s=2.0)
    for _ in range(60):
        run.bench.pass_time(0.05)
        while names := run.tiering.catalog.existence.next_names(state):
            run.tiering.looked_up(state, names, [run.stores[0].get(name) for name in names], run.now)
        run.settle()
        run.tiering.step(run.now)
    assert move.ended_at is not None
    assert (move.blocks, move.moved_blocks, move.present_blocks, move.refused) == (0, 0, 0, {})
    assert run.engine.lookup(theirs) == (4 if where == "memory" else 0)


def test_old_results_of_moves_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MAX_SAVED", 0)
    run = tier_bench(8, OFF)
    run.engine.store(make.keys(2), PAGE)
    first, second = run.begin_move(), run.begin_move()
    run.end_move(first)
    assert run.end_move(second).present_blocks == 2
    third = run.begin_move()
    for old in (first, second):
        with pytest.raises(ProtocolError):
            run.tiering.moves.state(old.number)
    assert run.tiering.moves.state(third.number) is third


def test_a_cancelled_move_to_a_tier_stops_and_keeps_moved_blocks() -> None:
    run = tier_bench(256, tier(spill="off", max_bytes_in_flight=8 * stored_size(PAGE)))
    run.engine.store(make.keys(100), PAGE)
    state = run.begin_move(release=True)
    run.bench.pass_time(0.05)
    run.begin()
    assert len(run.spills) == 8
    assert run.tiering.moves.cancel(state.number).cancelled
    assert state.ended_at is None
    run.settle()
    run.end_move(state)
    assert (state.moved_blocks, state.released_blocks, state.refused) == (8, 0, {"cancelled": 100})
    disk = run.tiering.tiers[0]
    assert (len(run.stores[0]), run.tiering.table.waiting(disk)) == (8, (0, 0))
    assert len(run.bench.node.pool.table.blocks) == 100
    assert not disk.watched


def test_blocks_that_wait_for_a_tier_without_the_move_are_still_copied() -> None:
    run = tier_bench(64, tier(spill="commit"))
    run.engine.store(make.keys(5, "before"), PAGE)
    state = run.begin_move()
    run.bench.pass_time(0.05)
    assert run.tiering.table.waiting(run.tiering.tiers[0]) == (5, 5 * PAGE), "each block counts once"
    run.tiering.moves.cancel(state.number)
    run.settle()
    run.end_move(state)
    assert (state.refused, len(run.stores[0])) == ({"cancelled": 5}, 5)


def test_a_cancelled_move_to_memory_keeps_loaded_blocks() -> None:
    run = tier_bench(1024, tier())
    chains = [make.keys(40, number) for number in range(6)]
    for chain in chains:
        run.store(chain)
    run.evict_all()
    state = run.begin_move(MEMORY)
    while not run.tiering.loads:
        run.bench.pass_time(0.05)
    run.begin_job()
    loading = len(run.loads)
    assert loading
    assert run.tiering.moves.cancel(state.number).cancelled
    run.settle()
    run.end_move(state)
    assert (state.moved_blocks, state.refused) == (loading, {"cancelled": 240 - loading})
    assert len(run.bench.node.pool.table.blocks) == loading
    assert len(run.tiering.loads) == 0


def test_a_dry_run_and_a_selection_under_way_can_be_cancelled() -> None:
    run = tier_bench(64, OFF)
    run.engine.store(make.keys(3), PAGE)
    for to, dry_run in (("disk", True), (MEMORY, False)):
        state = run.begin_move(to, dry_run=dry_run)
        run.tiering.moves.cancel(state.number)
        run.end_move(state)
        assert (state.cancelled, state.moved_blocks) == (True, 0)
    with refused(Code.UNKNOWN_MOVE):
        run.tiering.moves.cancel(99)


@pytest.mark.parametrize("release", [False, True])
def test_a_move_evicts_nothing_from_its_tier_that_it_has_just_copied(release: bool) -> None:
    run = tier_bench(64, tier(budget_blocks=6, spill="off"))
    run.engine.store(make.keys(4, "old"), PAGE, tenant="other")
    run.move(scope=Scope(tenant="other"))
    run.bench.pass_time(10.0)
    run.engine.store(make.keys(9), PAGE, tenant="acme")
    state = run.move(scope=Scope(tenant="acme"), release=release)
    assert (state.moved_blocks, state.refused) == (6, {"budget": 3})
    assert state.released_blocks == (6 if release else 0)
    assert (run.held("acme"), run.held("other")) == (6, 0)
    remaining = [block for block in run.bench.node.pool.table.blocks.values() if block.tenant.salt == "acme"]
    assert len(remaining) == (3 if release else 9), "no block is lost"


def test_the_state_of_a_move_names_its_tenant() -> None:
    run = tier_bench(64, OFF)
    run.engine.store(make.keys(3), PAGE, tenant="acme")
    assert run.begin_move(scope=Scope(tenant="acme")).tenant == "acme"
    assert run.begin_move(scope=Scope(model=make.space().model)).tenant is None
