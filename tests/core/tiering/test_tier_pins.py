"""Pins in tiers: what a pin's blocks in a tier are protected from, how many there are, and what is copied first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.core.tiering import pin_loads, pinned_chains
from dataplane.protocol.control.records import Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stats.pins import PinInTier
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

SIZE = stored_size(PAGE)


def there(run: TierBench, chain: Sequence[bytes], number: int = 0) -> int:
    """Blocks of a chain that a tier holds."""
    return len(run.keys_in(number) & set(chain))


def of_pin(run: TierBench, name: str = "p", tier_name: str = "disk") -> PinInTier | None:
    return run.bench.pin(name).tiers.get(tier_name)


@pytest.mark.parametrize("strength", ["guaranteed", "permanent"])
def test_guaranteed_blocks_are_not_evicted_within_the_budget_and_last_beyond_it(strength: Strength) -> None:
    run = tier_bench(64, tier(budget_blocks=20))  # of which pins may hold 4
    chain = make.keys(6, "chain")
    run.pins(make.pin("p", chain, strength=strength))
    run.store(chain)
    assert of_pin(run) == PinInTier(6, 6 * SIZE, 4)
    run.fill("", 14)
    run.fill("", 10, "more")
    assert there(run, chain) == 6
    soft = make.keys(14, "soft")
    run.pins(make.pin("p", chain, strength=strength), make.pin("s", [*chain, *soft], strength="soft"), generation=2)
    run.store(soft)
    assert len(run.stores[0]) == 20
    run.fill("", 12, "last")
    assert there(run, chain[:4]) == 4, "they are never evicted"


def test_soft_pins_are_evicted_after_all_others() -> None:
    run = tier_bench(64, tier(budget_blocks=10))
    chain = make.keys(6, "chain")
    run.pins(make.pin("p", chain, strength="soft"))
    run.store(chain)
    run.fill("rival", 20)
    assert there(run, chain) == 6
    assert of_pin(run) == PinInTier(6, 6 * SIZE, 0)


def test_a_pin_finds_blocks_that_tiers_hold_already_and_lets_them_go() -> None:
    run = tier_bench(16, tier(budget_blocks=40))
    chain = make.keys(6, "chain")
    run.store(chain)
    run.fill("", 16)
    assert run.engine.lookup(chain) == 0
    run.pins(make.pin("p", chain))
    assert of_pin(run) == PinInTier(6, 6 * SIZE, 6)
    run.fill("", 60, "more")
    assert there(run, chain) == 6
    run.pins(generation=2)
    assert run.tiering.tiers[0].contents.pins.pinned_bytes == 0
    run.fill("", 60, "last")
    assert there(run, chain) == 0


def test_a_pin_that_expires_or_changes_its_strength_is_counted_again() -> None:
    run = tier_bench(64, tier(budget_blocks=40))
    chain = make.keys(6, "chain")
    run.store(chain)
    run.pins(make.pin("p", chain, expires_at=run.now + 10), make.pin("q", chain, strength="soft"))
    assert (of_pin(run, "p"), of_pin(run, "q")) == (PinInTier(6, 6 * SIZE, 6),) * 2
    run.bench.pass_time(11.0)
    run.bench.pass_time(1.0)
    assert of_pin(run, "p") is None
    assert of_pin(run, "q") == PinInTier(6, 6 * SIZE, 0)


def test_a_pin_holds_no_blocks_of_other_tenants_or_models() -> None:
    spaces = (make.space(block_bytes=PAGE), make.space("other", block_bytes=PAGE))
    run = tier_bench(64, tier(budget_blocks=40), spaces=spaces)
    chain = make.keys(4, "chain")
    run.engine.store(chain, PAGE, tenant="rival")
    run.store(chain, "acme", space=1)
    run.pins(make.pin("p", chain, tenant="acme"))
    assert of_pin(run) is None
    run.pins(make.pin("p", chain, tenant="acme", model="other"), generation=2)
    assert of_pin(run) == PinInTier(4, 4 * SIZE, 4)


def test_many_keys_are_looked_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_chains, "MAX_STEP_KEYS", 8)
    run = tier_bench(64, tier(budget_blocks=200))
    chain = make.keys(30, "chain")
    run.store(chain)
    run.pins(make.pin("p", chain))
    assert of_pin(run) == PinInTier(8, 8 * SIZE, 8)
    counted = []
    for _ in range(3):
        run.bench.pass_time(0.1)
        counted.append(run.bench.pin("p").tiers["disk"].blocks)
    assert counted == [16, 24, 30]


def test_blocks_of_pins_are_copied_first_into_any_tier() -> None:
    run = tier_bench(64, tier("all"), tier("used", spill="second_touch"), tier("none", spill="off"))
    chain = make.keys(4, "chain")
    run.pins(make.pin("p", chain))
    run.engine.store(make.keys(4, "other"), PAGE)
    run.engine.store(chain, PAGE)
    (job,) = run.spill(run.tiering.tiers[0], 1)
    assert job.blocks[0].name.key == chain[0]
    run.spills.append(job)
    run.settle()
    assert [there(run, chain, number) for number in range(3)] == [4, 4, 0]
    assert [len(run.stores[number]) for number in range(3)] == [8, 4, 0]
    late = make.keys(4, "late")
    run.store(late)
    assert there(run, late, 1) == 0
    run.pins(make.pin("p", chain), make.pin("q", late, strength="permanent"), generation=2)
    run.settle()
    assert there(run, late, 1) == 4


def test_small_blocks_do_not_take_the_room_that_a_large_block_of_a_pin_waits_for() -> None:
    spaces = make.space(block_bytes=PAGE), make.space("large", block_bytes=4 * PAGE)
    run = tier_bench(1024, tier(max_bytes_in_flight=6 * PAGE), spaces=spaces)
    (disk,) = run.tiering.tiers
    large = make.keys(1, "large")
    run.pins(make.pin("p", large, model="large"))
    run.engine.store(make.keys(8, "small"), PAGE)
    run.begin()
    assert len(run.spills) == 3
    run.engine.store(large, 4 * PAGE, space=1)
    while run.spills:
        assert run.spill(disk) == []
        run.end_spills(count=1)
    (job,) = run.spill(disk)
    assert job.blocks[0].name.key == large[0]
    run.spills.append(job)
    run.settle()
    assert len(run.stores[0]) == 9


def test_blocks_of_pins_are_copied_when_a_tier_is_back() -> None:
    run = tier_bench(64, tier(spill="second_touch"))
    (state,) = run.tiering.tiers
    chain = make.keys(4, "chain")
    run.pins(make.pin("p", chain))
    state.serves = False
    run.engine.store(chain, PAGE)
    run.bench.pass_time(1.0)
    state.serves = True
    run.pass_time(1.0)
    assert there(run, chain) == 4


def test_the_pin_budget_of_a_tenant_applies_in_the_tier() -> None:
    run = tier_bench(64, tier(budget_blocks=100))
    chain = make.keys(12, "chain")
    run.quotas(quota("acme", limit=10))
    run.pins(make.pin("p", chain, tenant="acme"))
    run.store(chain, "acme")
    assert run.held("acme") == 10
    assert of_pin(run) == PinInTier(10, 10 * SIZE, 9), "90 % of the limit"
    run.quotas(quota("acme", limit=20, pin_budget_bytes=3 * SIZE), generation=2)
    run.bench.pass_time(1.0)
    assert of_pin(run) == PinInTier(10, 10 * SIZE, 3)
    run.quotas(quota("acme", limit=4), generation=3)
    run.bench.pass_time(1.0)
    run.pass_time(1.0)
    assert of_pin(run) == PinInTier(4, 4 * SIZE, 3)
    run.quotas(generation=4)
    run.bench.pass_time(1.0)
    assert of_pin(run) == PinInTier(4, 4 * SIZE, 4)


def test_budget_that_becomes_free_goes_to_blocks_that_wait_for_it() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    first, second = make.keys(4, "first"), make.keys(4, "second")
    run.engine.store(first, PAGE)
    run.store(second, "acme")
    run.pins(make.pin("p", first), make.pin("q", second, tenant="acme"))
    assert sum((of_pin(run, name) or PinInTier()).guaranteed for name in "pq") == 4
    run.invalidate(Scope(tenant=""))
    run.bench.pass_time(1.0)
    assert of_pin(run, "p") is None
    assert of_pin(run, "q") == PinInTier(4, 4 * SIZE, 4)
    run.settle()


def test_invalidation_and_clear_reach_blocks_of_guaranteed_pins() -> None:
    run = tier_bench(64, tier(budget_blocks=40))
    chain, other = make.keys(4, "chain"), make.keys(4, "other")
    run.pins(make.pin("p", chain, tenant="acme"), make.pin("q", other))
    run.engine.store(chain, PAGE, tenant="acme")
    run.store(other)
    run.invalidate(Scope(tenant="acme"))
    run.settle()
    assert (there(run, chain), there(run, other)) == (0, 4)
    run.bench.node.clear(run.now, permanent=False)
    run.settle()
    assert len(run.stores[0]) == 0
    assert run.tiering.tiers[0].contents.pins.pinned_bytes == 0


def test_a_permanent_pin_keeps_its_blocks_in_tiers_through_a_clear_and_not_through_an_invalidation() -> None:
    run = tier_bench(64, tier(budget_blocks=40))
    chain = make.keys(4, "chain")
    run.pins(make.pin("p", chain, strength="permanent"))
    run.store(chain)
    run.bench.node.clear(run.now, permanent=False)
    run.settle()
    assert (there(run, chain), run.engine.lookup(chain)) == (4, 4)
    run.invalidate(Scope(tenant=""))
    run.pass_time(1.0)
    assert (there(run, chain), run.engine.lookup(chain)) == (0, 4)


def test_pins_apply_to_blocks_of_a_space_that_is_attached_later() -> None:
    before = tier_bench(64, tier())
    chain = make.keys(4, "chain")
    before.store(chain)
    run = tier_bench(64, tier(), spaces=(make.space("other", block_bytes=PAGE),))
    run.restore(before.stores[0].values())
    run.pins(make.pin("p", chain))
    assert of_pin(run) is None
    run.bench.attach(make.space(block_bytes=PAGE))
    run.bench.pass_time(0.1)
    assert of_pin(run) == PinInTier(4, 4 * SIZE, 4)


def test_pins_apply_to_spaces_of_earlier_engines_as_soon_as_their_models_are_known() -> None:
    before = tier_bench(64, tier())
    chain = make.keys(4, "chain")
    before.store(chain)
    before.bench.pass_time(0.1)
    known = before.catalog.known_spaces
    assert known.spaces == {before.identity(): make.space(block_bytes=PAGE)}
    run = tier_bench(64, tier(budget_blocks=40), spaces=(make.space("other", block_bytes=PAGE),), known=known)
    run.pins(make.pin("p", chain))
    run.restore(before.stores[0].values())
    assert of_pin(run) == PinInTier(4, 4 * SIZE, 4)
    run.bench.pass_time(pin_loads.ROUND_S + 0.1)
    report = run.bench.pin("p")
    assert (report.only_in_tiers, report.not_loaded, report.resident) == (4, "detached", 0)
    run.fill("other", 60)
    assert there(run, chain) == 4, "the pin protects them although no engine of its model has attached"
    run.bench.attach(make.space(block_bytes=PAGE))
    run.pass_time(pin_loads.ROUND_S + 0.1)
    run.bench.pass_time(pin_loads.ROUND_S + 0.1)
    report = run.bench.pin("p")
    assert (report.only_in_tiers, report.not_loaded, report.resident) == (0, "", 4)
