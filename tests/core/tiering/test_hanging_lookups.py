"""Look-ups of shared tiers that do not return: nothing waits for them longer than for the tier to go out of service."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.core.tiering.existence import MISSING_S
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.stored_blocks import BlockName
from tests.core.tiering.tier_bench import TierBench, stored_chain, tier, tier_bench
from tests.dataplane import factories as make

CHAIN = make.keys(4, "chain")


@pytest.fixture
def run() -> TierBench:
    """Two shared tiers, and a local one."""
    bench = tier_bench(64, tier("first"), tier("second"), tier("disk"))
    for state in bench.tiering.tiers[:2]:
        state.shared = True
        state.spec = tier(state.spec.name, spill="off")
    return bench


def begin_lookup(run: TierBench, state: TierState) -> list[BlockName]:
    names = run.catalog.existence.next_names(state)
    assert names
    return names


def answer(run: TierBench, state: TierState, names: Sequence[BlockName], *, holds: bool) -> None:
    blocks = {block.name: block for block in stored_chain(run.identity(), CHAIN)}
    if holds:
        run.stores[state.number].update(blocks)
    run.tiering.looked_up(state, names, [blocks[name] if holds else None for name in names], run.now)


def test_a_request_does_not_wait_for_a_lookup_that_hangs_in_a_tier_out_of_service(run: TierBench) -> None:
    first, second, _ = run.tiering.tiers
    run.ask(CHAIN)
    begin_lookup(run, first)
    answer(run, second, begin_lookup(run, second), holds=False)
    run.begin()
    assert len(run.tiering.loads) == 1
    first.serves = False
    run.tiering.step(run.now)
    run.begin()
    assert (len(run.tiering.loads), run.tiering.loads.idle) == (0, True)


def test_a_late_answer_does_not_stand_for_that_of_another_tier(run: TierBench) -> None:
    first, second, _ = run.tiering.tiers
    run.ask(CHAIN)
    late = begin_lookup(run, first)
    names = begin_lookup(run, second)
    first.serves = False
    run.tiering.step(run.now)
    answer(run, first, late, holds=False)
    assert run.catalog.existence.is_queried(names[0])
    answer(run, second, names, holds=True)
    run.settle()
    assert run.engine.lookup(CHAIN) == 4


def test_blocks_are_queried_again_after_their_tier_is_back(run: TierBench) -> None:
    first, second, _ = run.tiering.tiers
    second.serves = False
    run.ask(CHAIN)
    late = begin_lookup(run, first)
    first.serves = False
    run.tiering.step(run.now)
    run.begin()
    assert len(run.tiering.loads) == 0
    run.bench.now += 2 * MISSING_S
    first.serves = True
    run.tiering.step(run.now)
    run.ask(CHAIN)
    answer(run, first, late, holds=False)  # its names wait to be asked for
    answer(run, first, begin_lookup(run, first), holds=True)
    run.settle()
    assert run.engine.lookup(CHAIN) == 4


def test_requests_that_wait_for_an_answer_are_cancelled_at_their_deadline(run: TierBench) -> None:
    first, second, disk = run.tiering.tiers
    local = make.keys(3, "local")
    run.store(local)
    run.evict_all()
    assert len(disk.contents) == 3
    run.ask(CHAIN, wait_s=5.0)
    begin_lookup(run, first)
    begin_lookup(run, second)
    run.begin()
    assert not run.tiering.loads.idle
    run.bench.now += 5.0
    run.tiering.step(run.now)
    run.begin()
    assert (len(run.tiering.loads), run.tiering.loads.idle, run.tiering.loads.given_up) == (0, True, 1)
    run.ask(local)
    run.settle()
    assert run.engine.lookup(local) == 3


def test_a_lookup_that_hangs_does_not_end_the_loads_of_pins(run: TierBench) -> None:
    first, second, _ = run.tiering.tiers
    second.serves = False
    other = make.keys(3, "other")
    run.store(other)
    run.evict_all()
    run.pins(make.pin("chain", CHAIN), make.pin("other", other))
    run.bench.pass_time(0.1)
    begin_lookup(run, first)
    first.serves = False
    run.tiering.step(run.now)
    run.pass_time(0.1, times=80)
    assert run.engine.lookup(other) == 3
    assert run.bench.pin("other").only_in_tiers == 0
