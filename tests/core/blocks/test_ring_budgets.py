"""What one engine writes in its access ring does not block, and says nothing of spaces it did not attach."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.engines import uses as uses_module
from dataplane.core.engines.prefixes import MAX_POINTS
from dataplane.core.eviction import ancestors
from dataplane.core.stats import node_stats
from dataplane.protocol.layout import A_RING_HEAD, A_RING_TAIL, RING_COUNT_BITS, RING_KIND_SHIFT, RING_LOOKUP, pack_keys
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine


def left(engine: BenchEngine) -> int:
    """Entries that were not read yet."""
    return int(engine.area.header[A_RING_HEAD] - engine.area.header[A_RING_TAIL])


def look_up(engine: BenchEngine, times: int) -> None:
    for _ in range(times):
        engine.note(RING_LOOKUP << RING_KIND_SHIFT | 1 << RING_COUNT_BITS | 1, 0)


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses_module, "TICK_ENTRIES", 200)
    monkeypatch.setattr(uses_module, "TURN_ENTRIES", 100)


@pytest.mark.usefixtures("small_turns")
def test_every_engine_has_its_turn_within_a_few_ticks_while_others_keep_their_rings_full() -> None:
    bench, quiet = bench_of(64)
    busy = [bench.attach() for _ in range(6)]
    for engine in busy:
        look_up(engine, 1000)
    look_up(quiet, 5)
    waited = 0
    for _ in range(4):
        before = sum(map(left, busy))
        bench.pass_time(0.05)
        waited += left(quiet) > 0
        assert before - sum(map(left, busy)) <= 200
        for engine in busy:
            look_up(engine, 1000 - left(engine))
    assert left(quiet) == 0
    assert waited <= 3
    assert min(int(engine.area.header[A_RING_TAIL]) for engine in busy) >= 100, "each had one of eight turns"
    bench.pass_time(0.05, times=60)
    assert [left(engine) for engine in busy] == [0] * 6


@pytest.mark.usefixtures("small_turns")
def test_a_chain_that_is_cut_by_the_end_of_a_turn_counts_whole() -> None:
    bench, engine = bench_of(256)
    chain = make.keys(70)
    engine.store(chain, PAGE)
    for _ in range(4):
        engine.acquire(chain)
        engine.release()
    bench.pass_time(0.05)
    assert left(engine) == 140, "two turns of one chain each"
    bench.pass_time(0.05)
    (prefix,) = bench.hot_prefixes("hits", None, 9)
    assert (prefix.depth, prefix.hits) == (70, 4)


@pytest.mark.usefixtures("small_turns")
def test_a_ring_is_drained_to_its_end_before_its_engine_reserves() -> None:
    bench, engine = bench_of(1000)
    chain = make.keys(900)
    engine.store(chain, PAGE)
    engine.acquire(chain)
    engine.release()
    engine.store(make.keys(1, "more"), PAGE)
    assert left(engine) == 0
    assert {block.hits for block in bench.node.pool.table.blocks.values() if block.parent} == {1}


def test_very_many_short_chains_are_sampled_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses_module, "DRAIN_RUNS", 10)
    bench, engine = bench_of(256)
    for number in range(100):
        engine.store(make.keys(1, number), PAGE)
    for number in range(100):
        engine.acquire(make.keys(1, number))
    bench.pass_time(0.05)
    credited = sum(each.hits for each in bench.hot_prefixes("hits", None, 1000))
    assert credited == 10
    assert bench.node.uses.uncredited_runs == 90
    assert all(block.hits == 1 for block in bench.node.pool.table.blocks.values()), "each was used all the same"
    last = make.keys(1, 99)[0]
    (number,) = bench.node.engines[engine.client].last_run
    assert bench.node.pool.table.blocks[number].key == last


def test_a_chain_that_parts_everywhere_credits_few_of_its_blocks() -> None:
    bench, engine = bench_of(1024)
    chain = make.keys(200)
    engine.store(chain, PAGE)
    for block in bench.node.pool.table.blocks.values():
        block.children = 2
    engine.acquire(chain)
    bench.pass_time(0.05)
    depths = sorted(each.depth for each in bench.hot_prefixes("hits", None, 1000))
    half = MAX_POINTS // 2
    assert depths == [*range(1, half + 1), *range(201 - half, 201)]


def test_entries_for_an_unattached_space_are_ignored() -> None:
    bench, foreign = bench_of(64, spaces=(make.space("other-model"),))
    owner = bench.attach()
    chain = make.keys(4)
    pin = make.pin("p", chain, expires_at=bench.now + 10, refresh_s=10.0)
    bench.apply(*make.pins([pin]))
    owner.store(chain, PAGE)
    numbers, control = bench.index.find(pack_keys(chain), owner.spaces[0])
    for position in (3, 2, 1, 0):
        foreign.note(1 << 56 | position << 32 | int(numbers[position]), int(control[position]))
    bench.pass_time(5)
    assert bench.node.engines[foreign.client].ring.invalid == 4
    assert node_stats(bench.node, bench.now).totals.read_bytes == 0
    assert bench.hot_prefixes("hits", None, 9) == []
    bench.pass_time(6)
    assert bench.pin("p").expired


@pytest.mark.parametrize("length", [50, 100], ids=["whole chains", "chains beyond the limit of one walk"])
def test_walks_along_the_chain_before_acquired_blocks_are_within_the_budgets(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(ancestors, "MAX_ANCESTORS", 64)
    monkeypatch.setattr(uses_module, "MAX_ANCESTORS", 64)
    monkeypatch.setattr(uses_module, "TICK_ENTRIES", 100)
    walks = 0

    def counted(table: BlockTable, last: Sequence[Block]) -> list[Block]:
        nonlocal walks
        walks += 1
        return ancestors.chains_up_to(table, last)

    bench, first = bench_of(1024)
    engines = [first, *(bench.attach() for _ in range(3))]
    chain = make.keys(length)
    first.store(chain, PAGE)
    ends = [make.keys(1, ("end", number)) for number in range(10)]
    for end in ends:
        first.store(end, PAGE, parent=chain[-1])
    monkeypatch.setattr(uses_module, "chains_up_to", counted)
    for engine in engines:
        for end in ends:
            assert engine.acquire(end) == 1
    most = []
    for _ in range(4):
        walks = 0
        bench.pass_time(0.2)
        most.append(walks)
    assert 0 < max(most) <= 6, "two engines a tick, one walk each for the eviction order and up to two for the trace"
    assert [left(engine) for engine in engines] == [0] * 4
