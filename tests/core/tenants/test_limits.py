"""Limits, rates and modes: what binds, what is only counted, and what is refused with its reason."""

from __future__ import annotations

import pytest

from dataplane.core.stats import node_stats
from dataplane.core.tenants.tenant import Rate
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import OnExceed, QuotaSpec
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make


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
    assert node_stats(bench.node, bench.now).totals.refused_blocks == 2
