"""One search never picks a block twice, and one that fails leaves every block as it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.protocol.layout import pack_keys
from dataplane.protocol.states import State
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine

KIB = 1 << 10
LARGE = 128 * KIB


def _half_old_tail(tail_keys: Sequence[bytes]) -> tuple[Bench, BenchEngine]:
    """A pool whose last segment ends in a slab too short for large blocks; four large ones in it, and then what is in
    that slab, are the oldest."""
    bench = Bench(34 * make.MIB + 64 * KIB, segment_bytes=4 * make.MIB)
    engine = bench.attach()
    others = make.keys(256, "others")
    engine.store(others, LARGE)
    last = make.keys(16, "last")
    for key in last:
        engine.store([key], LARGE)
    assert engine.store(tail_keys, 4 * KIB).written == 16
    segments = list(bench.node.pool.slabs.segments.values())
    assert sorted(len(slab.blocks) for slab in segments[-1].slabs) == [16, 16]
    assert len({slab.slot_bytes for slab in segments[-1].slabs}) == 2
    for key in [*last[4:], *others]:
        engine.store([key], LARGE)
    return bench, engine


def test_a_half_visited_segment_is_evicted_without_blocks_that_left() -> None:
    bench, engine = _half_old_tail(make.keys(16, "tail"))
    for number in range(3):
        assert engine.store(make.keys(6, ("new", number)), LARGE).written == 6
        assert bench.faults() == []


def test_when_counting_leases_fails_every_block_is_readable_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(8 * 4 * KIB)
    engine = bench.attach()
    chain = make.keys(8)
    engine.store(chain, 4 * KIB)

    def fails(numbers: Sequence[int]) -> list[bool]:
        raise OSError("no barrier")

    with monkeypatch.context() as patch:
        patch.setattr(bench.node.pool.leases, "held", fails)
        with pytest.raises(OSError, match="no barrier"):
            engine.store(make.keys(3, "new"), 4 * KIB)
    assert engine.lookup(chain) == 8
    assert {block.state for block in bench.node.pool.table.blocks.values()} == {State.READY}
    assert engine.store(make.keys(3, "new"), 4 * KIB).written == 3


def test_fragmentation_is_reported_only_while_enough_is_evictable() -> None:
    bench = Bench(2 * make.MIB)
    engine = bench.attach()
    engine.store(make.keys(16, "small"), LARGE)
    numbers, _ = bench.index.find(pack_keys(make.keys(1, "small")), engine.spaces[0])
    engine.area.counters[numbers] = 1
    whole = make.keys(1, "whole")
    assert engine.store(whole, 2 * LARGE).outcomes == {"FRAGMENTED": 1}
    assert engine.reserve(make.keys(14, "being written"), LARGE).reservation
    assert engine.store(whole, 2 * LARGE).outcomes == {"POOL_FULL": 1}, "one block may still go"
