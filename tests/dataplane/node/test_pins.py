"""Pins keep what they name, now and later, inside a budget that nothing can exceed."""

from __future__ import annotations

from typing import Any

from dataplane.protocol.events import PinDegraded, PinExpired
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine

PAGE = 4096


def bench_of(blocks: int = 64, budget: int = 16, **options: Any) -> tuple[Bench, BenchEngine]:
    bench = Bench(blocks * PAGE, pin_budget_bytes=budget * PAGE, **options)
    return bench, bench.attach()


def scan(engine: BenchEngine, blocks: int, name: object = "scan") -> None:
    """Store many blocks that were not requested before."""
    for number in range(0, blocks, 8):
        engine.store(make.keys(8, (name, number)), PAGE)


def test_pins_beyond_the_budget_are_degraded_and_promoted_later() -> None:
    bench, engine = bench_of(budget=8)
    one, two = make.keys(6, "one"), make.keys(6, "two")
    engine.store(one, PAGE)
    engine.store(two, PAGE)
    first, second = make.pin("one", one), make.pin("two", two)
    bench.apply(*make.pins([first]))
    bench.apply(*make.pins([first, second], 2))
    assert bench.pin("one").guaranteed == 6
    assert (bench.pin("two").resident, bench.pin("two").guaranteed) == (6, 2)
    assert bench.faults() == []
    bench.apply(*make.pins([second], 3))
    assert bench.pin("two").guaranteed == 6
    assert bench.pool.pinned_bytes == 6 * PAGE
    scan(engine, 3 * 64)
    assert engine.lookup(two) == 6
    assert engine.lookup(one) == 0


def test_blocks_of_a_pin_beyond_the_budget_are_reported_as_an_event() -> None:
    bench, engine = bench_of(budget=4)
    chain = make.keys(6)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("big", chain)]))
    bench.pass_time(0.05)
    (event,) = bench.events(PinDegraded)
    assert isinstance(event, PinDegraded)
    assert (event.pin, event.tenant, event.blocks) == ("big", "_default", 2)


def test_an_expired_pin_holds_nothing_and_is_shown_as_expired() -> None:
    bench, engine = bench_of()
    chain = make.keys(4)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("late", chain, expires_at=bench.now - 1)]))
    assert bench.pin("late").expired, "also one that arrives expired"
    assert bench.pool.pinned_bytes == 0
    record = make.pin("for a while", chain, expires_at=bench.now + 60)
    bench.apply(*make.pins([record], 2))
    bench.pass_time(59)
    assert not bench.pin("for a while").expired
    bench.pass_time(2)
    stats = bench.pin("for a while")
    assert (stats.expired, stats.resident, stats.guaranteed, stats.bytes) == (True, 0, 0, 0)
    events = [event.pin for event in bench.events(PinExpired) if isinstance(event, PinExpired)]
    assert events == ["late", "for a while"]
    assert bench.pool.pinned_bytes == 0
    scan(engine, 2 * 64)
    assert engine.lookup(chain) == 0
    assert bench.apply(*make.pins([record], 3)) == [], "the same record again wakes nothing"
    assert bench.pin("for a while").expired
    later = make.pin("for a while", chain, expires_at=bench.now + 60)
    bench.apply(*make.pins([later], 4))
    assert not bench.pin("for a while").expired, "a new deadline does"


def test_a_block_under_two_pins_is_charged_once_and_stays_until_both_are_gone() -> None:
    bench, engine = bench_of()
    chain = make.keys(6)
    engine.store(chain, PAGE)
    long, short = make.pin("long", chain), make.pin("short", chain[:3])
    bench.apply(*make.pins([long, short]))
    assert bench.pool.pinned_bytes == 6 * PAGE
    assert (bench.pin("long").guaranteed, bench.pin("short").guaranteed) == (6, 3)
    bench.apply(*make.pins([short], 2))
    assert bench.pool.pinned_bytes == 3 * PAGE
    assert bench.pin("short").guaranteed == 3
    scan(engine, 3 * 64)
    assert engine.lookup(chain) == 3
    bench.apply(*make.pins([], 3))
    assert bench.pool.pinned_bytes == 0


def test_a_pin_holds_in_every_space_of_its_model_and_in_no_other() -> None:
    bench = Bench(8 * make.MIB, pin_budget_bytes=make.MIB)
    spaces = [make.space(rank=0, world_size=2), make.space(rank=1, world_size=2), make.space("other-model")]
    engine = bench.attach(*spaces)
    chain = make.keys(4)
    for number in range(3):
        engine.store(chain, PAGE, space=number)
    bench.apply(*make.pins([make.pin("x", chain)]))
    stats = bench.pin("x")
    assert (stats.resolved, stats.resident, stats.guaranteed) == (8, 8, 8)
    for number in range(3 * 512 * 4 // 8):
        engine.store(make.keys(8, ("scan", number)), PAGE, space=2)
    assert [engine.lookup(chain, number) for number in range(3)] == [4, 4, 0]


def test_a_space_that_attaches_after_the_pin_is_applied_too() -> None:
    bench = Bench(8 * make.MIB, pin_budget_bytes=make.MIB)
    chain = make.keys(4)
    bench.apply(*make.pins([make.pin("x", chain)]))
    assert (bench.pin("x").resolved, bench.pin("x").resident) == (4, 0)
    engine = bench.attach(make.space(rank=0, world_size=2), make.space(rank=1, world_size=2))
    engine.store(chain, PAGE, space=0)
    engine.store(chain, PAGE, space=1)
    assert (bench.pin("x").resolved, bench.pin("x").guaranteed) == (8, 8)


def test_residency_counts_stay_exact_when_blocks_come_and_go() -> None:
    bench, engine = bench_of(blocks=8, budget=2)
    chain = make.keys(6)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("x", chain)]))
    for number in range(1, 7):  # what the budget has no room for is the last to go
        engine.store(make.keys(number, number), PAGE)
        stats = bench.pin("x")
        assert stats.resident == min(6, 8 - number) == sum(engine.has(chain))
        assert stats.degraded == stats.resident - 2
        assert stats.bytes == stats.resident * PAGE
        assert stats.guaranteed == 2
    assert bench.pin("x").resident == 2


def test_a_key_that_stands_twice_in_a_pin_counts_once() -> None:
    bench, engine = bench_of()
    chain = make.keys(3)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("x", [*chain, chain[0]])]))
    stats = bench.pin("x")
    assert (stats.resolved, stats.resident, stats.bytes) == (3, 3, 3 * PAGE)


def test_a_changed_pin_moves_its_guarantee() -> None:
    bench, engine = bench_of(budget=4)
    old, new = make.keys(4, "old"), make.keys(4, "new")
    engine.store(old, PAGE)
    engine.store(new, PAGE)
    bench.apply(*make.pins([make.pin("x", old)]))
    bench.apply(*make.pins([make.pin("x", new)], 2))
    assert bench.pin("x").guaranteed == 4, "the old keys' budget is free before the new ones take it"
    scan(engine, 2 * 64)
    assert (engine.lookup(old), engine.lookup(new)) == (0, 4)


def test_a_limit_below_pinned_bytes_degrades_pins() -> None:
    bench, engine = bench_of()
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="a")
    bench.apply(*make.pins([make.pin("x", chain, tenant="a")]))
    bench.apply(make.quotas({"a": 2 * PAGE}))
    assert engine.lookup(chain) == 2, "the limit binds"
    assert (bench.pin("x").guaranteed, bench.pin("x").degraded) == (1, 1), "nine tenths of it may be pinned"
    assert engine.store(make.keys(1, "new"), PAGE, tenant="a").written == 1, "so there is room for something new"
    assert engine.lookup(chain) == 1
