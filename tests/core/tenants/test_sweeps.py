"""Invalidation and demotion: in force at once, swept piece by piece, and only of what is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from dataplane.core.pool import sweeps
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
    return bench.node.operator.count(CountBlocks("n", kind, scope, permanent))


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

    bench.node.operator.invalidate(scope_of(name, chains["a"][:2]), bench.now)
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
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
    assert bench.node.lease(engine.client, LeaseRequest(1, engine.spaces[0], make.packed(chain))) == []


def test_blocks_stored_after_a_sweep_began_are_readable() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(6)
    engine.store(chain, PAGE, tenant="a")
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
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
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
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
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
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
    bench.node.operator.invalidate(Scope(keys=make.packed(prefix)), bench.now)
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
    bench.node.operator.invalidate(Scope(keys=make.packed(system)), bench.now)
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
    bench.node.operator.invalidate(Scope(keys=make.packed(chain[:3])), bench.now)
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
    bench.node.operator.invalidate(Scope(keys=make.packed(chain[:3])), bench.now)
    settle(bench)
    assert engine.has(chain) == [False] * 10


def test_hundreds_of_invalidations_at_once_are_all_in_force_and_all_reported() -> None:
    bench, engine = bench_of(2048, max_blocks=4096)
    chains = {f"t{number}": make.keys(4, number) for number in range(300)}
    for tenant, chain in chains.items():
        engine.store(chain, PAGE, tenant=tenant)
    numbers = [bench.node.operator.invalidate(Scope(tenant=tenant), bench.now).sweep for tenant in chains]
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
    bench.node.operator.invalidate(Scope(model=make.MODEL), bench.now)
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
        bench.node.operator.invalidate(scope, bench.now)
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
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
    bench.apply(*make.pins([make.pin("kept", chain, tenant="a", strength="permanent")]))
    assert seen(engine, chain) == 0
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
    settle(bench)
    assert seen(engine, chain) == 0
    assert bench.pool.pinned_bytes == 0


def test_bytes_of_swept_blocks_are_used_before_anything_else_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.pool.pool.MAX_REAPED", 4)
    bench, engine = bench_of(64)
    old, good = make.keys(32, "old"), make.keys(32, "good")
    engine.store(good, PAGE, tenant="b")
    engine.store(old, PAGE, tenant="a")
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
    bench.node.tick(bench.now)
    assert engine.store(make.keys(32, "new"), PAGE, tenant="c").written == 32
    assert seen(engine, good) == 32


def test_a_large_sweep_continues_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "CHUNK", 10)
    bench, engine = bench_of(128)
    for number in range(8):
        engine.store(make.keys(8, number), PAGE, tenant="a")
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
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
    bench.node.operator.demote(Scope(tenant="a"), bench.now)
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
    begun = bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
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
        for begun in (bench.node.operator.invalidate(scope, bench.now), bench.node.operator.demote(scope, bench.now)):
            assert begun.sweep > 0
            assert (len(begun.numbers), begun.bytes) == (0, 0)
        settle(bench)
        assert seen(engine, chain) == 4
