"""A pin holds blocks of its own tenant, and nothing of anybody else who has the same keys."""

from __future__ import annotations

import pytest

from dataplane.core.operator import intent as intent_module
from dataplane.core.operator.listing import list_blocks
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.control.scopes import Scope
from tests.core.tenancy import PAGE, bench_of, fill
from tests.core.tenants.test_sweeps import seen, settle
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

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
    bench.node.operator.invalidate(Scope(keys=make.packed(chain)), bench.now)
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
