"""Limits of tenants: they bind their own blocks and no others."""

from __future__ import annotations

import itertools

import pytest

from dataplane.core.stats import node_stats
from dataplane.core.tenants import quotas
from dataplane.protocol.codes import Code
from dataplane.protocol.events import BlocksEvicted, BlocksRefused
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import RING_COUNT_BITS, RING_KIND_SHIFT, RING_LOOKUP
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, refused

PAGE = 4096


def test_without_a_snapshot_no_limit_binds_and_the_node_reports_it() -> None:
    bench, engine = bench_of(64)
    assert engine.store(make.keys(64), PAGE, tenant="a").written == 64
    assert not node_stats(bench.node, bench.now).armed
    assert not bench.tenant("a").managed


def test_a_tenant_at_its_limit_evicts_its_own_oldest_blocks_and_no_others() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 8 * PAGE}))
    others = make.keys(20, "others")
    engine.store(others, PAGE, tenant="b")
    first, second = make.keys(5, "first"), make.keys(6, "second")
    engine.store(first, PAGE, tenant="a")
    assert engine.store(second, PAGE, tenant="a").written == 6
    assert engine.lookup(second) == 6
    assert engine.has(first) == [True, True, False, False, False]
    assert engine.lookup(others) == 20, "though there was room in the pool and older blocks of others"
    assert bench.tenant("a").bytes == 8 * PAGE
    assert {event.reason for event in bench.events(BlocksEvicted)} == {"limit"}


def test_stores_over_the_limit_are_refused_counted_and_reported() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 4 * PAGE}))
    stored = engine.store(make.keys(6), PAGE, tenant="a")
    assert stored.outcomes == {"WRITE": 4, "OVER_LIMIT": 2}
    assert bench.refused() == {"over_limit": 2}
    assert bench.tenant("a").refused_blocks == 2
    (event,) = bench.events(BlocksRefused)
    assert (event.tenant, event.reason, event.blocks, event.bytes) == ("a", "over_limit", 2, 2 * PAGE)
    assert not bench.tenant("a").over_limit


def test_a_limit_of_nothing_stores_nothing() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 0, "": PAGE - 1}))
    assert engine.store(make.keys(2), PAGE, tenant="a").refused == {Code.OVER_LIMIT}
    assert engine.store(make.keys(2), PAGE).refused == {Code.OVER_LIMIT}


def test_own_blocks_that_are_leased_may_not_go_for_a_new_one() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 4 * PAGE}))
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="a")
    engine.acquire(chain)
    assert engine.store(make.keys(1, "new"), PAGE, tenant="a").refused == {Code.OVER_LIMIT}
    assert engine.lookup(chain) == 4
    engine.release()
    assert engine.store(make.keys(1, "new"), PAGE, tenant="a").written == 1


def test_lowering_a_limit_evicts_unleased_blocks_at_once_and_leased_ones_on_release() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(10)
    engine.store(chain, PAGE, tenant="a")
    engine.store(make.keys(10, "b"), PAGE, tenant="b")
    engine.acquire(chain[:6])
    assert bench.apply(make.quotas({"a": 2 * PAGE})) == []
    assert bench.tenant("a").blocks == 6
    assert bench.tenant("a").over_limit
    assert bench.tenant("b").blocks == 10
    engine.release()
    bench.pass_time(0.05)
    assert bench.tenant("a").blocks == 2
    assert not bench.tenant("a").over_limit
    assert engine.lookup(chain) == 2, "the head of the chain outlives its tail"


def test_blocks_that_are_being_written_count_against_the_limit() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 4 * PAGE}))
    granted = engine.reserve(make.keys(3), PAGE, tenant="a")
    assert engine.store(make.keys(3, "more"), PAGE, tenant="a").outcomes == {"WRITE": 1, "OVER_LIMIT": 2}
    engine.abort(granted.reservation)
    assert engine.store(make.keys(3, "again"), PAGE, tenant="a").written == 3


def test_a_limit_charges_slots_not_block_sizes() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 4 * PAGE}))
    assert engine.store(make.keys(6), 100, tenant="a").outcomes == {"WRITE": 4, "OVER_LIMIT": 2}
    assert bench.tenant("a").bytes == 4 * PAGE


def test_a_removed_record_leaves_the_blocks_and_lifts_the_limit() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"a": 4 * PAGE, "b": None}))
    engine.store(make.keys(4), PAGE, tenant="a")
    assert bench.tenant("b").managed
    bench.apply(make.quotas({}, 2))
    assert bench.tenant("a").blocks == 4
    assert not bench.tenant("a").managed
    assert bench.tenant("a").limit_bytes is None
    assert engine.store(make.keys(8, "more"), PAGE, tenant="a").written == 8
    assert node_stats(bench.node, bench.now).armed, "an empty table is a table"
    bench.apply(make.quotas({"a": 6 * PAGE}, 3))
    assert bench.tenant("a").blocks == 6


def test_the_order_of_a_tenant_that_gets_a_limit_late_is_the_order_of_use() -> None:
    bench, engine = bench_of(64)
    for name in ("x", "y", "z"):
        engine.store(make.keys(1, name), PAGE, tenant="a")
    engine.acquire(make.keys(1, "x"))
    engine.release()
    bench.pass_time(0.05)
    bench.apply(make.quotas({"a": 2 * PAGE}))
    assert [engine.lookup(make.keys(1, name)) for name in ("x", "y", "z")] == [1, 0, 1]


def test_a_tenant_with_a_limit_still_gives_way_in_the_pools_order() -> None:
    bench, engine = bench_of(8)
    bench.apply(make.quotas({"a": 6 * PAGE}))
    engine.store(make.keys(6), PAGE, tenant="a")
    assert engine.store(make.keys(8, "b"), PAGE, tenant="b").written == 8
    assert bench.tenant("a").blocks == 0


def test_thousands_of_records_apply_at_once_and_leave_the_cache_alone() -> None:
    bench, engine = bench_of(64)
    engine.store(make.keys(64), PAGE, tenant="tenant-7")
    assert bench.apply(make.quotas({f"tenant-{number}": make.MIB for number in range(10_000)})) == []
    assert bench.tenant("tenant-7").blocks == 64
    stats = node_stats(bench.node, bench.now)
    assert len(stats.tenants) == 1000
    assert stats.other_tenants is not None
    assert stats.tenants[0].tenant == "tenant-7", "largest first"


def test_look_ups_are_counted_for_their_tenant_also_before_it_stored() -> None:
    bench, engine = bench_of(64)
    entry = RING_LOOKUP << RING_KIND_SHIFT | 10 << RING_COUNT_BITS | 4
    engine.note(entry, tenant_fingerprint("a"))
    bench.pass_time(0.05)
    assert node_stats(bench.node, bench.now).totals.hit_blocks == 4
    engine.store(make.keys(1), PAGE, tenant="a")
    engine.note(entry, tenant_fingerprint("a"))
    bench.pass_time(0.05)
    assert (bench.tenant("a").requested_blocks, bench.tenant("a").hit_blocks) == (20, 8)


def test_a_bad_salt_is_a_refused_request_and_leaves_no_account() -> None:
    bench, engine = bench_of(64)
    with refused(Code.BAD_SALT):
        engine.reserve(make.keys(1), PAGE, tenant="a/b")
    assert node_stats(bench.node, bench.now).tenants == []


def test_tenants_without_blocks_or_a_record_are_forgotten_a_few_at_a_time_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "MAX_IDLE_TENANTS", 100)
    monkeypatch.setattr(quotas, "MIN_VISITED", 50)
    bench, engine = bench_of(64)
    bench.apply(make.quotas({"managed": 8 * PAGE}))
    for number in range(400):
        engine.store(make.keys(1, f"chain {number}"), PAGE, tenant=f"tenant {number}")
    tenants = bench.node.pool.tenants
    sizes = [len(tenants.by_salt)]
    while sizes[-1] > 100:
        tenants.prune()
        sizes.append(len(tenants.by_salt))
        assert len(sizes) < 20
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= 50
    assert tenants.by_salt.keys() >= {"managed", *(f"tenant {number}" for number in range(400 - 64, 400))}


def test_the_more_tenants_are_too_many_the_more_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_IDLE_TENANTS", 0)
    monkeypatch.setattr(quotas, "MIN_VISITED", 1)
    tenants = Bench(64 * PAGE).node.pool.tenants
    for number in range(800):
        tenants.get(f"tenant {number}")
    tenants.prune()
    assert len(tenants.by_salt) == 700
