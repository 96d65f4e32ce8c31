"""Loads that do not return: once their memory is quarantined, other tiers load the same blocks."""

from __future__ import annotations

import pytest

from tests.core.tiering.tier_bench import TierBench, tier, tier_bench
from tests.dataplane import factories as make

CHAIN = make.keys(4, "chain")
EXPIRED_S = 1000.0
"""Seconds after which the reservation of a load has expired."""


@pytest.fixture
def run() -> TierBench:
    """Two tiers that hold a chain, and a load from the first one that hangs."""
    bench = tier_bench(64, tier("first"), tier("second"))
    for number in (0, 1):
        bench.hold(CHAIN, number)
    bench.ask(CHAIN)
    bench.begin_loads()
    assert {load.tier.spec.name for load in bench.loads} == {"first"}
    bench.tiering.tiers[0].serves = False
    return bench


def test_blocks_whose_load_hangs_are_loaded_from_another_tier_once_its_memory_is_quarantined(run: TierBench) -> None:
    hanging, run.loads = run.loads, []
    run.ask(CHAIN)
    run.settle()
    assert run.engine.lookup(CHAIN) == 0, "the first load may still end in time"
    run.bench.pass_time(EXPIRED_S)
    run.ask(CHAIN)
    run.settle()
    assert run.engine.lookup(CHAIN) == 4
    assert run.tiering.tiers[1].counters.loaded_blocks == 4
    run.loads = hanging
    run.end_loads()
    assert run.tiering.tiers[0].counters.lost == {"late": 4}
    assert run.engine.lookup(CHAIN) == 4
    assert not run.tiering.table.loading


def test_no_request_waits_for_a_load_whose_memory_is_quarantined(run: TierBench) -> None:
    run.bench.pass_time(EXPIRED_S)
    run.tiering.tiers[1].serves = False
    (job,) = {load.job for load in run.loads}
    for _ in range(10):
        request = run.tiering.loads.request(run.engine.client, run.engine.spaces[0], make.packed(CHAIN), run.now + 5)
        assert request is not None
        run.begin_loads()
        assert not run.tiering.loads.under_way(request)
    assert len(job.waiters) == 1


def test_a_load_that_returns_late_does_not_end_the_one_that_replaced_it(run: TierBench) -> None:
    hanging, run.loads = run.loads, []
    run.bench.pass_time(EXPIRED_S)
    run.ask(CHAIN)
    run.begin_loads()
    replacing, run.loads = run.loads, hanging
    run.end_loads()
    request = run.tiering.loads.request(run.engine.client, run.engine.spaces[0], make.packed(CHAIN), run.now + 5)
    assert request is not None
    run.begin_loads()
    assert run.loads == []
    assert run.tiering.loads.under_way(request)
    run.loads = replacing
    run.end_loads()
    assert run.engine.lookup(CHAIN) == 4
    assert not run.tiering.table.loading
