"""Moves on request, from memory, between tiers and within one: what is moved, and why the rest is not."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from dataplane.core.tiering import copies, loads, move_chains, moves
from dataplane.core.tiering.jobs import JobState, TierJob
from dataplane.core.tiering.outcomes import HUNG
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.records import Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import BlocksEvicted, MoveEnded
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Outcome, StoredBlock
from dataplane.protocol.tiers import MEMORY, Compress
from dataplane.tiering.worker import store_job
from tests.core.tiering.tier_bench import CHECKSUM, HEADER, PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused
from tests.dataplane.tiering.faulty_tier import FaultyTier

# ---- memory and a tier


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
    assert {event.reason for event in evicted} == {moves.RELEASED}
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
    monkeypatch.setattr(moves, "MAX_OUTSTANDING", 10)
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
    run.bench.node.invalidate(Scope(keys=make.packed(chain[:1])), run.now)
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
    end_with_answers(run, move)
    assert (move.blocks, move.moved_blocks, move.present_blocks, move.refused) == (0, 0, 0, {})
    assert run.engine.lookup(theirs) == (4 if where == "memory" else 0)


def end_with_answers(run: TierBench, move: MoveState) -> None:
    """Pass time until a move has ended. A shared tier answers which blocks it holds."""
    disk, existence = run.tiering.tiers[0], run.catalog.existence
    for _ in range(60):
        run.bench.pass_time(0.05)
        while names := existence.next_names(disk):
            run.tiering.looked_up(disk, names, [run.stores[0].get(name) for name in names], run.now)
        run.settle()
        existence.step(run.now)
    assert move.ended_at is not None


@pytest.mark.parametrize("reason", ["late", "budget"])
def test_only_blocks_that_tiers_are_known_to_hold_are_refused(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tier_bench(64 if reason == "late" else 4, OFF)
    chain, other = make.keys(8), make.keys(1, "other")
    run.hold(chain[:4])
    if reason == "late":  # the request of an engine comes first
        monkeypatch.setattr(loads, "MAX_JOBS", 0)
        run.hold(other)
        run.ask(other, 100.0)
    state = run.move(MEMORY, Scope(keys=make.packed(chain)), deadline_s=2.0)
    assert (state.blocks, state.moved_blocks, state.present_blocks, state.refused) == (4, 0, 0, {reason: 4})


def test_blocks_of_a_prefix_that_memory_alone_holds_do_not_count() -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(6)
    run.engine.store(chain[:3], PAGE)
    run.hold(chain[3:])
    state = run.move(MEMORY, Scope(keys=make.packed(chain)))
    assert (state.blocks, state.moved_blocks, state.present_blocks, state.refused) == (3, 3, 0, {})


def test_blocks_that_a_shared_tier_turns_out_to_hold_count_when_they_arrive() -> None:
    run = tier_bench(64, OFF)
    chain = make.keys(6)
    run.hold(chain)
    run.tiering.tiers[0].shared = True
    for name in list(run.stores[0])[2:]:
        run.catalog.forget(run.tiering.tiers[0], name)
    move = run.begin_move(MEMORY, Scope(keys=make.packed(chain)), deadline_s=2.0)
    end_with_answers(run, move)
    assert (move.blocks, move.bytes, move.moved_blocks, move.refused) == (6, 6 * PAGE, 6, {})


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


@pytest.mark.parametrize("to", ["s3", MEMORY, "compress"])
@pytest.mark.parametrize("end", ["late", "cancelled"])
def test_a_move_that_ends_while_it_selects_has_the_blocks_that_it_refuses(
    monkeypatch: pytest.MonkeyPatch, to: str, end: str
) -> None:
    monkeypatch.setattr(move_chains, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, DISK, S3)
    for number in range(40):
        run.hold(make.keys(1, number))
    run.hold(make.keys(1), space=Space("later"))
    run.change("disk", compress="zstd")
    options: dict[str, Any] = {"compress": True} if to == "compress" else {"source": MEMORY if to == MEMORY else "disk"}
    state = run.begin_move("disk" if to == "compress" else to, deadline_s=1.0, **options)
    for _ in range(7):
        run.tiering.moves.step(run.now)
    assert (state.blocks, state.refused) == (0, {})
    if end == "late":
        run.bench.now += 2.0
    else:
        run.tiering.moves.cancel(state.number)
    run.tiering.moves.step(run.now)
    assert state.ended_at is not None
    assert state.moved_blocks == state.present_blocks == 0
    assert 0 < state.blocks < 41
    assert sum(state.refused.values()) == state.blocks
    assert state.bytes >= PAGE * state.refused[end] > 0


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


# ---- two tiers


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


# ---- blocks that are encoded again


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


def begin_encoding(run: TierBench) -> tuple[TierJob, MoveState]:
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
    job, move = begin_encoding(run)
    run.copies = [job]
    assert run.tier_faults() == []
    run.copies = []
    charge = stored_size(PAGE) - 1
    run.end_copy(job, CopyEnd(Outcome.OK, charge, target))
    run.bench.pass_time(0.05)
    assert (move.moved_blocks, move.refused) == (2, {"budget": 2})


@pytest.mark.parametrize("end", [CopyEnd(Outcome.LATE), CopyEnd(Outcome.FAILED)], ids=["late", "failed"])
def test_blocks_that_may_have_become_larger_are_charged_for_it(end: CopyEnd) -> None:
    run = encoded(2, 8 * stored_size(PAGE), "fp8", "none")
    (state,) = run.tiering.tiers
    job, move = begin_encoding(run)
    assert state.contents.used_bytes == 2 * stored_size(PAGE), "what they have, and what they may grow by"
    run.end_copy(job, end)
    assert [entry.charge for entry in state.contents.entries.values()] == 2 * [stored_size(PAGE)]
    assert state.contents.used_bytes == 2 * stored_size(PAGE)
    assert run.tier_faults() == []
    run.bench.pass_time(0.05)
    assert move.refused == {end.outcome.value: 2}
    job, move = begin_encoding(run)
    assert state.contents.used_bytes == 2 * stored_size(PAGE), "they cannot grow more"
    run.end_copy(job, CopyEnd(Outcome.OK, stored_size(PAGE) - 1, "none"))
    run.bench.pass_time(0.05)
    assert move.moved_blocks == 2
    assert state.contents.used_bytes == 2 * (stored_size(PAGE) - 1)


@pytest.mark.parametrize("end", [CopyEnd(Outcome.FULL), CopyEnd(Outcome.FAILED, not_compressed="size")])
def test_blocks_that_are_left_as_they_are_keep_their_charge(end: CopyEnd) -> None:
    run = encoded(2, 8 * stored_size(PAGE), "fp8", "zstd")
    (state,) = run.tiering.tiers
    job, _ = begin_encoding(run)
    run.end_copy(job, end)
    assert state.contents.used_bytes == 2 * SMALL
    assert not state.deletions


def test_blocks_whose_call_begins_after_their_job_is_given_up_are_left_as_they_are() -> None:
    run = encoded(2, 8 * stored_size(PAGE), "fp8", "zstd")
    (state,) = run.tiering.tiers
    job, move = begin_encoding(run)
    run.tiering.outcomes.hung(job)
    store = FaultyTier()
    ends = store_job(job, job.blocks, None, store)
    assert not store.stored
    run.tiering.outcomes.stored(job, ends, run.now)
    assert state.contents.used_bytes == 2 * SMALL
    assert not state.deletions
    assert run.tier_faults() == []
    run.bench.pass_time(0.05)
    assert move.refused == {HUNG: 2}


@pytest.mark.parametrize(
    "end",
    [CopyEnd(Outcome.OK, SMALL, "zstd"), CopyEnd(Outcome.LATE), CopyEnd(Outcome.FAILED)],
    ids=["ok", "late", "failed"],
)
def test_a_block_that_was_forgotten_concurrently_is_deleted_again(end: CopyEnd) -> None:
    run = encoded(2, 8 * stored_size(PAGE), "none", "zstd")
    (state,) = run.tiering.tiers
    job, move = begin_encoding(run)
    gone, stays = [block.name for block in job.blocks]
    run.catalog.forget(state, gone)
    run.end_copy(job, end)
    run.begin()
    run.bench.pass_time(0.05)
    assert list(run.stores[0]) == [stays]
    assert move.refused["gone"] == 1


def test_blocks_are_chosen_some_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_chains, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.begin_move(scope=Scope(), compress=True)
    counts = []
    while state.ended_at is None:
        run.bench.pass_time(0.05)
        counts.append(state.present_blocks)
    assert (state.blocks, state.present_blocks) == (40, 40)
    assert {after - before for before, after in zip([0, *counts], counts, strict=False)} == {0, 10}


def test_a_cancelled_reencoding_leaves_the_remaining_blocks_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BATCH_BLOCKS", 2)
    run = encoded(6, 8 * stored_size(PAGE), "none", "zstd")
    job, move = begin_encoding(run)
    assert run.tiering.moves.cancel(move.number) is move
    assert (move.refused, move.ended_at) == ({"cancelled": 4}, None), "a job is under way"
    assert run.tiering.copies.next_from_tier(run.now) is None
    run.end_copy(job, CopyEnd(Outcome.OK, SMALL, "zstd"))
    run.bench.pass_time(0.05)
    assert (move.moved_blocks, move.refused) == (2, {"cancelled": 4})
    assert run.tiering.copies.next_from_tier(run.now) is None
    assert move.ended_at is not None


def test_a_selection_that_is_cancelled_chooses_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_chains, "MAX_STEP_BLOCKS", 10)
    run = tier_bench(64, tier())
    for number in range(40):
        run.store(make.keys(1, number))
    state = run.begin_move(scope=Scope(), compress=True)
    while not state.present_blocks:
        run.bench.pass_time(0.05)
    run.tiering.moves.cancel(state.number)
    run.bench.pass_time(0.05)
    assert (state.present_blocks, state.cancelled, state.ended_at is None) == (10, True, False)
