"""Pins of three strengths: what each keeps, who makes way for whom, and how they end."""

from __future__ import annotations

import pytest

from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.events import PinDegraded, PinExpired
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make


def test_blocks_under_a_soft_pin_go_last_and_tail_first() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(16)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("wish", chain, strength="soft")]))
    fill(engine, "", 200)
    assert engine.lookup(chain) == 16
    assert bench.pool.pinned_bytes == 0, "a soft pin needs no budget"
    assert engine.store(make.keys(56, "large"), PAGE).written == 56
    assert engine.lookup(chain) == 8


def test_a_soft_pin_decays_at_its_end() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(16)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("wish", chain, strength="soft", expires_at=bench.now + 60)]))
    bench.pass_time(59)
    fill(engine, "", 200)
    assert engine.lookup(chain) == 16
    bench.pass_time(2)
    assert [event.pin for event in bench.events(PinExpired) if isinstance(event, PinExpired)] == ["wish"]
    fill(engine, "", 200, "more")
    assert engine.lookup(chain) == 0
    assert bench.pin("wish").expired


def test_a_soft_pin_of_a_borrower_yields_to_a_floor_but_not_to_other_borrowers() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(32)
    engine.store(chain, PAGE, tenant="b")
    bench.apply(*make.pins([make.pin("wish", chain, tenant="b", strength="soft")]))
    bench.apply(make.shares(QuotaSpec("a", floor_bytes=48 * PAGE), QuotaSpec("b"), QuotaSpec("c")))
    fill(engine, "c", 100)
    assert engine.lookup(chain) == 32
    fill(engine, "a", 48)
    assert held(bench, "a") == 48
    assert engine.lookup(chain) == 16


@pytest.mark.parametrize("why", ["limit", "lowered limit", "floors of others", "above the limit"])
def test_under_a_quota_too_blocks_under_a_soft_pin_go_after_all_others(why: str) -> None:
    bench, engine = bench_of(64)
    wish, other = make.keys(8, "wish"), make.keys(8, "other")
    before = [QuotaSpec("b", floor_bytes=48 * PAGE)] if why == "floors of others" else [QuotaSpec("b")]
    if why == "limit":
        before.append(QuotaSpec("a", limit_bytes=16 * PAGE))
    bench.apply(make.shares(*before))
    for chain in (wish, other):  # the pinned ones are older
        engine.store(chain, PAGE, tenant="a")
    bench.apply(*make.pins([make.pin("wish", wish, tenant="a", strength="soft")]))
    if why == "limit":
        assert engine.store(make.keys(6, "new"), PAGE, tenant="a").written == 6
    elif why == "lowered limit":
        bench.apply(make.shares(QuotaSpec("a", limit_bytes=10 * PAGE), generation=2))
    elif why == "floors of others":
        fill(engine, "b", 48)
        bench.apply(make.shares(*before, QuotaSpec("a", floor_bytes=16 * PAGE), generation=2))
        assert engine.store(make.keys(6, "new"), PAGE, tenant="a").written == 6
    else:
        fill(engine, "b", 48)
        for chain in (wish, other):
            engine.acquire(chain)
        bench.apply(make.shares(*before, QuotaSpec("a", limit_bytes=8 * PAGE), generation=2))
        engine.release()
        assert fill(engine, "c", 6) == 6
    assert (engine.lookup(wish), engine.lookup(other)) == (8, 2)


def test_hits_move_the_end_and_never_nearer() -> None:
    bench, engine = bench_of(64)
    chain, far = make.keys(4), make.keys(4, "far")
    engine.store(chain, PAGE)
    engine.store(far, PAGE)
    near_end, far_end = bench.now + 100, bench.now + 5000
    bench.apply(
        *make.pins(
            [
                make.pin("near", chain, expires_at=near_end, refresh_s=300),
                make.pin("far", far, expires_at=far_end, refresh_s=300),
            ]
        )
    )
    bench.pass_time(90)
    for each in (chain, far):
        engine.acquire(each[:2])
    bench.pass_time(1)
    assert bench.pin("near").expires_at == pytest.approx(bench.now + 300, abs=2)
    assert bench.pin("far").expires_at == far_end
    bench.pass_time(250)
    assert not bench.pin("near").expired
    bench.pass_time(100)
    assert bench.pin("near").expired
    assert not bench.pin("far").expired


@pytest.mark.parametrize("strength", ["guaranteed", "permanent"])
def test_a_tenants_budget_bounds_its_guaranteed_bytes(strength: Strength) -> None:
    bench, engine = bench_of(64, pin_budget_bytes=32 * PAGE)
    chain = make.keys(16)
    bench.apply(make.shares(QuotaSpec("a", pin_budget_bytes=6 * PAGE)))
    engine.store(chain, PAGE, tenant="a")
    bench.apply(*make.pins([make.pin("p", chain, tenant="a", strength=strength)]))
    assert (bench.pin("p").guaranteed, bench.pin("p").degraded) == (6, 10)
    assert bench.tenant("a").pinned_bytes == 6 * PAGE
    bench.apply(make.shares(QuotaSpec("a", pin_budget_bytes=10 * PAGE), generation=2))
    assert bench.pin("p").guaranteed == 10
    bench.apply(make.shares(QuotaSpec("a", pin_budget_bytes=2 * PAGE), generation=3))
    assert bench.pin("p").guaranteed == (10 if strength == "permanent" else 2)


def test_the_budget_holds_the_start_of_a_chain() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=6 * PAGE)
    chain = make.keys(16)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("p", chain)]))
    fill(engine, "", 8)
    assert engine.store(make.keys(58, "large"), PAGE).written == 58
    assert engine.lookup(chain) == 6


def test_a_permanent_pin_displaces_a_guaranteed_one_which_is_reported_and_comes_back() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=8 * PAGE)
    first, second = make.keys(8, "first"), make.keys(6, "second")
    engine.store(first, PAGE)
    engine.store(second, PAGE)
    guaranteed = make.pin("guaranteed", first)
    permanent = make.pin("permanent", second, strength="permanent")
    bench.apply(*make.pins([guaranteed]))
    assert bench.pin("guaranteed").guaranteed == 8
    bench.apply(*make.pins([guaranteed, permanent], 2))
    assert (bench.pin("permanent").guaranteed, bench.pin("guaranteed").guaranteed) == (6, 2)
    bench.pass_time(0.1)
    degraded = [event for event in bench.events(PinDegraded) if isinstance(event, PinDegraded)]
    assert [(event.pin, event.blocks) for event in degraded] == [("guaranteed", 6)]
    assert bench.faults() == []
    bench.apply(*make.pins([guaranteed], 3))
    assert bench.pin("guaranteed").guaranteed == 8


def test_a_permanent_pin_that_cannot_fit_displaces_no_other() -> None:
    bench, engine = bench_of(1024, pin_budget_bytes=8 * PAGE)
    small, large = make.keys(8, "small"), make.keys(1, "large")
    engine.store(small, PAGE)
    engine.store(large, 12 * PAGE)
    guaranteed = make.pin("small", small)
    bench.apply(*make.pins([guaranteed]))
    bench.apply(*make.pins([guaranteed, make.pin("large", large, strength="permanent")], 2))
    assert (bench.pin("small").guaranteed, bench.pin("large").degraded) == (8, 1)
    bench.pass_time(0.1)
    names = [event.pin for event in bench.events(PinDegraded) if isinstance(event, PinDegraded)]
    assert names == ["large"]


def test_freed_budget_goes_to_permanent_pins_first() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=8 * PAGE)
    one, two, three = (make.keys(8, name) for name in ("one", "two", "three"))
    for chain in (one, two, three):
        engine.store(chain, PAGE)
    first = make.pin("one", one, strength="permanent")
    second = make.pin("two", two)
    third = make.pin("three", three, strength="permanent")
    bench.apply(*make.pins([first]))
    bench.apply(*make.pins([first, second], 2))
    bench.apply(*make.pins([first, second, third], 3))
    assert [bench.pin(name).guaranteed for name in ("one", "two", "three")] == [8, 0, 0]
    bench.apply(*make.pins([second, third], 4))
    assert [bench.pin(name).guaranteed for name in ("two", "three")] == [0, 8]


def test_the_strongest_of_several_pins_on_a_block_counts_until_it_ends() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(8)
    engine.store(chain, PAGE)
    soft = make.pin("soft", chain, strength="soft")
    short = make.pin("short", chain[:4], expires_at=bench.now + 10)
    bench.apply(*make.pins([soft, short]))
    assert bench.pool.pinned_bytes == 4 * PAGE
    assert (bench.pin("soft").resident, bench.pin("short").guaranteed) == (8, 4)
    bench.pass_time(11)
    assert bench.pool.pinned_bytes == 0
    fill(engine, "", 200)
    assert engine.lookup(chain) == 8, "still under the soft one"
    bench.apply(*make.pins([], 2))
    fill(engine, "", 200, "more")
    assert engine.lookup(chain) == 0


@pytest.mark.parametrize("strength", ["soft", "guaranteed", "permanent"])
def test_blocks_that_arrive_later_are_under_their_pin(strength: Strength) -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(8)
    bench.apply(*make.pins([make.pin("p", chain, strength=strength)]))
    open_one = engine.reserve(chain[:4], PAGE)
    engine.commit(open_one.reservation)
    engine.store(chain, PAGE)
    fill(engine, "", 200)
    assert engine.lookup(chain) == 8
    assert bench.pin("p").resident == 8


def test_a_pool_full_of_pins_and_leases_refuses_with_a_reason_and_serves_when_they_end() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=32 * PAGE)
    pinned, leased = make.keys(32, "pinned"), make.keys(32, "leased")
    engine.store(pinned, PAGE)
    engine.store(leased, PAGE)
    bench.apply(*make.pins([make.pin("p", pinned)]))
    engine.acquire(leased)
    for _ in range(3):
        assert engine.store(make.keys(4, "new"), PAGE).refused == {Code.POOL_FULL}
    assert bench.refused() == {"pool_full": 12}
    engine.release()
    assert engine.store(make.keys(4, "new"), PAGE).written == 4


@pytest.mark.parametrize("strength", ["soft", "guaranteed", "permanent"])
def test_pins_never_make_another_size_or_space_impossible(strength: Strength) -> None:
    """A pin in every slab is the worst that pins can do."""
    one, two = make.space("one"), make.space("two")
    bench, engine = bench_of(8 * 512, spaces=(one, two), pin_budget_bytes=16 * PAGE, max_blocks=8192)
    chains = [make.keys(8, number) for number in range(512)]
    for chain in chains:
        engine.store(chain, PAGE)
    scattered = [chain[0] for chain in chains[::40]]
    bench.apply(*make.pins([make.pin("p", scattered, model="one", strength=strength)]))
    for size, space in ((5 * PAGE, 0), (make.MIB, 0), (PAGE, 1), (make.MIB, 1)):
        stored = engine.store([make.key(("new", size, space))], size, space=space)
        assert stored.written == 1 or stored.refused == {Code.FRAGMENTED}
        if strength == "soft":
            assert stored.written == 1
    assert engine.store(make.keys(8, "same size"), PAGE).written == 8
    if strength != "soft":
        assert engine.has(scattered) == [True] * len(scattered)
