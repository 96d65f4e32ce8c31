"""Limits and floors of tenants in a tier, and budgets that are lowered."""

from __future__ import annotations

import pytest

from dataplane.core.tiering import contents
from dataplane.core.tiering.contents import TierContents
from dataplane.core.tiering.tier_order import TierShare
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.records import QuotaSpec, TierQuota
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stats.tiers import TierTenantStats
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

SIZE = stored_size(PAGE)


def test_a_tenant_at_its_limit_gives_up_its_own_oldest_blocks() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    run.quotas(quota("acme", limit=4))
    run.fill("rival", 5)
    run.fill("acme", 7)
    assert (run.held("acme"), run.held("rival")) == (4, 5)
    left = {name.key for name, stored in run.stores[0].items() if stored.tenant == "acme"}
    assert left == {make.keys(1, ("fill", "acme", number))[0] for number in (3, 4, 5, 6)}
    assert run.tiering.tiers[0].counters.refused == {}


def test_blocks_that_are_being_copied_count_toward_the_limit() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    run.quotas(quota("acme", limit=4))
    run.engine.store(make.keys(8, "chain"), PAGE, tenant="acme")
    run.begin()
    assert len(run.spills) == 4
    assert run.tiering.tiers[0].counters.refused == {"limit": 4}
    run.settle()
    assert run.held("acme") == 4


def test_a_tenant_that_rejects_is_refused_at_its_limit() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    run.quotas(quota("acme", limit=4, on_exceed="reject"))
    run.fill("acme", 7)
    assert run.held("acme") == 4
    assert run.tiering.tiers[0].counters.refused == {"limit": 3}
    assert run.tiering.tiers[0].contents.evicted_blocks == 0
    assert run.engine.lookup(make.keys(1, ("fill", "acme", 6))) == 1, "memory is not affected"


def test_a_block_larger_than_the_limit_is_refused() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    run.quotas(QuotaSpec("acme", tiers={"disk": TierQuota(limit_bytes=SIZE - 1)}))
    run.fill("acme", 2)
    assert run.tiering.tiers[0].counters.refused == {"limit": 2}


def test_blocks_used_in_memory_are_given_up_only_if_the_tenant_has_no_others() -> None:
    run = tier_bench(64, tier(budget_blocks=20))
    run.quotas(quota("acme", limit=2))
    run.fill("acme", 2)
    used = make.keys(1, ("fill", "acme", 0))
    run.engine.acquire(used)
    run.engine.release()
    run.bench.pass_time(1.0)
    run.fill("acme", 1, "more")
    names = run.keys_in(0)
    assert names == {*used, *make.keys(1, ("more", "acme", 0))}
    for chain in (used, make.keys(1, ("more", "acme", 0))):
        run.engine.acquire(chain)
        run.engine.release()
    run.bench.pass_time(1.0)
    run.fill("acme", 1, "last")
    assert run.held("acme") == 2
    assert run.tiering.tiers[0].counters.refused == {}


def test_a_floor_holds_against_others_and_not_against_the_tenant() -> None:
    run = tier_bench(128, tier(budget_blocks=10))
    run.quotas(quota("acme", floor=4))
    run.fill("acme", 6)
    run.fill("rival", 20)
    assert (run.held("acme"), run.held("rival")) == (4, 6)
    run.fill("acme", 9, "more")
    assert run.held("acme") > 4
    assert run.held("acme") + run.held("rival") == 10


def test_floors_beyond_the_budget_are_scaled_down() -> None:
    run = tier_bench(256, tier(budget_blocks=10))
    run.quotas(quota("acme", floor=15), quota("rival", floor=5))
    tenants = run.tiering.tiers[0].contents.tenants
    assert [tenants[salt].account.floor_bytes // SIZE for salt in ("acme", "rival")] == [7, 2]
    run.fill("acme", 12)
    run.fill("rival", 20)
    run.fill("other", 20)
    assert run.held("acme") >= 7
    assert run.held("rival") >= 2
    shown = {each.tenant: each for each in (tenant.stats() for tenant in tenants.values())}
    floor = run.tiering.tiers[0].spec.budget_bytes * 3 // 4
    assert shown["acme"] == TierTenantStats("acme", run.held("acme"), run.held("acme") * SIZE, 15 * SIZE, floor)


def test_a_lowered_limit_takes_effect_in_parts_and_an_observed_one_not_at_all() -> None:
    run = tier_bench(64, tier(budget_blocks=40))
    run.fill("acme", 20)
    run.quotas(quota("acme", limit=5, mode="observe"))
    run.bench.pass_time(1.0)
    run.fill("acme", 1, "more")
    assert run.held("acme") == 21
    run.quotas(quota("acme", limit=5), generation=2)
    run.pass_time(1.0)
    assert run.held("acme") == 5
    left = run.keys_in(0)
    newest = {make.keys(1, ("fill", "acme", number))[0] for number in range(16, 20)}
    assert left == {*newest, *make.keys(1, ("more", "acme", 0))}
    run.quotas(generation=3)
    run.fill("acme", 5, "again")
    assert run.held("acme") == 10


def test_a_quota_of_another_tier_has_no_effect() -> None:
    run = tier_bench(64, tier("a"), tier("b"))
    run.quotas(quota("acme", limit=2, name="b"))
    run.fill("acme", 5)
    assert (run.held("acme", 0), run.held("acme", 1)) == (5, 2)


def test_quotas_apply_to_blocks_stored_earlier_in_the_tier() -> None:
    before = tier_bench(64, tier())
    before.fill("acme", 8)
    run = tier_bench(64, tier())
    run.quotas(quota("acme", limit=3))
    assert run.restore(before.stores[0].values()) == []
    run.tiering.share_out()
    run.pass_time(1.0)
    assert run.held("acme") == 3
    assert run.keys_in(0) == {make.keys(1, ("fill", "acme", number))[0] for number in (5, 6, 7)}


def test_blocks_beyond_a_limit_that_arrive_late_are_given_up() -> None:
    """A tier is read in parts after it is opened, and quotas are applied meanwhile."""
    contents = TierContents(20 * SIZE, "disk")
    contents.set_shares({"acme": TierShare(limit_bytes=2 * SIZE)})
    assert contents.beyond_limits(1.0, 100) == []
    for number in range(5):
        name = BlockName(bytes(16), make.keys(1, number)[0])
        contents.add(StoredBlock(name, "acme", number, PAGE, bytes(16)), SIZE, float(number))
    beyond = contents.beyond_limits(6.0, 100)
    assert sorted(entry.stored.sequence for entry in beyond) == [0, 1, 2]


def test_a_copy_that_fails_gives_its_room_back_to_the_tenant() -> None:
    run = tier_bench(64, tier())
    run.quotas(quota("acme", limit=4))
    run.engine.store(make.keys(4, "chain"), PAGE, tenant="acme")
    run.begin()
    run.end_spills(Outcome.FAILED)
    run.fill("acme", 4)
    assert run.held("acme") == 4


def test_an_invalidation_reaches_blocks_within_a_floor() -> None:
    run = tier_bench(64, tier())
    run.quotas(quota("acme", floor=8))
    run.fill("acme", 8)
    run.invalidate(Scope(tenant="acme"))
    run.settle()
    assert (run.held("acme"), len(run.stores[0])) == (0, 0)


@pytest.mark.parametrize(
    ("tiers", "path"),
    [
        ({"disk": TierQuota(floor_bytes=2, limit_bytes=1)}, "quotas[0].tiers.disk.floor_bytes"),
        ({"disk": TierQuota(limit_bytes=-1)}, "quotas[0].tiers.disk.limit_bytes"),
        ({"": TierQuota()}, "quotas[0].tiers"),
        ({"a\n": TierQuota()}, "quotas[0].tiers"),
        ({str(number): TierQuota() for number in range(9)}, "quotas[0].tiers"),
    ],
)
def test_a_node_refuses_a_quota_of_tiers_that_is_wrong(tiers: dict[str, TierQuota], path: str) -> None:
    run = tier_bench(8, tier())
    (fault,) = run.bench.apply(make.shares(QuotaSpec("acme", tiers=tiers)))
    assert fault.path == path
    assert run.bench.node.stats(run.now).observed == {}


# ---- smaller budgets


BLOCKS, SMALLER = 100, 10


@pytest.fixture
def few_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for room looks at fewer blocks than the tier must evict."""
    monkeypatch.setattr(contents, "MAX_LOOKED_AT", 16)


def filled(tenant: str, floor: int = 0, pinned: int = 0) -> tuple[TierBench, TierState]:
    run = tier_bench(2 * BLOCKS, tier(budget_blocks=BLOCKS))
    chain = make.keys(BLOCKS, "chain")
    if floor:
        run.quotas(quota(tenant, floor=floor))
    if pinned:
        run.pins(make.pin("p", chain[:pinned], tenant=tenant, strength="guaranteed"))
    run.store(chain, tenant)
    (state,) = run.tiering.tiers
    assert len(state.contents) == BLOCKS
    return run, state


def change_budget(run: TierBench, state: TierState, blocks: int) -> None:
    """Change the budget of the record, and apply it as the mover does."""
    run.change("disk", budget_bytes=blocks * SIZE)
    for _ in range(20):
        while run.catalog.shrink(state, run.now):
            assert state.contents.used_bytes <= state.contents.budget_bytes
        run.pass_time(0.1)


@pytest.mark.usefixtures("few_looked_at")
@pytest.mark.parametrize(("floor", "pinned"), [(0, 0), (BLOCKS, 0), (0, 20), (BLOCKS // 2, 20)])
def test_a_tier_comes_within_a_smaller_budget_and_takes_new_blocks(floor: int, pinned: int) -> None:
    run, state = filled("acme", floor, pinned)
    change_budget(run, state, SMALLER)
    assert len(state.contents) == len(run.stores[0]) == SMALLER
    assert state.contents.budget_bytes == state.spec.budget_bytes
    new = make.keys(4, "new")
    run.store(new, "acme")
    assert run.keys_in(0) >= set(new)


@pytest.mark.usefixtures("few_looked_at")
def test_a_tier_takes_new_blocks_while_it_exceeds_its_budget() -> None:
    run, state = filled("acme", floor=BLOCKS)
    run.change("disk", budget_bytes=SMALLER * SIZE)
    assert not run.catalog.shrink(state, run.now), "the floor holds all blocks until it is shared out again"
    new = make.keys(4, "new")
    run.store(new, "acme")
    assert run.keys_in(0) >= set(new)
    assert len(state.contents) == BLOCKS


@pytest.mark.usefixtures("few_looked_at")
def test_floors_follow_a_budget_that_grows_and_shrinks() -> None:
    run, state = filled("acme", floor=BLOCKS)
    account = state.contents.tenants["acme"].account
    change_budget(run, state, SMALLER)
    assert account.floor_bytes == SMALLER * SIZE
    change_budget(run, state, BLOCKS)
    assert (account.floor_bytes, state.contents.budget_bytes) == (BLOCKS * SIZE, BLOCKS * SIZE)


@pytest.mark.usefixtures("few_looked_at")
def test_a_tenant_above_a_limit_without_eviction_does_not_hold_the_budget() -> None:
    run, state = filled("")
    run.quotas(quota("", limit=SMALLER // 2, on_exceed="reject"))
    change_budget(run, state, SMALLER)
    assert len(state.contents) == SMALLER // 2
