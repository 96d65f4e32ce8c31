"""Floors: blocks within a tenant's floor are not evicted for others, and it can always grow to it."""

from __future__ import annotations

import pytest

from dataplane.core.tenants.accounts import effective_floors
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make


def test_a_tenant_within_its_floor_loses_nothing_to_a_scan_of_ten_times_the_pool() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=24 * PAGE), QuotaSpec("b")))
    chain = make.keys(24, "a")
    engine.store(chain, PAGE, tenant="a")
    for other in ("b", "nobody"):
        fill(engine, other, 10 * 64)
        assert engine.lookup(chain) == 24
    assert held(bench, "a") == 24


@pytest.mark.parametrize("strength", ["none", "soft"])
def test_a_tenant_grows_to_its_floor_at_the_expense_of_borrowers(strength: str) -> None:
    bench, engine = bench_of(64)
    borrowed = make.keys(64, "b")
    engine.store(borrowed, PAGE, tenant="b")
    if strength == "soft":
        bench.apply(*make.pins([make.pin("wish", borrowed, tenant="b", strength="soft")]))
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=24 * PAGE)))
    assert engine.store(make.keys(24, "a"), PAGE, tenant="a").written == 24
    assert held(bench, "a") == 24
    assert engine.lookup(borrowed) == 40, "the tail went"


def test_a_tenant_beyond_its_floor_returns_only_borrowed_bytes() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=16 * PAGE), QuotaSpec("b", floor_bytes=40 * PAGE)))
    fill(engine, "a", 64)
    assert held(bench, "a") == 64
    fill(engine, "b", 40)
    assert (held(bench, "a"), held(bench, "b")) == (24, 40)
    fill(engine, "b", 40, "more")
    assert held(bench, "a") >= 16
    assert held(bench, "b") >= 40


def test_the_requester_keeps_its_floor_while_others_borrow() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=32 * PAGE, weight=0.01), QuotaSpec("b")))
    chain = make.keys(32, "a")
    engine.store(chain, PAGE, tenant="a")
    fill(engine, "b", 28)
    fill(engine, "a", 4, "borrowed")
    assert engine.store(make.keys(16, "more"), PAGE, tenant="a").written == 16
    assert (held(bench, "a"), held(bench, "b")) == (36 + 12, 28 - 12), "it gave the four that it had borrowed"


def test_demoted_blocks_within_the_requesters_floor_stay_while_others_borrow() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=32 * PAGE), QuotaSpec("b")))
    chain = make.keys(32, "a")
    engine.store(chain, PAGE, tenant="a")
    fill(engine, "b", 32)
    bench.node.operator.demote(Scope(tenant="a"), bench.now)
    assert engine.store(make.keys(8, "more"), PAGE, tenant="a").written == 8
    assert engine.lookup(chain) == 32
    assert held(bench, "b") == 24


def test_one_search_for_many_slots_stops_at_every_floor_on_its_way() -> None:
    bench, engine = bench_of(64)
    floors = {"a": 20, "b": 12, "c": 5}
    bench.apply(make.shares(*[QuotaSpec(name, floor_bytes=floor * PAGE) for name, floor in floors.items()]))
    for name, blocks in (("a", 30), ("b", 20), ("c", 14)):
        fill(engine, name, blocks)
    for tenant in floors:
        bench.node.operator.demote(Scope(tenant=tenant), bench.now)
    stored = engine.store(make.keys(40, "foreign"), PAGE, tenant="foreign")
    assert stored.outcomes == {"WRITE": 27, "POOL_FULL": 13}
    assert {name: held(bench, name) for name in floors} == floors


def test_when_everything_is_floors_a_tenant_at_its_floor_evicts_its_own() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=32 * PAGE), QuotaSpec("b", floor_bytes=32 * PAGE)))
    fill(engine, "a", 32)
    fill(engine, "b", 32)
    fill(engine, "a", 64, "again")
    assert (held(bench, "a"), held(bench, "b")) == (32, 32)


def test_an_index_without_a_free_entry_takes_none_of_a_floor() -> None:
    bench, engine = bench_of(64, max_blocks=64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=32 * PAGE)))
    fill(engine, "a", 8)
    mine = list(bench.node.pool.table.blocks.values())
    buckets = sorted({block.entry[0] for block in mine if block.entry is not None})
    tenant = bench.node.pool.tenants.get("b")
    bench.node.room.protect(())
    assert bench.node.room.make_entry(tenant, buckets, (), bench.now) is None
    owner = bench.node.pool.tenants.get("a")
    assert bench.node.room.make_entry(owner, buckets, (), bench.now) is not None
    assert held(bench, "a") == 7


def test_floors_hold_against_blocks_of_another_size_and_space() -> None:
    small, large = make.space("small"), make.space("large")
    bench, engine = bench_of(4096, spaces=(small, large), segment_bytes=2 * make.MIB)
    chain = make.keys(512, "a")
    engine.store(chain, PAGE, tenant="a")
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=512 * PAGE), QuotaSpec("b")))
    fill(engine, "b", 4096 - 512)
    for number in range(40):
        engine.store([make.key(("big", number))], 600 * make.KIB, tenant="b", space=1)
    assert engine.lookup(chain) == 512


def test_floors_above_the_capacity_are_scaled_and_shown() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=96 * PAGE), QuotaSpec("b", floor_bytes=32 * PAGE)))
    fill(engine, "a", 64)
    assert bench.tenant("a").floor_bytes == 96 * PAGE
    assert bench.tenant("a").effective_floor_bytes == 48 * PAGE
    fill(engine, "b", 64)
    assert (held(bench, "a"), held(bench, "b")) == (48, 16)


def test_a_resize_makes_floors_effective_again() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=96 * PAGE), QuotaSpec("b", floor_bytes=32 * PAGE)))
    bench.node.resize(256 * PAGE, bench.now)
    assert bench.tenant("a").effective_floor_bytes == bench.tenant("a").floor_bytes == 96 * PAGE
    fill(engine, "a", 96)
    fill(engine, "nobody", 512)
    assert held(bench, "a") == 96


def test_the_sum_of_effective_floors_never_exceeds_the_capacity() -> None:
    for capacity in (0, 1, 7, 1000, 10**12):
        floors = effective_floors({"a": 3, "b": 10**12, "c": 0, "d": 77}, capacity)
        assert sum(floors.values()) <= max(capacity, 0)
        assert all(value >= 0 for value in floors.values())


def test_ahead_of_need_nothing_of_a_floor_goes() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=60 * PAGE)))
    bench.apply(make.policy(high_watermark=0.8, low_watermark=0.5))
    fill(engine, "a", 64)
    bench.pass_time(1)
    assert held(bench, "a") == 60
