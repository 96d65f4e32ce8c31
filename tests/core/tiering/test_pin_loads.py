"""Blocks of guaranteed pins that only tiers hold are loaded into memory, within budgets, behind loads of engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from dataplane.core.tiering import pin_loads
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.stored_blocks import BlockName, Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, tier, tier_bench
from tests.dataplane import factories as make


def spilled(run: TierBench, chain: Sequence[bytes], tenant: str = "") -> None:
    """Store a chain, and evict it from memory once tiers hold it."""
    run.store(chain, tenant)
    blocks = [block for block in run.bench.node.pool.table.blocks.values() if block.key in set(chain)]
    run.bench.node.room.evict(blocks, "room", run.now)
    assert run.engine.lookup(chain) == 0


def pass_steps(run: TierBench, steps: int = 20) -> None:
    run.pass_time(0.1, times=steps)
    assert run.bench.faults() == []


def state(run: TierBench, name: str = "p") -> tuple[int, int, str]:
    stats = run.bench.pin(name)
    return stats.resident, stats.only_in_tiers, stats.not_loaded


@pytest.mark.parametrize("strength", ["guaranteed", "permanent"])
def test_a_pin_loads_blocks_that_only_a_tier_holds(strength: Strength) -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain)
    run.pins(make.pin("p", chain, strength=strength))
    assert state(run) == (0, 6, "")
    pass_steps(run)
    assert state(run) == (6, 0, "")
    assert run.bench.pin("p").guaranteed == 6
    assert run.engine.lookup(chain) == 6


def test_a_soft_pin_loads_nothing() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain)
    run.pins(make.pin("p", chain, strength="soft"))
    pass_steps(run)
    assert state(run) == (0, 0, "")


def test_no_more_is_loaded_than_the_pin_budget_guarantees() -> None:
    run = tier_bench(64, tier())
    run.quotas(QuotaSpec("a", pin_budget_bytes=4 * PAGE))
    chain = make.keys(6)
    spilled(run, chain, "a")
    run.pins(make.pin("p", chain, tenant="a"))
    pass_steps(run)
    assert state(run) == (4, 2, "budget")
    assert run.bench.pin("p").degraded == 0
    run.quotas(QuotaSpec("a", pin_budget_bytes=6 * PAGE), generation=2)
    pass_steps(run, 80)
    assert state(run) == (6, 0, "")


def test_a_chain_is_loaded_up_to_the_first_block_that_is_nowhere() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain[:3])
    run.pins(make.pin("p", chain))
    pass_steps(run)
    assert state(run) == (3, 0, "")


def test_the_tiers_of_a_restarted_node_fill_its_pins() -> None:
    """The pin is there first; the contents of the tier are added later, as when a tier is opened."""
    run = tier_bench(64, tier())
    chain = make.keys(6)
    run.pins(make.pin("p", chain))
    pass_steps(run)
    assert state(run) == (0, 0, "")
    run.hold(chain)
    pass_steps(run, 80)
    assert state(run) == (6, 0, "")


def test_a_pin_is_loaded_in_small_requests_behind_those_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin_loads, "MAX_PART_BYTES", 2 * PAGE)
    run = tier_bench(64, tier())
    chain, other = make.keys(6), make.keys(2, "other")
    spilled(run, chain)
    spilled(run, other)
    run.ask(other)
    run.pins(make.pin("p", chain))
    assert len(run.tiering.loads) == 1, "the request of the engine"
    run.begin()
    run.bench.pass_time(0.1)
    run.begin()
    keys = {load.name.key for load in run.loads}
    assert keys == {*other, *chain[:2]}
    run.bench.pass_time(0.1)
    run.begin()
    assert len(run.loads) == 4, "one request of a pin at a time"
    pass_steps(run)
    assert state(run) == (6, 0, "")


def test_a_failed_load_is_retried_later_and_reported() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(4)
    spilled(run, chain)
    run.pins(make.pin("p", chain))
    run.begin()
    run.end_loads(Outcome.FAILED)
    run.bench.pass_time(0.1)
    assert state(run) == (0, 4, "failed")
    run.bench.pass_time(1.0)
    run.begin()
    assert run.loads == [], "it is not tried at once"
    pass_steps(run, 120)
    assert state(run) == (4, 0, "")


def test_a_pin_that_is_deleted_concurrently_loads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin_loads, "MAX_PART_BYTES", PAGE)
    run = tier_bench(64, tier())
    chain = make.keys(4)
    spilled(run, chain)
    run.pins(make.pin("p", chain))
    run.begin()
    run.pins(generation=2)
    pass_steps(run)
    assert run.engine.lookup(chain) == 1


def test_a_step_looks_at_a_bounded_number_of_keys_for_any_number_of_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tier_bench(256, tier())
    run.quotas(QuotaSpec("", pin_budget_bytes=0))
    chains = [make.keys(6, number) for number in range(40)]
    for chain in chains:
        spilled(run, chain)
    run.pins(*(make.pin(f"p{number}", chain) for number, chain in enumerate(chains)))
    monkeypatch.setattr(pin_loads, "MAX_STEP_KEYS", 20)
    requests = 0
    ask = run.tiering.catalog.existence.query

    def counted(names: Iterable[BlockName], client: int) -> None:
        nonlocal requests
        requests += 1
        ask(names, client)

    monkeypatch.setattr(run.tiering.catalog.existence, "query", counted)
    looks = []
    for _ in range(200):
        requests = 0
        run.bench.pass_time(0.1)
        looks.append(requests)
    assert max(looks) <= 4, "20 keys are those of three chains, and part of a fourth one"
    assert sum(looks) >= 40
    assert state(run, "p39") == (0, 6, "budget")
