"""Nothing that engines write in their areas (access rings, counters, durations) is believed, and none of it blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.engines import uses as uses_module
from dataplane.core.engines.operations import OperationReader, OperationTotals
from dataplane.core.engines.prefixes import MAX_POINTS
from dataplane.core.eviction import ancestors
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.events import Event
from dataplane.protocol.layout import (
    A_RING_DROPPED,
    A_RING_HEAD,
    A_RING_TAIL,
    COMMIT,
    LOOKUP,
    OPERATION_WORDS,
    OPERATIONS,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_TOUCH,
    pack_keys,
)
from dataplane.protocol.stats.histogram import Histogram
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import RING_ENTRIES, Bench, BenchEngine
from tests.sizes import size

# ---- access rings


WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(lambda kind, low: kind << RING_KIND_SHIFT | low, st.integers(0, 3), st.integers(0, 2**56 - 1)),
    st.builds(lambda low: RING_TOUCH << RING_KIND_SHIFT | low, st.integers(0, 40)),
)


def test_a_touch_of_another_incarnation_counts_for_nothing() -> None:
    bench, engine = bench_of(2)
    engine.store(make.keys(1, "old"), PAGE)
    (block,) = bench.node.pool.table.blocks.values()
    entry = (RING_TOUCH << RING_KIND_SHIFT | block.number, block.control)
    engine.store(make.keys(2, "new"), PAGE)
    bench.pass_time(0.1)
    engine.note(*entry)
    bench.pass_time(0.1)
    assert bench.node.stats(bench.now).totals.read_bytes == 0
    assert bench.node.engines[engine.client].ring.invalid == 1
    engine.detach_cleanly()
    assert bench.node.stats(bench.now).totals.ring_entries_rejected == 1, "also without its engine"


@pytest.mark.parametrize(
    "jumps", [[2**64 - 1], [2**64 - 10, 2**64 - 5], [2**63 - 3, 2**63 + 3], [5000, 0, 7], [RING_ENTRIES + 1]]
)
def test_a_head_that_points_anywhere_is_survived(jumps: list[int]) -> None:
    bench, engine = bench_of(8)
    for head in jumps:
        engine.area.header[A_RING_HEAD] = np.uint64(head)
        bench.pass_time(0.1)
    assert engine.store(make.keys(4), PAGE).written == 4


@settings(max_examples=size(40, 15), deadline=None)
@given(
    entries=st.lists(st.tuples(WORDS, WORDS), max_size=50),
    head=st.integers(0, 2**64 - 1),
    dropped=st.integers(0, 2**64 - 1),
)
def test_no_content_of_a_ring_breaks_the_node(entries: list[tuple[int, int]], head: int, dropped: int) -> None:
    bench, engine = bench_of(16)
    engine.store(make.keys(16), PAGE)
    for first, second in entries:
        engine.note(first, second)
    engine.area.header[A_RING_DROPPED] = np.uint64(dropped)
    bench.pass_time(0.1)
    engine.area.header[A_RING_HEAD] = np.uint64(head)
    bench.pass_time(0.1)
    engine.area.header[A_RING_HEAD] = np.uint64((head + 5) % 2**64)
    bench.pass_time(0.1)
    assert engine.store(make.keys(8, "new"), PAGE).written == 8
    bench.node.stats(bench.now)


def test_a_wild_lease_counter_only_keeps_blocks() -> None:
    bench = Bench(4 * PAGE)
    engine, other = bench.attach(), bench.attach()
    engine.store(make.keys(4), PAGE)
    engine.area.counters[:] = 2**32 - 1
    assert not other.store(make.keys(1, "new"), PAGE).written
    engine.die()
    assert other.store(make.keys(1, "new"), PAGE).written == 1


# ---- budgets of access rings


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
    assert bench.node.stats(bench.now).totals.read_bytes == 0
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


def test_counters_that_engines_feed_stay_within_a_message() -> None:
    bench, engine = bench_of(8)
    bench.node.pool.totals.requested_blocks = 2**63 - 5
    first = RING_LOOKUP << RING_KIND_SHIFT | RING_COUNT_MASK << RING_COUNT_BITS
    engine.note(first, 1)
    bench.pass_time(0.1)
    assert 0 <= bench.node.stats(bench.now).totals.requested_blocks < 2**63


# ---- durations of operations


LIMIT = 2**63 - 1


def operations(bench: Bench) -> dict[str, Histogram]:
    stats = bench.node.stats(bench.now)
    assert decode(decoder(Event), encode(stats)) == stats
    return stats.operations


def count(engine: BenchEngine, operation: int, bucket: int, nanoseconds: int) -> None:
    engine.area.operations[operation, bucket] += np.uint64(1)
    engine.area.operations[operation, -1] += np.uint64(nanoseconds)


def test_operations_of_all_engines_count_also_of_those_that_are_gone() -> None:
    bench = Bench(8 * PAGE)
    one, two = bench.attach(), bench.attach(pid=101)
    count(one, LOOKUP, 5, 30_000)
    count(two, LOOKUP, 5, 40_000)
    count(two, COMMIT, 9, 900_000)
    assert sum(operations(bench)["lookup"].counts) == 2
    count(two, COMMIT, 9, 900_000)
    two.die()
    totals = operations(bench)
    assert (sum(totals["lookup"].counts), totals["commit"].counts[9]) == (2, 2)
    assert totals["lookup"].total == pytest.approx(70e-6)
    assert totals["commit"].total == pytest.approx(1.8e-3)
    assert list(totals) == list(OPERATIONS)


def test_a_sum_stays_within_its_counts() -> None:
    bench, engine = bench_of(8)
    count(engine, LOOKUP, 5, 2**60)
    assert operations(bench)["lookup"].total == 50e-6
    count(engine, LOOKUP, 5, 0)
    engine.area.operations[LOOKUP, -1] = 0
    assert 75e-6 <= operations(bench)["lookup"].total <= 100e-6


def test_impossible_entries_are_rejected_and_counted() -> None:
    bench, engine = bench_of(8)
    engine.area.operations[LOOKUP, 3] = np.uint64(10_000_000)
    assert sum(operations(bench)["lookup"].counts) == 0
    assert bench.node.stats(bench.now).totals.ring_entries_rejected == 1
    count(engine, LOOKUP, 3, 8_000)
    assert operations(bench)["lookup"].counts[3] == 1, "it goes on from there"


@settings(max_examples=size(30, 10), deadline=None)
@given(
    writes=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, len(OPERATIONS) * OPERATION_WORDS - 1),
                st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 5000)),
            ),
            max_size=8,
        ),
        max_size=6,
    ),
    passing=st.floats(-5, 5),
)
def test_no_content_breaks_the_node_or_lets_a_total_fall(writes: list[list[tuple[int, int]]], passing: float) -> None:
    bench, engine = bench_of(8)
    before = operations(bench)
    for step in writes:
        for at, value in step:
            engine.area.operations.reshape(-1)[at] = np.uint64(value)
        bench.now += passing
        totals = operations(bench)
        for name, now in totals.items():
            assert math.isfinite(now.total)
            assert now.total >= before[name].total
            assert all(old <= new <= LIMIT for old, new in zip(before[name].counts, now.counts, strict=True))
        before = totals


def test_dropped_entries_of_a_ring_never_fall() -> None:
    bench, engine = bench_of(8)
    reported = []
    for dropped in (5, 2**64 - 1, 0, 7):
        engine.area.header[9] = np.uint64(dropped)
        bench.pass_time(0.1)
        reported.append(bench.node.stats(bench.now).totals.ring_dropped)
    assert reported == sorted(reported)
    assert (reported[0], reported[3] - reported[2]) == (5, 7)
    engine.detach_cleanly()
    assert bench.node.stats(bench.now).totals.ring_dropped == reported[3], "also without their engine"


def test_earlier_counts_of_an_adopted_area_are_not_counted_again() -> None:
    bench, engine = bench_of(8)
    count(engine, LOOKUP, 5, 30_000)
    reader, totals = OperationReader(engine.area, bench.now), OperationTotals()
    count(engine, LOOKUP, 6, 60_000)
    assert reader.drain(totals, bench.now)
    assert totals.stats()["lookup"].counts[5:7] == [0, 1]
    assert totals.stats()["lookup"].total == pytest.approx(60e-6)
