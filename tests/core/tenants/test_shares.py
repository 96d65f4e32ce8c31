"""Weights, and tenants that get a quota, change it or lose it: who holds how much in the end, in what order it goes."""

from __future__ import annotations

import random

import pytest

from dataplane.protocol.control.records import ALGORITHMS, QuotaSpec
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size
from tests.work import lines_run


def compete(engine: BenchEngine, tenants: list[str], rounds: int) -> None:
    """Everybody wants everything."""
    for number in range(rounds):
        for tenant in tenants:
            engine.store(make.keys(4, (number, tenant)), PAGE, tenant=tenant)


def test_borrowed_room_converges_to_the_weights() -> None:
    bench, engine = bench_of(1000)
    bench.apply(make.shares(QuotaSpec("a", weight=5.0), QuotaSpec("b", weight=4.0), QuotaSpec("c", weight=1.0)))
    fill(engine, "c", 1000)
    compete(engine, ["a", "b", "c"], 400)
    shares = [held(bench, name) for name in "abc"]
    assert sum(shares) == 1000
    for share, expected in zip(shares, (500, 400, 100), strict=True):
        assert abs(share - expected) <= 8


def test_each_holds_its_floor_or_its_weight_at_one_level_whichever_is_more() -> None:
    bench, engine = bench_of(1000)
    bench.apply(
        make.shares(QuotaSpec("a", floor_bytes=600 * PAGE), QuotaSpec("b", weight=3.0), QuotaSpec("c", weight=1.0))
    )
    fill(engine, "a", 1000)
    compete(engine, ["a", "b", "c"], 400)
    for share, expected in zip([held(bench, name) for name in "abc"], (600, 300, 100), strict=True):
        assert abs(share - expected) <= 8


@pytest.mark.parametrize("weights", [(1.0, 1.0), (8.0, 0.5), (1.0, 0.01)])
def test_the_largest_share_gives_first_whoever_asks_and_however_many_bytes_it_is(weights: tuple[float, float]) -> None:
    bench, engine = bench_of(64)
    specs = [QuotaSpec(name, weight=weight) for name, weight in zip("ab", weights, strict=True)]
    bench.apply(make.shares(*specs, QuotaSpec("c", weight=100.0), QuotaSpec("d", weight=100.0)))
    fill(engine, "b", 24 if weights[0] > weights[1] else 36)
    fill(engine, "a", 36 if weights[0] > weights[1] else 24)
    fill(engine, "c", 4)
    a, b, c = (held(bench, name) for name in "abc")
    fill(engine, "d", 4)
    assert [held(bench, name) for name in "abcd"] == [a, b - 4, c, 4]


def test_only_borrowers_are_evicted_from_largest_share_first() -> None:
    bench, engine = bench_of(64)
    specs = [QuotaSpec("a", weight=4.0), QuotaSpec("b", weight=0.5), QuotaSpec("c")]
    specs.append(QuotaSpec("d", floor_bytes=9 * PAGE))
    bench.apply(make.shares(*specs))
    for tenant, blocks in (("a", 20), ("b", 5), ("c", 7), ("d", 9)):
        fill(engine, tenant, blocks)
    pool = bench.node.pool
    accounts = {pool.tenants.get(name).account: name for name in "abcd"}
    for _ in range(2):
        assert [accounts[each] for each in pool.order.ranking.borrowers()] == ["b", "c", "a"]


def test_an_unused_share_goes_to_the_others() -> None:
    bench, engine = bench_of(100)
    bench.apply(make.shares(QuotaSpec("a", weight=9.0), QuotaSpec("b", weight=1.0)))
    fill(engine, "a", 10)
    fill(engine, "b", 200)
    assert (held(bench, "a"), held(bench, "b")) == (10, 90)


def test_tenants_without_a_record_borrow_together_like_one_of_weight_one() -> None:
    bench, engine = bench_of(400)
    bench.apply(make.shares(QuotaSpec("a", weight=3.0)))
    others = [f"s{number}" for number in range(50)]
    for number in range(30):
        fill(engine, "a", 16, number)
        for name in others:
            engine.store(make.keys(1, (number, name)), PAGE, tenant=name)
    assert abs(held(bench, "a") - 300) <= 16
    assert sum(held(bench, name) for name in others) == 400 - held(bench, "a")


def test_among_tenants_without_a_record_the_oldest_goes_whoever_has_it() -> None:
    _, engine = bench_of(64)
    for number in range(16):
        engine.store(make.keys(4, number), PAGE, tenant=f"t{number}")
    engine.store(make.keys(4, "new"), PAGE, tenant="t15")
    assert engine.lookup(make.keys(4, 0)) == 0
    assert all(engine.lookup(make.keys(4, number)) == 4 for number in range(1, 16))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_moving_between_accounts_keeps_the_order_in_which_blocks_would_go(algorithm: str) -> None:
    bench, engine = bench_of(96)
    bench.apply(make.policy(algorithm=algorithm))
    rng = random.Random(3)
    chains = [(make.keys(4, number), "ab"[number % 2]) for number in range(24)]
    for chain, tenant in chains:
        engine.store(chain, PAGE, tenant=tenant)
        bench.now += 1
    for _ in range(40):
        engine.acquire(rng.choice(chains)[0])
        engine.release()
        bench.pass_time(1)
    before = order_of(bench, "a")
    bench.apply(make.shares(QuotaSpec("a"), QuotaSpec("b", mode="observe")))
    if algorithm in ("lru", "fifo", "noop"):
        assert order_of(bench, "a") == before
    assert set(order_of(bench, "a")) == set(before)
    bench.apply(make.shares(QuotaSpec("b", mode="observe"), generation=2))
    if algorithm in ("lru", "noop"):
        assert order_of(bench, "a") == before
    assert set(order_of(bench, "a")) == set(before)


def order_of(bench: Bench, salt: str) -> list[int]:
    tenant = bench.node.pool.tenants.get(salt)
    blocks = bench.node.pool.table.blocks
    victims = tenant.account.queue.policy.victims(bench.now)
    return [number for number in victims if blocks[number].tenant is tenant]


def test_a_record_that_goes_and_comes_loses_no_recency_against_others() -> None:
    bench, engine = bench_of(64)
    old, new = make.keys(32, "old"), make.keys(32, "new")
    engine.store(old, PAGE, tenant="a")
    bench.pass_time(1)
    engine.store(new, PAGE, tenant="b")
    for generation, specs in enumerate([(QuotaSpec("a"),), (), (QuotaSpec("b"),), ()], 1):
        bench.apply(make.shares(*specs, generation=generation))
    engine.store(make.keys(16, "more"), PAGE, tenant="c")
    assert (engine.lookup(old), engine.lookup(new)) == (16, 32)


def test_twenty_thousand_tenants_without_a_record_cost_as_much_as_one() -> None:
    bench, engine = bench_of(4096)
    fill(engine, "one", 4096)

    def work(tenants: list[str]) -> int:
        keys = [make.key((tenant, number)) for number, tenant in enumerate(tenants)]
        return lines_run(
            lambda: [engine.store([key], PAGE, tenant=tenant) for key, tenant in zip(keys, tenants, strict=True)]
        )

    alone = work(["one"] * 500)
    for number in range(20_000):
        bench.node.pool.tenants.get(f"t{number}")
    assert work([f"u{number}" for number in range(500)]) < 3 * alone
    assert len(bench.node.pool.order.accounts()) == 1
    bench.pass_time(0.5, times=30)
    assert len(bench.node.pool.tenants.by_salt) <= 13_000, "idle ones are forgotten"


def test_ten_thousand_quotas_and_ten_thousand_pins_apply() -> None:
    count = size(10_000, 1_000)
    bench, engine = bench_of(32_768, max_blocks=32_768, pin_budget_bytes=8192 * PAGE)
    for number in range(min(count, 4096)):
        engine.store(make.keys(8, number), PAGE, tenant=f"t{number}")
    quotas = make.shares(
        *[QuotaSpec(f"t{number}", floor_bytes=3 * PAGE, limit_bytes=64 * PAGE) for number in range(count)]
    )
    pins, bodies = make.pins([make.pin(f"p{number}", make.keys(4, number)) for number in range(count)])
    assert bench.apply(quotas) == []
    assert bench.apply(pins, bodies) == []


def test_ten_thousand_accounts_within_their_floors_cost_a_reservation_nothing() -> None:
    count = size(10_000, 1_000)
    bench, engine = bench_of(2 * count + 480, max_blocks=2 * count + 480)
    specs = [QuotaSpec(f"t{number}", floor_bytes=PAGE, weight=0.01) for number in range(count)]
    bench.apply(make.shares(*specs))
    for number in range(count):
        engine.store([make.key(number)], PAGE, tenant=f"t{number}")
    fill(engine, "foreign", count + 480)

    crowded = lines_run(lambda: fill(engine, "foreign", 800, "crowded"))
    bench.apply(make.shares(QuotaSpec("t1", floor_bytes=PAGE), generation=2))
    assert crowded < 3 * lines_run(lambda: fill(engine, "foreign", 800, "alone"))
