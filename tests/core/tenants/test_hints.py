"""Hints of requests: what they keep and drop, and how operators and quotas bound them."""

from __future__ import annotations

import math

import pytest

from dataplane.core.pool import hints
from dataplane.core.pool.hints import Hint
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make

HOUR = 3600.0


def test_blocks_under_a_hinted_pin_go_after_the_others_of_their_tenant_until_it_ends() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(16)
    engine.store(chain, PAGE, pin_s=60)
    assert bench.pool.hinted_bytes == 16 * PAGE
    fill(engine, "", 200)
    assert engine.lookup(chain) == 16
    bench.pass_time(62)
    assert bench.pool.hinted_bytes == 0
    fill(engine, "", 200, "more")
    assert engine.lookup(chain) == 0
    assert bench.node.check() == []


def test_the_tail_of_a_pinned_chain_goes_first() -> None:
    _, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(16)
    engine.store(chain[:8], PAGE, pin_s=60)
    engine.store(chain, PAGE, pin_s=60)
    assert engine.store(make.keys(56, "large"), PAGE).written == 56
    assert engine.lookup(chain) == 8


def test_a_pin_applies_to_blocks_that_are_cached_already() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(16)
    engine.store(chain, PAGE)
    assert engine.store(chain, PAGE, pin_s=60).written == 0
    fill(engine, "", 200)
    assert engine.lookup(chain) == 16
    assert bench.node.pool.totals.hinted_pin_blocks == 16


def test_a_later_hint_prolongs_a_pin_and_a_shorter_one_does_not_end_it() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(8)
    for seconds in (30, 90, 10):
        engine.store(chain, PAGE, pin_s=seconds)
    bench.pass_time(80)
    assert bench.pool.hinted_bytes == 8 * PAGE
    bench.pass_time(12)
    assert bench.pool.hinted_bytes == 0


def test_blocks_with_a_ttl_are_dropped_after_that_time_without_use() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    used, idle = make.keys(4, "used"), make.keys(4, "idle")
    engine.store(used, PAGE, ttl_s=30)
    engine.store(idle, PAGE, ttl_s=30)
    bench.pass_time(20)
    engine.acquire(used)
    engine.release()
    bench.pass_time(0)
    bench.pass_time(15)
    assert (engine.lookup(used), engine.lookup(idle)) == (4, 0)
    bench.pass_time(14)
    assert engine.lookup(used) == 4
    bench.pass_time(3)
    assert engine.lookup(used) == 0
    assert bench.node.pool.used_bytes == 0
    assert bench.node.pool.evicted["hint"].blocks == 8
    assert bench.node.check() == []


def test_a_ttl_does_not_affect_blocks_that_were_stored_before() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(8)
    engine.store(chain[:4], PAGE)
    engine.store(chain, PAGE, ttl_s=10)
    bench.pass_time(12)
    assert engine.lookup(chain) == 4


def test_a_leased_block_stays_until_its_lease_ends() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(4)
    engine.store(chain, PAGE, ttl_s=10)
    engine.acquire(chain)
    bench.pass_time(1)
    bench.pass_time(13)
    assert engine.lookup(chain) == 0
    assert held(bench, "") == 4
    engine.release()
    bench.pass_time(1)
    assert held(bench, "") == 0


def test_a_block_with_both_hints_is_dropped_in_time() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    engine.store(make.keys(4), PAGE, ttl_s=10, pin_s=100)
    bench.pass_time(12)
    assert (bench.pool.used_bytes, bench.pool.hinted_bytes) == (0, 0)
    assert bench.node.check() == []


@pytest.mark.parametrize("strength", ["soft", "guaranteed"])
def test_an_operators_pin_takes_precedence_over_a_ttl_and_outranks_a_hinted_pin(strength: str) -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain, hinted = make.keys(8), make.keys(8, "hinted")
    engine.store(chain, PAGE, ttl_s=10, pin_s=HOUR)
    engine.store(hinted, PAGE, pin_s=HOUR)
    bench.apply(*make.pins([make.pin("wish", chain, strength=strength)]))  # type: ignore[arg-type]
    bench.pass_time(12)
    assert engine.store(make.keys(56, "large"), PAGE).written == 56
    assert (engine.lookup(chain), engine.lookup(hinted)) == (8, 0)
    bench.apply(*make.pins([], 2))
    bench.pass_time(12)
    assert engine.lookup(chain) == 0, "without the pin, the hint has effect again"
    assert bench.node.check() == []


def test_a_hinted_pin_has_effect_again_after_an_operators_pin() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(8)
    engine.store(chain, PAGE, pin_s=HOUR)
    bench.apply(*make.pins([make.pin("wish", chain)]))
    bench.apply(*make.pins([], 2))
    fill(engine, "", 200)
    assert engine.lookup(chain) == 8


def test_an_operators_demotion_ends_a_hinted_pin() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(8)
    engine.store(chain, PAGE, pin_s=HOUR)
    engine.store(make.keys(50, "newer"), PAGE)
    bench.node.demote(Scope(keys=make.packed(chain)), bench.now)
    bench.pass_time(1)
    engine.store(make.keys(14, "large"), PAGE)
    assert engine.lookup(chain) == 0
    assert bench.pool.hinted_bytes == 0


def test_hinted_pins_hold_at_most_half_of_a_limit_and_never_raise_it() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=16 * PAGE)))
    chain = make.keys(12)
    engine.store(chain, PAGE, tenant="a", pin_s=HOUR)
    assert bench.pool.hinted_bytes == 8 * PAGE
    totals = bench.node.pool.totals
    assert (totals.hinted_pin_blocks, totals.refused_hinted_pin_blocks) == (8, 4)
    fill(engine, "a", 100)
    assert held(bench, "a") == 16
    assert engine.lookup(chain) == 8
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=4 * PAGE), generation=2))
    bench.pass_time(1)
    assert held(bench, "a") == 4
    assert engine.lookup(chain) == 4
    assert bench.node.check() == []


def test_tenants_without_a_quota_share_half_of_the_pool() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    for tenant in "ab":
        engine.store(make.keys(20, tenant), PAGE, tenant=tenant, pin_s=HOUR)
    assert bench.pool.hinted_bytes == 32 * PAGE


def test_a_hinted_pin_takes_nothing_from_other_accounts() -> None:
    seen = []
    for pin_s in (0.0, HOUR):
        bench, engine = bench_of(64, hint_max_s=HOUR)
        bench.apply(make.shares(QuotaSpec("a"), QuotaSpec("b"), QuotaSpec("c", floor_bytes=16 * PAGE)))
        engine.store(make.keys(32), PAGE, tenant="a", pin_s=pin_s)
        counts: list[list[int]] = []
        for tenant in "bcba":
            fill(engine, tenant, 40, (pin_s, len(counts)))
            counts.append([held(bench, each) for each in "abc"])
        seen.append(counts)
    assert seen[0] == seen[1]


def test_the_charge_of_hinted_pins_moves_with_a_tenant() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    engine.store(make.keys(8), PAGE, tenant="a", pin_s=HOUR)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=16 * PAGE)))
    assert bench.node.check() == []
    engine.store(make.keys(8, "b"), PAGE, tenant="a", pin_s=HOUR)
    assert bench.pool.hinted_bytes == 8 * PAGE
    bench.apply(make.shares(generation=2))
    assert bench.node.check() == []


def test_the_operators_maximum_shortens_hints() -> None:
    bench, engine = bench_of(64, hint_max_s=10.0)
    engine.store(make.keys(4, "pin"), PAGE, pin_s=1e9)
    engine.store(make.keys(4, "ttl"), PAGE, ttl_s=1e9)
    bench.pass_time(12)
    assert bench.pool.hinted_bytes == 0
    assert engine.lookup(make.keys(4, "ttl")) == 0


def test_a_maximum_of_0_switches_hints_off() -> None:
    bench, engine = bench_of(64)
    assert engine.store(make.keys(4), PAGE, ttl_s=1, pin_s=1).written == 4
    bench.pass_time(HOUR)
    assert engine.lookup(make.keys(4)) == 4
    assert bench.node.pool.hints.hinted == {}


@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf, 0.0])
def test_a_duration_that_is_not_positive_is_none(value: float) -> None:
    assert Hint(value, value).bounded(HOUR) is None
    assert Hint(value, 5.0).bounded(HOUR) == Hint(0.0, 5.0)


def test_a_step_handles_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MAX_AT_ONCE", 3)
    bench, engine = bench_of(64, hint_max_s=HOUR)
    engine.store(make.keys(8), PAGE, ttl_s=10)
    bench.pass_time(12)
    assert held(bench, "") == 5
    bench.pass_time(0.05, times=2)
    assert held(bench, "") == 0


def test_memory_of_hints_does_not_grow_with_stored_blocks() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    for number in range(40):
        engine.store(make.keys(8, number), PAGE, ttl_s=60 + number, pin_s=30 + number)
    table = bench.node.pool.hints
    assert len(table.hinted) == sum(len(each) for each in table._due.values()) == 64
    bench.node.invalidate(Scope(tenant=""), bench.now)
    bench.pass_time(1)
    assert (table.hinted, table._due, table.pinned_bytes) == ({}, {}, 0)
