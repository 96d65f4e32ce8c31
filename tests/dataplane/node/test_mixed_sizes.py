"""Several spaces and sizes in one pool: room made by eviction is usable, nothing wedges."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.stats import node_stats
from dataplane.protocol.codes import Code
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size
from tests.sizes import size as size_of

SIZES = (4096, 5000, 12_288, 65_536, 100_000, 262_144, 300_000, 1_000_000, 2 * make.MIB)


def two_spaces(capacity: int, segment: int = 2 * make.MIB, **options: Any):
    bench = Bench(capacity, segment_bytes=segment, max_blocks=8192, **options)
    return bench, bench.attach(make.space(dtype="bf16"), make.space(dtype="fp8"))


@pytest.mark.parametrize("size", SIZES[:: size_of(1, 3)])
@pytest.mark.parametrize("before", SIZES[:: size_of(1, 3)])
@pytest.mark.parametrize("other_space", [False, True])
def test_a_full_pool_of_one_size_makes_room_for_another(size: int, before: int, other_space: bool) -> None:
    _bench, engine = two_spaces(8 * make.MIB, 4 * make.MIB)
    for number in range(8 * make.MIB // before + 1):
        engine.store([make.key(number)], before)
    stored = engine.store([make.key("new")], size, space=int(other_space))
    assert stored.written == 1


@pytest.mark.parametrize("other_space", [False, True])
@pytest.mark.parametrize("size", [4096, 65_536, 300_000])
def test_a_block_larger_than_every_segment_gets_room_of_several(size: int, other_space: bool) -> None:
    _bench, engine = two_spaces(16 * make.MIB, 2 * make.MIB)
    for number in range(16 * make.MIB // size + 1):
        engine.store([make.key(number)], size)
    stored = engine.store([make.key("huge")], 9 * make.MIB, space=int(other_space))
    assert stored.outcomes == {"WRITE": 1}, "no block is leased, and it fits the evictable bytes"


def test_a_block_as_large_as_the_pool_is_stored_and_a_larger_one_refused() -> None:
    _bench, engine = two_spaces(16 * make.MIB)
    engine.store(make.keys(100), 4096)
    assert engine.store([make.key("all")], 16 * make.MIB).written == 1
    assert engine.store([make.key("more")], 16 * make.MIB + 1).refused == {Code.TOO_LARGE}


@settings(max_examples=size(25, 10), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_without_leases_every_reservation_that_fits_the_pool_succeeds(seed: int) -> None:
    rng = random.Random(seed)
    _bench, engine = two_spaces(12 * make.MIB, rng.choice([2, 4, 64]) * make.MIB)
    for step in range(60):
        size = rng.choice(SIZES) if rng.random() < 0.8 else rng.randint(1, 6 * make.MIB)
        fits = max(1, min(12, 2 * make.MIB // size))
        chain = make.keys(rng.randint(1, fits), (seed, step))
        stored = engine.store(chain, size, space=rng.randint(0, 1))
        assert stored.written == len(chain), (step, size, stored.outcomes)


def test_a_lease_in_every_slab_is_reported_as_fragmentation_until_it_ends() -> None:
    _bench, engine = two_spaces(4 * make.MIB)
    chains = [make.keys(512, number) for number in range(2)]
    for chain in chains:
        engine.store(chain, 4096)
    for chain in chains:  # one lease in each slab
        engine.acquire(chain[:1])
    refused = engine.store([make.key("big")], 65_536)
    assert refused.refused == {Code.FRAGMENTED}
    assert all(all(engine.has(chain)) for chain in chains), "nothing was evicted in vain"
    assert engine.store([make.key("other")], 4096, space=1).refused == {Code.FRAGMENTED}
    assert engine.store([make.key("small")], 4096).written == 1, "blocks of the same size still find room"
    engine.release()
    assert engine.store([make.key("big")], 65_536).written == 1


def test_an_empty_segment_of_another_space_is_retired_on_demand() -> None:
    bench, engine = two_spaces(2 * make.MIB)
    engine.store(make.keys(512), 4096, space=0)
    before = set(bench.memory.segments)
    assert engine.store(make.keys(512, "other"), 4096, space=1).written == 512
    assert not before & set(bench.memory.segments), "segment numbers are never reused"


def test_a_refusal_of_memory_by_the_machine_evicts_old_blocks_or_fails() -> None:
    bench, engine = two_spaces(8 * make.MIB)
    engine.store(make.keys(512), 4096)
    bench.memory.refuse = True
    assert engine.store(make.keys(10, "more"), 4096).written == 10, "by eviction in the segment that exists"
    assert engine.store(make.keys(1, "other"), 4096, space=1).refused == {Code.OUT_OF_MEMORY}
    bench.memory.refuse = False
    assert engine.store(make.keys(1, "other"), 4096, space=1).written == 1


def test_a_burst_of_half_more_than_the_pool_is_answered_block_by_block() -> None:
    bench, engine = two_spaces(256 * 4096)
    writing = [engine.reserve(make.keys(32, number), 4096) for number in range(12)]
    granted = sum((each.outcomes == 0).sum() for each in writing)
    assert granted == 256
    assert sum(bench.refused().values()) == 12 * 32 - 256
    assert node_stats(bench.node, bench.now).totals.refused_blocks == 12 * 32 - 256
    for each in writing:
        if each.reservation:
            engine.commit(each.reservation)
    assert engine.store(make.keys(32, "next"), 4096).written == 32, "and the next second is no second of full pool"


@pytest.mark.parametrize("other_space", [False, True])
def test_a_size_or_space_that_is_rare_and_busy_grows(other_space: bool) -> None:
    bench, engine = two_spaces(32 * make.MIB)
    for number in range(16):
        engine.store(make.keys(512, number), 4096)
    old = list(bench.node.pool.table.blocks.values())
    chains = [make.keys(16, ("busy", number)) for number in range(24)]
    for chain in chains:  # 24 MiB, while one in four of the others is in use: some in every slab
        for block in old[::4]:
            if bench.node.pool.table.blocks.get(block.number) is block:
                bench.node.pool.touch(block, bench.now)
        assert engine.store(chain, 65_536, space=int(other_space)).written == 16
    resident = sum(sum(engine.has(chain, int(other_space))) for chain in chains)
    assert resident >= 16 * 16, "most of the pool went to who used it"


def test_a_machine_without_memory_empties_no_other_space() -> None:
    bench, engine = two_spaces(8 * make.MIB)
    chains = [make.keys(512, number) for number in range(4)]
    for chain in chains:
        engine.store(chain, 4096)
    bench.memory.refuse = True
    assert engine.store([make.key("other")], 4096, space=1).refused == {Code.OUT_OF_MEMORY}
    assert sum(sum(engine.has(chain)) for chain in chains) >= 3 * 512, "one segment went, and then no other"
