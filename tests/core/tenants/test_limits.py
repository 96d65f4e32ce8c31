"""Limits, rates and modes of tenants: what binds, what is only counted, and what is refused with its reason."""

from __future__ import annotations

import itertools

import pytest

from dataplane.core.tenants import quotas
from dataplane.core.tenants.tenant import Rate
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import OnExceed, QuotaSpec
from dataplane.protocol.events import BlocksEvicted, BlocksRefused
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import RING_COUNT_BITS, RING_KIND_SHIFT, RING_LOOKUP
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, refused


def test_without_a_snapshot_no_limit_binds_and_the_node_reports_it() -> None:
    bench, engine = bench_of(64)
    assert engine.store(make.keys(64), PAGE, tenant="a").written == 64
    assert not bench.node.stats(bench.now).armed
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
    assert bench.node.stats(bench.now).armed, "an empty table is a table"
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
    stats = bench.node.stats(bench.now)
    assert len(stats.tenants) == 1000
    assert stats.other_tenants is not None
    assert stats.tenants[0].tenant == "tenant-7", "largest first"


def test_look_ups_are_counted_for_their_tenant_also_before_it_stored() -> None:
    bench, engine = bench_of(64)
    entry = RING_LOOKUP << RING_KIND_SHIFT | 10 << RING_COUNT_BITS | 4
    engine.note(entry, tenant_fingerprint("a"))
    bench.pass_time(0.05)
    assert bench.node.stats(bench.now).totals.hit_blocks == 4
    engine.store(make.keys(1), PAGE, tenant="a")
    engine.note(entry, tenant_fingerprint("a"))
    bench.pass_time(0.05)
    assert (bench.tenant("a").requested_blocks, bench.tenant("a").hit_blocks) == (20, 8)


def test_a_bad_salt_is_a_refused_request_and_leaves_no_account() -> None:
    bench, engine = bench_of(64)
    with refused(Code.BAD_SALT):
        engine.reserve(make.keys(1), PAGE, tenant="a/b")
    assert bench.node.stats(bench.now).tenants == []


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


@pytest.mark.parametrize("on_exceed", ["evict_self", "reject"])
def test_no_reservation_ever_exceeds_a_limit(on_exceed: OnExceed) -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=20 * PAGE, on_exceed=on_exceed)))
    for number in range(30):
        engine.reserve(make.keys(1 + number, number), PAGE + 900 * (number % 9), tenant="a")
        assert bench.node.pool.tenants.get("a").bytes <= 20 * PAGE


def test_reject_refuses_blocks_over_the_limit_and_counts_them() -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=20 * PAGE, on_exceed="reject")))
    engine.store(make.keys(12, "first"), PAGE, tenant="a")
    stored = engine.store(make.keys(12, "second"), PAGE, tenant="a")
    assert stored.outcomes == {"WRITE": 8, "OVER_LIMIT": 4}
    assert engine.lookup(make.keys(12, "first")) == 12
    assert bench.tenant("a").refused == {"over_limit": 4}
    assert bench.tenant("a").refused_blocks == 4
    assert bench.refused() == {"over_limit": 4}


@pytest.mark.parametrize(("limit", "weight", "left"), [(2, 100.0, (2, 48)), (6, 9.0, (6, 44))])
def test_tenants_over_the_limit_lose_only_the_excess_before_borrowers(
    limit: int, weight: float, left: tuple[int, int]
) -> None:
    bench, engine = bench_of(64)
    over, borrower = make.keys(16, "over"), make.keys(48, "borrower")
    engine.store(borrower, PAGE, tenant="b")
    engine.store(over, PAGE, tenant="a")
    engine.acquire(over)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=limit * PAGE), QuotaSpec("b"), QuotaSpec("c", weight=weight)))
    engine.release()
    assert engine.store(make.keys(14, "c"), PAGE, tenant="c").written == 14
    assert (held(bench, "a"), held(bench, "b")) == left
    assert engine.lookup(borrower) == left[1]


def test_observed_quotas_refuse_nothing_and_count_would_be_refusals() -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=20 * PAGE, on_exceed="reject", mode="observe")))
    assert fill(engine, "a", 32) == 32
    stats = bench.tenant("a")
    assert (stats.would_refuse_blocks, stats.refused_blocks, stats.effective_floor_bytes) == (12, 0, 0)
    assert stats.over_limit
    assert stats.managed
    bench.pass_time(1)
    assert held(bench, "a") == 32


def test_an_observed_floor_protects_nothing() -> None:
    bench, engine = bench_of(64)
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=64 * PAGE, mode="observe"), QuotaSpec("b")))
    fill(engine, "a", 64)
    fill(engine, "b", 64)
    assert held(bench, "a") < 64


def test_a_block_that_rate_and_limit_would_refuse_counts_once() -> None:
    bench, engine = bench_of(256)
    spec = QuotaSpec("a", limit_bytes=4 * PAGE, store_rate_bytes=8 * PAGE, on_exceed="reject", mode="observe")
    bench.apply(make.shares(spec))
    assert engine.store(make.keys(20), PAGE, tenant="a").written == 20
    assert bench.tenant("a").would_refuse_blocks == 16


def test_a_rate_lets_one_seconds_worth_through_at_once_and_then_so_much_a_second() -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", store_rate_bytes=10 * PAGE)))
    assert engine.store(make.keys(16, 1), PAGE, tenant="a").outcomes == {"WRITE": 10, "RATE_LIMITED": 6}
    assert engine.store(make.keys(16, 2), PAGE, tenant="a").refused == {Code.RATE_LIMITED}
    bench.pass_time(0.5)
    assert engine.store(make.keys(16, 3), PAGE, tenant="a").written == 5
    bench.pass_time(60)
    assert engine.store(make.keys(16, 4), PAGE, tenant="a").written == 10
    assert bench.tenant("a").refused == {"rate_limited": 6 + 16 + 11 + 6}
    assert fill(engine, "b", 64) == 64, "no other tenant is paced"


def test_a_block_above_a_seconds_worth_passes_when_the_bucket_is_full_and_is_paid_for() -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", store_rate_bytes=PAGE)))
    assert engine.store(make.keys(2, 1), 8 * PAGE, tenant="a").outcomes == {"WRITE": 1, "RATE_LIMITED": 1}
    bench.pass_time(7)
    assert engine.store(make.keys(1, 2), 8 * PAGE, tenant="a").refused == {Code.RATE_LIMITED}
    bench.pass_time(1)
    assert engine.store(make.keys(1, 3), 8 * PAGE, tenant="a").written == 1


def test_an_observed_rate_makes_no_debt() -> None:
    bench, engine = bench_of(512)
    bench.apply(make.shares(QuotaSpec("a", store_rate_bytes=10 * PAGE, mode="observe")))
    for number in range(10):
        assert engine.store(make.keys(20, number), PAGE, tenant="a").written == 20
        bench.pass_time(1)
    assert bench.tenant("a").would_refuse_blocks == 100, "half of it, as when it bound"


def test_a_clock_that_is_put_back_makes_no_debt() -> None:
    rate = Rate(100, 100.0, 1000.0)
    assert rate.granted(10, 20, 10.0) == 10
    rate.spend(100)
    assert rate.granted(10, 20, 10.5) == 5


def test_refused_blocks_are_not_paid_for() -> None:
    bench, engine = bench_of(256)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=5 * PAGE, store_rate_bytes=10 * PAGE, on_exceed="reject")))
    assert engine.store(make.keys(16, 1), PAGE, tenant="a").outcomes == {"WRITE": 5, "OVER_LIMIT": 11}
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=50 * PAGE, store_rate_bytes=10 * PAGE), generation=2))
    assert engine.store(make.keys(16, 2), PAGE, tenant="a").written == 5


def test_stores_within_the_rate_are_charged_once_and_the_allowance_refills() -> None:
    rate = Rate(100, 100.0, 1000.0)
    assert rate.granted(10, 20, 1000.0) == 10
    rate.spend(100)
    assert rate.granted(10, 20, 1000.0) == 0
    assert rate.granted(10, 20, 1000.25) == 2
    rate.spend(20)
    assert rate.granted(10, 20, 1000.75) == 5
    assert rate.granted(10, 20, 1005.0) == 10, "never more than a second's worth"


@pytest.mark.parametrize("code", ["TOO_LARGE", "POOL_FULL", "TOO_MANY_RESERVATIONS", "OVER_LIMIT"])
def test_every_refusal_is_counted_for_the_tenant_and_for_the_node(code: str) -> None:
    bench, engine = bench_of(16)
    if code == "TOO_LARGE":
        refused = engine.store(make.keys(2), 17 * PAGE, tenant="a")
    elif code == "POOL_FULL":
        engine.reserve(make.keys(16, "held"), PAGE, tenant="b")
        refused = engine.store(make.keys(2), PAGE, tenant="a")
    elif code == "TOO_MANY_RESERVATIONS":
        bench, engine = bench_of(512)
        for number in range(256):
            engine.reserve([make.key(number)], PAGE, tenant="b")
        refused = engine.store(make.keys(2), PAGE, tenant="a")
    else:
        bench.apply(make.quotas({"a": 0}))
        refused = engine.store(make.keys(2), PAGE, tenant="a")
    assert refused.refused == {Code[code]}
    assert bench.tenant("a").refused == {code.lower(): 2}
    assert bench.refused() == {code.lower(): 2}
    assert bench.node.stats(bench.now).totals.refused_blocks == 2
