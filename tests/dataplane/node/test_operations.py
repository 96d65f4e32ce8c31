"""Durations that clients count in their areas: totals never fall, and values that a client writes cannot break the
node."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.engines.operations import OperationReader, OperationTotals
from dataplane.core.stats import node_stats
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.events import Event
from dataplane.protocol.layout import COMMIT, LOOKUP, OPERATION_WORDS, OPERATIONS
from dataplane.protocol.stats.histogram import Histogram
from tests.core.tenancy import bench_of
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size

PAGE = 4096
LIMIT = 2**63 - 1


def operations(bench: Bench) -> dict[str, Histogram]:
    stats = node_stats(bench.node, bench.now)
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
    assert node_stats(bench.node, bench.now).totals.ring_entries_rejected == 1
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
        reported.append(node_stats(bench.node, bench.now).totals.ring_dropped)
    assert reported == sorted(reported)
    assert (reported[0], reported[3] - reported[2]) == (5, 7)
    engine.detach_cleanly()
    assert node_stats(bench.node, bench.now).totals.ring_dropped == reported[3], "also without their engine"


def test_earlier_counts_of_an_adopted_area_are_not_counted_again() -> None:
    bench, engine = bench_of(8)
    count(engine, LOOKUP, 5, 30_000)
    reader, totals = OperationReader(engine.area, bench.now), OperationTotals()
    count(engine, LOOKUP, 6, 60_000)
    assert reader.drain(totals, bench.now)
    assert totals.stats()["lookup"].counts[5:7] == [0, 1]
    assert totals.stats()["lookup"].total == pytest.approx(60e-6)
