"""Invalidation, demotion and clearing: in force at once, swept piece by piece, and only of what is meant."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

from dataplane.core.engines import touching
from dataplane.core.pool import sweeps
from dataplane.core.pool.lineage import among, descendants, identities
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import CountBlocks, Scope
from dataplane.protocol.engine import LeaseRequest, Reserve
from dataplane.protocol.events import SweepEnded
from dataplane.protocol.layout import H_INVALID_COUNT, pack_keys
from dataplane.protocol.spaces import Space
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused

ONE, TWO, OTHER = make.space(dtype="bf16"), make.space(dtype="fp8"), make.space("other")


def seen(engine: BenchEngine, chain: Sequence[bytes], space: int = 0) -> int:
    """Leading hits, as a client counts them."""
    return len(engine.bench.index.leading_ready(pack_keys(list(chain)), engine.spaces[space])[0])


def settle(bench: Bench) -> None:
    """Let every sweep come to its end."""
    for _ in range(200):
        bench.pass_time(0.05)
        if not bench.node.pool.sweeps.active:
            break
    bench.pass_time(0.05)


def counted(
    bench: Bench, kind: Literal["invalidate", "demote", "clear"], scope: Scope, *, permanent: bool = False
) -> tuple[int, int]:
    return bench.node.count_blocks(CountBlocks("n", kind, scope, permanent))


def scope_of(name: str, chain: Sequence[bytes]) -> Scope:
    return {
        "tenant": Scope(tenant="a"),
        "model": Scope(model=make.MODEL),
        "space": Scope(space=ONE.identity()),
        "tenant and space": Scope(tenant="a", space=ONE.identity()),
        "prefix": Scope(keys=make.packed(chain)),
    }[name]


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("tenant", {("a", 0), ("a", 1), ("a", 2)}),
        ("model", {("a", 0), ("a", 1), ("b", 0), ("b", 1)}),
        ("space", {("a", 0), ("b", 0)}),
        ("tenant and space", {("a", 0)}),
        ("prefix", {("a", 0), ("a", 1), ("a", 2)}),
    ],
)
def test_an_invalidation_hits_its_scope_at_once_and_nothing_else(name: str, gone: set[tuple[str, int]]) -> None:
    bench, engine = bench_of(1536, spaces=(ONE, TWO, OTHER))
    chains = {"a": make.keys(6, "a"), "b": make.keys(6, "b")}
    for tenant, chain in chains.items():
        for space in range(3):
            engine.store(chain, PAGE, tenant=tenant, space=space)

    def missing() -> set[tuple[str, int]]:
        return {
            (tenant, space) for tenant, chain in chains.items() for space in range(3) if seen(engine, chain, space) == 0
        }

    bench.node.invalidate(scope_of(name, chains["a"][:2]), bench.now)
    assert missing() == gone, "before any step of the sweep"
    assert bench.faults() == []
    settle(bench)
    assert missing() == gone
    assert sum(seen(engine, chain, space) for chain in chains.values() for space in range(3)) == 6 * (6 - len(gone))
    assert len(bench.node.pool.table.blocks) == 6 * (6 - len(gone)), "their bytes are free"
    assert bench.index.header[H_INVALID_COUNT] == 0


def test_leases_by_message_miss_at_once_too() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="a")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    assert bench.node.lease(engine.client, LeaseRequest(1, engine.spaces[0], make.packed(chain))) == []


def test_blocks_stored_after_a_sweep_began_are_readable() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(6)
    engine.store(chain, PAGE, tenant="a")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    assert engine.store(chain, PAGE, tenant="a").outcomes == {"WRITE": 6}
    assert seen(engine, chain) == 6
    settle(bench)
    assert seen(engine, chain) == 6
    assert held(bench, "a") == 6


def test_leased_blocks_are_out_of_the_index_and_go_when_the_lease_ends() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(6)
    engine.store(chain, PAGE, tenant="a")
    engine.acquire(chain)
    rows = {block.number: block.control for block in bench.node.pool.table.blocks.values()}
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    settle(bench)
    assert engine.lookup(chain) == 0
    assert engine.store(chain, PAGE, tenant="a").written == 6, "beside the old ones"
    assert held(bench, "a") == 12
    assert {number: int(bench.index.control[number]) for number in rows} == rows, "readers keep what they have"
    assert bench.index.header[H_INVALID_COUNT] == 1, "a late reader of the index still sees the marks"
    engine.release()
    settle(bench)
    assert held(bench, "a") == 6
    assert bench.index.header[H_INVALID_COUNT] == 0


def test_reserved_blocks_are_not_published() -> None:
    bench, engine = bench_of(64)
    mine, other = make.keys(4, "mine"), make.keys(4, "other")
    open_one = engine.reserve(mine, PAGE, tenant="a")
    open_two = engine.reserve(other, PAGE, tenant="b")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    with refused(Code.INVALIDATED):
        engine.commit(open_one.reservation)
    assert engine.commit(open_two.reservation) == 4
    settle(bench)
    assert (seen(engine, mine), held(bench, "a")) == (0, 0)
    assert engine.store(mine, PAGE, tenant="a").written == 4


@pytest.mark.parametrize("how", ["behind the prefix", "behind what is stored behind it", "behind another"])
def test_reserved_blocks_behind_an_invalidated_prefix_are_not_published(how: str) -> None:
    bench, engine = bench_of(64)
    chain = make.keys(12)
    engine.store(chain[:6], PAGE)
    first = engine.reserve(chain[:8], PAGE)
    if how == "behind the prefix":
        tail, prefix = first, chain[:6]
    elif how == "behind what is stored behind it":
        tail, prefix = first, chain[:2]
    else:
        message = Reserve(1, engine.spaces[0], "", make.packed(chain[8:]), PAGE, chain[7])
        tail, prefix = bench.node.reserve(engine.client, message, bench.now), chain[:2]
    bench.node.invalidate(Scope(keys=make.packed(prefix)), bench.now)
    with refused(Code.INVALIDATED):
        engine.commit(tail.reservation)


def test_a_prefix_covers_all_blocks_behind_its_last_key_and_no_sibling() -> None:
    bench, engine = bench_of(256)
    system = make.keys(4, "system")
    long, branch = [*system, *make.keys(6, "long")], [*system, *make.keys(3, "branch")]
    sibling = [*system[:2], *make.keys(5, "sibling")]
    foreign = make.keys(5, "foreign")
    for chain in (long, branch, sibling, foreign):
        engine.store(chain, PAGE)
    bench.node.invalidate(Scope(keys=make.packed(system)), bench.now)
    settle(bench)
    assert engine.has(long) == [False] * 10
    assert engine.has(branch[4:]) == [False] * 3
    assert engine.has(sibling[2:]) == [True] * 5
    assert engine.lookup(foreign) == 5
    engine.store(system, PAGE)
    assert engine.lookup(long) == 4, "nothing old comes back with the prefix"
    assert engine.lookup(sibling) == 7


def test_a_prefix_that_is_stored_again_during_the_sweep_brings_nothing_old_back() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(10)
    engine.store(chain, PAGE)
    bench.node.invalidate(Scope(keys=make.packed(chain[:3])), bench.now)
    engine.store(chain[:3], PAGE)
    assert seen(engine, chain) == 3
    settle(bench)
    assert seen(engine, chain) == 3


def test_blocks_cut_off_from_a_prefix_are_invalidated_with_it() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.policy(algorithm="fifo"))
    chain = make.keys(10)
    engine.store(chain, PAGE)
    cut = bench.node.pool.table.find(pack_keys(chain[5:6]), engine.spaces[0])
    bench.node.room.evict([block for block in cut if block is not None], "room", bench.now)
    bench.node.invalidate(Scope(keys=make.packed(chain[:3])), bench.now)
    settle(bench)
    assert engine.has(chain) == [False] * 10


def test_hundreds_of_invalidations_at_once_are_all_in_force_and_all_reported() -> None:
    bench, engine = bench_of(2048, max_blocks=4096)
    chains = {f"t{number}": make.keys(4, number) for number in range(300)}
    for tenant, chain in chains.items():
        engine.store(chain, PAGE, tenant=tenant)
    numbers = [bench.node.invalidate(Scope(tenant=tenant), bench.now).sweep for tenant in chains]
    assert all(seen(engine, chain) == 0 for chain in chains.values())
    done = []
    for _ in range(400):
        bench.pass_time(0.05)
        done += [event.sweep for event in bench.events(SweepEnded) if isinstance(event, SweepEnded)]
    assert done == numbers
    assert not bench.node.pool.table.blocks


def test_a_model_with_a_hundred_spaces_is_gone_at_once() -> None:
    spaces: list[Space] = [make.space(rank=rank, world_size=100) for rank in range(100)]
    bench = Bench(100 * 2 * make.MIB, max_blocks=4096)
    engine = bench.attach(*spaces, OTHER)
    chain = make.keys(3)
    for space in range(101):
        assert engine.store(chain, PAGE, space=space).written == 3
    bench.node.invalidate(Scope(model=make.MODEL), bench.now)
    assert [seen(engine, chain, space) for space in range(101)] == [0] * 100 + [3]
    settle(bench)
    assert [seen(engine, chain, space) for space in range(101)] == [0] * 100 + [3]


def test_permanent_pins_are_untouched_also_while_the_sweep_continues() -> None:
    bench, engine = bench_of(256, pin_budget_bytes=64 * PAGE)
    pinned, loose = make.keys(8, "kept"), make.keys(8, "loose")
    for chain in (pinned, loose):
        engine.store(chain, PAGE, tenant="a")
    forever = make.pin("kept", pinned, tenant="a", strength="permanent")
    bench.apply(*make.pins([forever, make.pin("loose", loose, tenant="a")]))
    for scope in (Scope(tenant="a"), Scope(keys=make.packed([*pinned[:2]])), Scope(model=make.MODEL)):
        bench.node.invalidate(scope, bench.now)
        assert seen(engine, pinned) == 8
    assert seen(engine, loose) == 0
    settle(bench)
    assert (seen(engine, pinned), seen(engine, loose)) == (8, 0)
    assert bench.pin("loose").resident == 0
    assert bench.pool.pinned_bytes == 8 * PAGE


def test_a_pin_that_comes_too_late_saves_nothing() -> None:
    bench, engine = bench_of(256, pin_budget_bytes=64 * PAGE)
    chain = make.keys(8)
    engine.store(chain, PAGE, tenant="a")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    bench.apply(*make.pins([make.pin("kept", chain, tenant="a", strength="permanent")]))
    assert seen(engine, chain) == 0
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    settle(bench)
    assert seen(engine, chain) == 0
    assert bench.pool.pinned_bytes == 0


def test_bytes_of_swept_blocks_are_used_before_anything_else_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.pool.pool.MAX_REAPED", 4)
    bench, engine = bench_of(64)
    old, good = make.keys(32, "old"), make.keys(32, "good")
    engine.store(good, PAGE, tenant="b")
    engine.store(old, PAGE, tenant="a")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    bench.node.tick(bench.now)
    assert engine.store(make.keys(32, "new"), PAGE, tenant="c").written == 32
    assert seen(engine, good) == 32


def test_a_large_sweep_continues_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "CHUNK", 10)
    bench, engine = bench_of(128)
    for number in range(8):
        engine.store(make.keys(8, number), PAGE, tenant="a")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    bench.node.tick(bench.now)
    bench.node.tick(bench.now)
    assert len(bench.node.pool.table.blocks) == 64 - 20
    assert all(seen(engine, make.keys(8, number)) == 0 for number in range(8))
    assert engine.store(make.keys(8, 7), PAGE, tenant="a").written == 8
    settle(bench)
    assert held(bench, "a") == 8
    assert bench.node.pool.totals.invalidated_blocks == 64


def test_demoted_blocks_go_first_tail_first_until_they_are_used_again() -> None:
    bench, engine = bench_of(64)
    old, used, demoted = make.keys(16, "old"), make.keys(16, "used"), make.keys(32, "demoted")
    engine.store(old, PAGE, tenant="b")
    engine.store(demoted, PAGE, tenant="a")
    engine.store(used, PAGE, tenant="a")
    bench.node.demote(Scope(tenant="a"), bench.now)
    assert (seen(engine, demoted), seen(engine, used)) == (32, 16), "nothing is dropped"
    engine.acquire(used)
    engine.release()
    bench.pass_time(0.05)
    fill(engine, "c", 8)
    assert (seen(engine, old), seen(engine, used), seen(engine, demoted)) == (16, 16, 24)
    fill(engine, "c", 24, "more")
    assert (seen(engine, old), seen(engine, used), engine.has(demoted)) == (16, 16, [False] * 32)


def test_a_scope_is_counted_before_and_when_it_is_swept() -> None:
    bench, engine = bench_of(256, pin_budget_bytes=64 * PAGE)
    pinned, loose = make.keys(4, "kept"), make.keys(8, "loose")
    for chain in (pinned, loose):
        engine.store(chain, PAGE, tenant="a")
    fill(engine, "b", 20)
    bench.apply(*make.pins([make.pin("kept", pinned, tenant="a", strength="permanent")]))
    for scope, blocks in ((Scope(tenant="a"), 8), (Scope(tenant="a", keys=make.packed(loose[:2])), 8)):
        assert counted(bench, "invalidate", scope) == (blocks, blocks * PAGE)
    assert counted(bench, "demote", Scope(tenant="a")) == (12, 12 * PAGE)
    assert counted(bench, "clear", Scope()) == (28, 28 * PAGE)
    assert counted(bench, "clear", Scope(), permanent=True) == (32, 32 * PAGE)
    assert (seen(engine, pinned), seen(engine, loose)) == (4, 8)
    begun = bench.node.invalidate(Scope(tenant="a"), bench.now)
    assert (len(begun.numbers), begun.bytes) == (8, 8 * PAGE)
    assert counted(bench, "invalidate", Scope(tenant="a")) == (0, 0)


def test_an_invalidation_of_an_unknown_tenant_is_answered_and_harmless() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    for scope in (
        Scope(tenant="nobody"),
        Scope(model="nothing"),
        Scope(space="0" * 32),
        Scope(keys=make.packed(make.keys(3, "unknown"))),
        Scope(tenant="nobody", keys=make.packed(chain)),
    ):
        assert counted(bench, "invalidate", scope) == counted(bench, "demote", scope) == (0, 0)
        for begun in (bench.node.invalidate(scope, bench.now), bench.node.demote(scope, bench.now)):
            assert begun.sweep > 0
            assert (len(begun.numbers), begun.bytes) == (0, 0)
        settle(bench)
        assert seen(engine, chain) == 4


# ---- clearing


@pytest.mark.parametrize("permanent", [False, True])
def test_clear_removes_everything_but_permanent_pins_by_default(*, permanent: bool) -> None:
    bench, engine = bench_of(256, pin_budget_bytes=64 * PAGE)
    leased, pinned, loose = make.keys(4, "kept"), make.keys(4, "pinned"), make.keys(4, "loose")
    for chain in (leased, pinned, loose):
        engine.store(chain, PAGE, tenant="a")
    fill(engine, "b", 20)
    forever = make.pin("kept", leased, tenant="a", strength="permanent")
    bench.apply(*make.pins([forever, make.pin("pinned", pinned, tenant="a")]))
    bench.node.clear(bench.now, permanent=permanent)
    left = 0 if permanent else 4
    assert [seen(engine, chain) for chain in (leased, pinned, loose)] == [left, 0, 0]
    settle(bench)
    assert len(bench.node.pool.table.blocks) == left
    assert bench.index.header[H_INVALID_COUNT] == 0
    assert engine.store(leased, PAGE, tenant="a").written == 4 - left
    assert bench.pin("kept").guaranteed == 4, "the pin holds what is stored again"


def test_cleared_blocks_go_with_their_lease_and_reserved_ones_are_not_published() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    engine.acquire(chain[:2])
    opened = engine.reserve(make.keys(2, "open"), PAGE)
    bench.node.clear(bench.now, permanent=False)
    with refused(Code.INVALIDATED):
        engine.commit(opened.reservation)
    settle(bench)
    assert len(bench.node.pool.table.blocks) == 2
    engine.release()
    settle(bench)
    assert not bench.node.pool.table.blocks


# ---- many sweeps


ALL = Scope(model=make.MODEL)


def test_demotions_of_the_same_blocks_are_queued_once_and_all_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "CHUNK", 16)
    bench, engine = bench_of(256)
    engine.store(make.keys(200), PAGE)
    numbers = [bench.node.demote(ALL, bench.now).sweep for _ in range(50)]
    queued = sum(len(sweep.queue) for sweep in bench.node.pool.sweeps.active)
    assert queued < 200
    bench.events(SweepEnded)
    done = []
    for _ in range(100):
        bench.pass_time(0.05)
        done += [event.sweep for event in bench.events(SweepEnded) if isinstance(event, SweepEnded)]
    assert sorted(done) == numbers
    assert not bench.node.pool.sweeps.active


@pytest.mark.parametrize(("then", "demoted"), [(None, set()), (Scope(tenant="a"), {"a"}), (ALL, {"a", "b"})])
def test_a_block_that_reuses_a_waiting_descriptor_is_demoted_only_if_in_scope(
    monkeypatch: pytest.MonkeyPatch, then: Scope | None, demoted: set[str]
) -> None:
    """`then` is the scope of a demotion after the descriptors were reused; None for no demotion."""
    monkeypatch.setattr(sweeps, "CHUNK", 8)
    bench, engine = bench_of(64)
    engine.store(make.keys(64), PAGE)
    bench.node.demote(ALL, bench.now)
    waiting = {number for sweep in bench.node.pool.sweeps.active for number in sweep.queue.tolist()}
    for tenant in ("a", "b"):
        engine.store(make.keys(32, tenant), PAGE, tenant=tenant)
    blocks = bench.node.pool.table.blocks.values()
    assert {block.tenant.salt for block in blocks if block.number in waiting} == {"a", "b"}
    if then is not None:
        bench.node.demote(then, bench.now)
    bench.pass_time(0.05, times=30)
    assert not bench.node.pool.sweeps.active
    assert {block.tenant.salt for block in blocks if block.rank.name == "DEMOTED"} == demoted


def test_beyond_the_limit_of_sweeps_one_covers_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "MAX_ACTIVE", 3)
    bench, engine = bench_of(256)
    chains = {f"t{number}": make.keys(4, number) for number in range(10)}
    for tenant, chain in chains.items():
        engine.store(chain, PAGE, tenant=tenant)
    numbers = [bench.node.invalidate(Scope(tenant=tenant), bench.now).sweep for tenant in chains]
    assert numbers == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]
    assert all(seen(engine, chain) == 0 for chain in chains.values())
    bench.pass_time(0.05, times=10)
    assert not bench.node.pool.table.blocks


# ---- what is behind a prefix


def begun(engine: BenchEngine, chain: list[bytes], parent: bytes = b"", tenant: str = "") -> int:
    """An open reservation of a chain that comes behind a key."""
    request = Reserve(1, engine.spaces[0], tenant, make.packed(chain), PAGE, parent=parent)
    granted = engine.bench.node.reserve(engine.client, request, engine.bench.now)
    return granted.reservation


def invalid_of(bench: Bench) -> set[int]:
    reservations = [each for engine in bench.node.engines.values() for each in engine.reservations.values()]
    return {each.number for each in reservations if each.invalid}


def test_equal_keys_have_equal_numbers_beside_similar_keys() -> None:
    rng = random.Random(3)
    words = np.array([[rng.choice((0, 1, 7)) for _ in range(4)] for _ in range(2000)], np.uint64)
    spaces = np.array([rng.choice((1, 2)) for _ in range(2000)], np.uint64)
    names, count = identities(words, spaces)
    meant = [(*row, space) for row, space in zip(words.tolist(), spaces.tolist(), strict=True)]
    pairs = set(zip(names.tolist(), meant, strict=True))
    assert len(pairs) == len(set(meant)) == count == names.max() + 1
    assert identities(words[:0], spaces[:0])[1] == 0


def test_requested_keys_are_compared_whole() -> None:
    one = make.keys(1)[0]
    alike = one[:8] + bytes(24)
    assert among(pack_keys([one, alike]), [one]).tolist() == [True, False]
    assert among(pack_keys([one]), []).tolist() == [False]


def test_descendants_are_found_at_any_depth_and_also_in_circles() -> None:
    rng = random.Random(5)
    for count in (1, 2, 7, 100, 1000):
        parents = [rng.randrange(-1, count) for _ in range(count)]
        chosen = [rng.random() < 0.1 for _ in range(count)]
        expected = []
        for at in range(count):
            seen_before: set[int] = set()
            while at >= 0 and at not in seen_before and not chosen[at]:
                seen_before.add(at)
                at = parents[at]
            expected.append(at >= 0 and chosen[at])
        assert descendants(np.array(parents), np.array(chosen)).tolist() == expected
    chain = np.arange(-1, 49_999)
    assert descendants(chain, chain == 99).sum() == 50_000 - 100


def test_a_made_up_parent_takes_nothing_of_another_tenant_along() -> None:
    bench, engine = bench_of(256)
    mine, theirs = make.keys(3, "mine"), make.keys(6, "theirs")
    engine.store(mine, PAGE, tenant="a")
    engine.store(theirs, PAGE, tenant="b")
    alike = theirs[0][:8] + bytes(24)
    engine.commit(begun(engine, [alike], mine[-1], "evil"))
    assert seen(engine, [alike]) == 1
    bench.node.invalidate(Scope(keys=make.packed(mine)), bench.now)
    assert (seen(engine, mine), seen(engine, [alike]), seen(engine, theirs)) == (0, 0, 6)
    settle(bench)
    assert seen(engine, theirs) == 6


def test_branches_from_the_middle_of_a_prefix_stay() -> None:
    bench, engine = bench_of(256)
    trunk, branch, behind = make.keys(4), make.keys(3, "branch"), make.keys(3, "behind")
    engine.store(trunk, PAGE)
    engine.store([*trunk[:2], *branch], PAGE)
    engine.store([*trunk, *behind], PAGE)
    bench.node.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert seen(engine, trunk) == 0
    assert [seen(engine, [key]) for key in (*branch, *behind)] == [1, 1, 1, 0, 0, 0]


def test_what_the_tenant_stored_behind_a_gap_goes_with_any_prefix_of_it() -> None:
    """States of recurrent layers mostly stand behind gaps."""
    bench, engine = bench_of(256)
    trunk, whole, torn, theirs = make.keys(4), make.keys(3, "whole"), make.keys(4, "torn"), make.keys(2, "theirs")
    engine.store([trunk[3]], PAGE, tenant="a")
    engine.store(whole, PAGE, tenant="a")
    branch = make.keys(1, "branch")
    for chain, parent, tenant in (
        ([torn[2]], torn[1], "a"),
        ([torn[3]], torn[2], "a"),
        (branch, trunk[1], "a"),
        ([theirs[1]], theirs[0], "b"),
    ):
        engine.commit(begun(engine, chain, parent, tenant))
    bench.node.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert [seen(engine, [key]) for key in (trunk[3], *torn[2:])] == [0, 0, 0]
    assert [seen(engine, [key]) for key in (*whole, *branch, theirs[1])] == [1] * 5


def test_reservations_behind_each_other_are_covered_in_any_order() -> None:
    bench, engine = bench_of(1024)
    trunk, heads, apart = make.keys(2), make.keys(30, "heads"), make.keys(3, "apart")
    engine.store(trunk, PAGE)
    numbers = set()
    for at in reversed(range(30)):
        before = heads[at - 1] if at else trunk[-1]
        numbers.add(begun(engine, [heads[at]], before))
    other = begun(engine, apart)
    bench.node.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert invalid_of(bench) == numbers
    assert engine.commit(other) is not None
    assert seen(engine, apart) == 3


def test_an_invalidation_looks_at_so_many_keys_and_takes_the_longest_reservations_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(touching, "MAX_KEYS", 16)
    bench, engine = bench_of(1024)
    trunk = make.keys(2)
    engine.store(trunk, PAGE)
    small = begun(engine, make.keys(4, "small"))
    begun(engine, make.keys(1, "next"), trunk[-1])
    long = make.keys(14, "long")
    begun(engine, long)
    begun(engine, make.keys(2, "after"), long[-1])
    bench.node.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert len(invalid_of(bench)) == 3
    assert small not in invalid_of(bench), "nothing of it is behind the prefix, and it was looked at"
