"""A tier whose budget was lowered comes within it, although floors and pins held its blocks, and stores go on."""

from __future__ import annotations

import pytest

from dataplane.core.tiering import contents
from dataplane.core.tiering.tier_state import TierState
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

SIZE = stored_size(PAGE)
BLOCKS, SMALLER = 100, 10


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize(("floor", "pinned"), [(0, 0), (BLOCKS, 0), (0, 20), (BLOCKS // 2, 20)])
def test_a_tier_comes_within_a_smaller_budget_and_takes_new_blocks(floor: int, pinned: int) -> None:
    run, state = filled("acme", floor, pinned)
    change_budget(run, state, SMALLER)
    assert len(state.contents) == len(run.stores[0]) == SMALLER
    assert state.contents.budget_bytes == state.spec.budget_bytes
    new = make.keys(4, "new")
    run.store(new, "acme")
    assert run.keys_in(0) >= set(new)


def test_a_tier_takes_new_blocks_while_it_exceeds_its_budget() -> None:
    run, state = filled("acme", floor=BLOCKS)
    run.change("disk", budget_bytes=SMALLER * SIZE)
    assert not run.catalog.shrink(state, run.now), "the floor holds all blocks until it is shared out again"
    new = make.keys(4, "new")
    run.store(new, "acme")
    assert run.keys_in(0) >= set(new)
    assert len(state.contents) == BLOCKS


def test_floors_follow_a_budget_that_grows_and_shrinks() -> None:
    run, state = filled("acme", floor=BLOCKS)
    account = state.contents.tenants["acme"].account
    change_budget(run, state, SMALLER)
    assert account.floor_bytes == SMALLER * SIZE
    change_budget(run, state, BLOCKS)
    assert (account.floor_bytes, state.contents.budget_bytes) == (BLOCKS * SIZE, BLOCKS * SIZE)


def test_a_tenant_above_a_limit_without_eviction_does_not_hold_the_budget() -> None:
    run, state = filled("")
    run.quotas(quota("", limit=SMALLER // 2, on_exceed="reject"))
    change_budget(run, state, SMALLER)
    assert len(state.contents) == SMALLER // 2
