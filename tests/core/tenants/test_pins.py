"""Pins hold blocks of their tenant, now and later, by their strength, inside budgets that nothing can exceed."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.core.blocks.blocks import BlockTable
from dataplane.core.operator import intent as intent_module
from dataplane.core.operator.listing import list_blocks
from dataplane.protocol.codes import Code
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import PinDegraded, PinExpired
from dataplane.protocol.spaces import Space
from tests.core.pool.test_sweeps import seen, settle
from tests.core.tenancy import PAGE, bench_of, fill, held
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine


def pinned_bench(blocks: int = 64, budget: int = 16, **options: Any) -> tuple[Bench, BenchEngine]:
    bench = Bench(blocks * PAGE, pin_budget_bytes=budget * PAGE, **options)
    return bench, bench.attach()


def scan(engine: BenchEngine, blocks: int, name: object = "scan") -> None:
    """Store many blocks that were not requested before."""
    for number in range(0, blocks, 8):
        engine.store(make.keys(8, (name, number)), PAGE)


def test_pins_beyond_the_budget_are_degraded_and_promoted_later() -> None:
    bench, engine = pinned_bench(budget=8)
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
    bench, engine = pinned_bench(budget=4)
    chain = make.keys(6)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("big", chain)]))
    bench.pass_time(0.05)
    (event,) = bench.events(PinDegraded)
    assert isinstance(event, PinDegraded)
    assert (event.pin, event.tenant, event.blocks) == ("big", "_default", 2)


def test_an_expired_pin_holds_nothing_and_is_shown_as_expired() -> None:
    bench, engine = pinned_bench()
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
    bench, engine = pinned_bench()
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
    bench, engine = pinned_bench(blocks=8, budget=2)
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
    bench, engine = pinned_bench()
    chain = make.keys(3)
    engine.store(chain, PAGE)
    bench.apply(*make.pins([make.pin("x", [*chain, chain[0]])]))
    stats = bench.pin("x")
    assert (stats.resolved, stats.resident, stats.bytes) == (3, 3, 3 * PAGE)


def test_a_changed_pin_moves_its_guarantee() -> None:
    bench, engine = pinned_bench(budget=4)
    old, new = make.keys(4, "old"), make.keys(4, "new")
    engine.store(old, PAGE)
    engine.store(new, PAGE)
    bench.apply(*make.pins([make.pin("x", old)]))
    bench.apply(*make.pins([make.pin("x", new)], 2))
    assert bench.pin("x").guaranteed == 4, "the old keys' budget is free before the new ones take it"
    scan(engine, 2 * 64)
    assert (engine.lookup(old), engine.lookup(new)) == (0, 4)


def test_a_limit_below_pinned_bytes_degrades_pins() -> None:
    bench, engine = pinned_bench()
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="a")
    bench.apply(*make.pins([make.pin("x", chain, tenant="a")]))
    bench.apply(make.quotas({"a": 2 * PAGE}))
    assert engine.lookup(chain) == 2, "the limit binds"
    assert (bench.pin("x").guaranteed, bench.pin("x").degraded) == (1, 1), "nine tenths of it may be pinned"
    assert engine.store(make.keys(1, "new"), PAGE, tenant="a").written == 1, "so there is room for something new"
    assert engine.lookup(chain) == 1


# ---- strengths


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


# ---- equal keys


def test_pins_of_equal_keys_hold_as_the_strongest_of_them() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    soft, firm = make.pin("soft", chain, strength="soft"), make.pin("firm", chain)
    for_ever = make.pin("for ever", chain, strength="permanent")
    guaranteed = []
    for number, records in enumerate(([soft], [soft, firm], [firm, soft, for_ever], [firm], [soft, firm], [soft], [])):
        assert bench.apply(*make.pins(records, number + 1)) == []
        guaranteed.append((bench.pool.pinned_bytes // PAGE, len(bench.node.pool.pins.permanent)))
        stats = bench.node.stats(bench.now).pins
        assert [(pin.resident, pin.bytes) for pin in stats] == [(4, 4 * PAGE)] * len(records)
        assert bench.faults() == []
    assert guaranteed == [(0, 0), (4, 0), (4, 4), (4, 0), (4, 0), (0, 0), (0, 0)]


def test_of_pins_of_equal_keys_each_ends_at_its_own_time() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    records = [
        make.pin("short", chain, expires_at=bench.now + 10),
        make.pin("kept by hits", chain, expires_at=bench.now + 10, refresh_s=20, strength="soft"),
    ]
    bench.apply(*make.pins(records))
    bench.pass_time(5)
    engine.acquire(chain)
    bench.pass_time(1)
    late = make.pin("late", chain, expires_at=bench.now + 5, refresh_s=100, strength="soft")
    bench.apply(*make.pins([*records, late], 2))
    assert bench.pool.pinned_bytes == 4 * PAGE
    bench.pass_time(8)
    ends = {pin.name: (pin.expired, pin.resident) for pin in bench.node.stats(bench.now).pins}
    assert ends == {"short": (True, 0), "kept by hits": (False, 4), "late": (True, 0)}
    assert bench.pool.pinned_bytes == 0, "a soft pin is all that is left"
    bench.pass_time(20)
    assert bench.pin("kept by hits").expired
    assert not bench.node.pool.pins.marked


def test_a_block_knows_pins_of_equal_keys_as_one() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    assert bench.apply(*make.pins([make.pin(f"p{number}", chain) for number in range(50)])) == []
    assert [len(bundles) for bundles in bench.node.pool.pins.marked.values()] == [1] * len(bench.node.pool.table.blocks)
    assert len({id(pin.keys) for pin in bench.node.pool.pins.by_name.values()}) == 1


def test_more_keys_of_pins_than_a_node_keeps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intent_module, "MAX_PINNED_KEYS", 10)
    bench, _ = bench_of(64)
    chain = make.keys(6)
    same = [make.pin(f"p{number}", chain) for number in range(5)]
    assert bench.apply(*make.pins(same)) == [], "the same keys count once"
    (fault,) = bench.apply(*make.pins([*same, make.pin("other", make.keys(5, "other"))], 2))
    assert (fault.path, fault.code) == ("pins", "too_many")
    assert len(bench.node.pool.pins.by_name) == 5, "nothing changed"


def test_a_pin_is_not_looked_up_in_spaces_that_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = tuple(Space(model=make.MODEL, revision=str(number)) for number in range(100))
    bench, engine = bench_of(64, spaces=spaces)
    engine.store(make.keys(4), PAGE, space=7)
    looked = []
    find = BlockTable.find

    def counted(table: BlockTable, words: object, space: int) -> object:
        looked.append(space)
        return find(table, words, space)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockTable, "find", counted)
    bench.apply(*make.pins([make.pin("p", make.keys(4))]))
    assert looked == [engine.spaces[7]]
    assert bench.pin("p").resident == 4


# ---- tenants


RANKS = (make.space(rank=0, world_size=2), make.space(rank=1, world_size=2))


def counted(bench: Bench, name: str) -> tuple[int, int, int, int]:
    """What a pin says that it has: resident, bytes, guaranteed, degraded."""
    stats = bench.pin(name)
    return stats.resident, stats.bytes, stats.guaranteed, stats.degraded


@pytest.mark.parametrize("strength", ["soft", "guaranteed", "permanent"])
@pytest.mark.parametrize("first", ["block", "pin"])
def test_a_pin_with_the_keys_of_another_tenant_holds_nothing(first: str, strength: Strength) -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    bench.apply(make.shares(QuotaSpec("globex", pin_budget_bytes=8 * PAGE), QuotaSpec("acme")))
    chain = make.keys(4)
    if first == "block":
        engine.store(chain, PAGE, tenant="globex")
    bench.apply(*make.pins([make.pin("theirs", chain, tenant="acme", strength=strength)]))
    if first == "pin":
        engine.store(chain, PAGE, tenant="globex")
    engine.acquire(chain)
    engine.release()
    bench.pass_time(1)
    assert counted(bench, "theirs") == (0, 0, 0, 0)
    assert [bench.tenant(name).pinned_bytes for name in ("globex", "acme")] == [0, 0]
    assert bench.pool.pinned_bytes == 0
    assert not bench.node.pool.pins.permanent
    blocks, _ = list_blocks(bench.node.pool, ListBlocks("l", limit=100))
    assert [(block.pins, block.strength, block.guaranteed) for block in blocks] == [([], "", False)] * 4
    fill(engine, "globex", 200)
    assert engine.lookup(chain) == 0, "they go when their turn comes"


def test_pins_of_two_tenants_with_the_same_keys_hold_each_their_own() -> None:
    bench, engine = bench_of(1024, spaces=RANKS, pin_budget_bytes=16 * PAGE)
    chain = make.keys(6)
    engine.store(chain, PAGE, tenant="acme", space=0)
    engine.store(chain[:4], PAGE, tenant="globex", space=1)
    one = make.pin("one", chain, tenant="acme")
    two = make.pin("two", chain, tenant="globex", strength="permanent")
    none = make.pin("none", chain)
    bench.apply(*make.pins([one, two, none]))
    assert [counted(bench, name) for name in ("one", "two", "none")] == [
        (6, 6 * PAGE, 6, 0),
        (4, 4 * PAGE, 4, 0),
        (0, 0, 0, 0),
    ]
    assert [bench.tenant(name).pinned_bytes // PAGE for name in ("acme", "globex")] == [6, 4]
    bench.apply(*make.pins([two, none], 2))
    assert (counted(bench, "two"), bench.tenant("acme").pinned_bytes) == ((4, 4 * PAGE, 4, 0), 0)
    bench.apply(*make.pins([one, none], 3))
    assert (counted(bench, "one"), bench.tenant("globex").pinned_bytes) == ((6, 6 * PAGE, 6, 0), 0)


def test_budgets_degrade_and_promote_each_tenants_blocks_alone() -> None:
    bench, engine = bench_of(1024, spaces=RANKS, pin_budget_bytes=64 * PAGE)
    chain = make.keys(6)
    bench.apply(*make.pins([make.pin(name, chain, tenant=name) for name in ("acme", "globex")]))
    for space, name in enumerate(("acme", "globex")):
        engine.store(chain, PAGE, tenant=name, space=space)
    for generation, budget in enumerate((2, 5, 6), 1):
        spec = QuotaSpec("globex", pin_budget_bytes=budget * PAGE)
        bench.apply(make.shares(spec, generation=generation))
        assert counted(bench, "globex") == (6, 6 * PAGE, budget, 6 - budget)
        assert counted(bench, "acme") == (6, 6 * PAGE, 6, 0)


def test_hits_on_another_tenants_blocks_do_not_move_a_pins_end() -> None:
    bench, engine = bench_of(1024, spaces=RANKS, pin_budget_bytes=64 * PAGE)
    chain = make.keys(4)
    for space, name in enumerate(("acme", "globex")):
        engine.store(chain, PAGE, tenant=name, space=space)
    ends = bench.now + 10
    records = [make.pin(name, chain, tenant=name, expires_at=ends, refresh_s=20) for name in ("acme", "globex")]
    bench.apply(*make.pins(records))
    bench.pass_time(5)
    engine.acquire(chain, 1)
    bench.pass_time(6)
    assert (bench.pin("acme").expired, bench.pin("globex").expired) == (True, False)
    assert [bench.tenant(name).pinned_bytes // PAGE for name in ("acme", "globex")] == [0, 4]


def test_a_permanent_pin_keeps_an_invalidation_from_no_other_tenants_blocks() -> None:
    bench, engine = bench_of(1024, spaces=RANKS, pin_budget_bytes=64 * PAGE)
    chain = make.keys(4)
    for space, name in enumerate(("acme", "globex")):
        engine.store(chain, PAGE, tenant=name, space=space)
    bench.apply(*make.pins([make.pin("mine", chain, tenant="acme", strength="permanent")]))
    bench.node.invalidate(Scope(keys=make.packed(chain)), bench.now)
    settle(bench)
    assert [seen(engine, chain, space) for space in (0, 1)] == [4, 0]


def test_a_pin_does_not_make_soft_pinned_blocks_of_another_tenant_newer() -> None:
    bench, engine = bench_of(64)
    old, new = make.keys(8, "old"), make.keys(8, "new")
    records = [make.pin(name, chain, strength="soft", tenant="a") for name, chain in (("o", old), ("n", new))]
    bench.apply(*make.pins(records))
    for chain in (old, new):
        engine.store(chain, PAGE, tenant="a")
    foreign = make.pin("foreign", old, strength="soft", tenant="b")
    bench.apply(*make.pins([*records, foreign], 2))
    assert engine.store(make.keys(56, "large"), PAGE, tenant="a").written == 56
    assert (engine.lookup(old), engine.lookup(new)) == (0, 8)


def test_equal_keys_of_two_tenants_count_twice_among_the_keys_that_a_node_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intent_module, "MAX_PINNED_KEYS", 10)
    bench, _ = bench_of(64)
    chain = make.keys(6)
    (fault,) = bench.apply(*make.pins([make.pin(name, chain, tenant=name) for name in ("a", "b")]))
    assert (fault.path, fault.code) == ("pins", "too_many")
    assert bench.node.pool.pins.by_name == {}


def test_a_hot_prefix_does_not_show_blocks_of_another_tenant() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="acme")
    engine.acquire(chain)
    engine.release()
    bench.pass_time(0.1)
    (prefix,) = bench.hot_prefixes("hits", "acme", 5)
    assert prefix.resident == 4
    fill(engine, "acme", 200)
    engine.store(chain[:3], PAGE, tenant="globex")
    (prefix,) = bench.hot_prefixes("hits", "acme", 5)
    assert prefix.resident == 0
