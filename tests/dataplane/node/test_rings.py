"""Access rings are written by engines: nothing in them is believed, nothing in them can hurt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.stats import node_stats
from dataplane.protocol.layout import A_RING_DROPPED, A_RING_HEAD, RING_KIND_SHIFT, RING_TOUCH
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import RING_ENTRIES, Bench
from tests.sizes import size

PAGE = 4096
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
    assert node_stats(bench.node, bench.now).totals.read_bytes == 0
    assert bench.node.engines[engine.client].ring.invalid == 1
    engine.detach_cleanly()
    assert node_stats(bench.node, bench.now).totals.ring_entries_rejected == 1, "also without its engine"


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
    node_stats(bench.node, bench.now)


def test_a_wild_lease_counter_only_keeps_blocks() -> None:
    bench = Bench(4 * PAGE)
    engine, other = bench.attach(), bench.attach()
    engine.store(make.keys(4), PAGE)
    engine.area.counters[:] = 2**32 - 1
    assert not other.store(make.keys(1, "new"), PAGE).written
    engine.die()
    assert other.store(make.keys(1, "new"), PAGE).written == 1
