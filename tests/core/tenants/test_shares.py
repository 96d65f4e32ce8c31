"""Floors and weights: what others may not evict, who holds how much in the end, and the order in which it goes."""

from __future__ import annotations

import random

import pytest

from dataplane.core.tenants.accounts import effective_floors
from dataplane.protocol.control.records import ALGORITHMS, QuotaSpec
from dataplane.protocol.control.scopes import Scope
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size
from tests.work import lines_run

# ---- floors


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
    bench.node.demote(Scope(tenant="a"), bench.now)
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
        bench.node.demote(Scope(tenant=tenant), bench.now)
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
    bench.node.room.protect(frozenset())
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


# ---- weights


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
