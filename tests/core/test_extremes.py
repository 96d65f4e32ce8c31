"""Input that is legal and absurd: each has an outcome that is defined, reported, and ends.

At the size that the names say in a full run (`make full`); otherwise at an eighth of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from dataplane.protocol.control.records import QuotaSpec
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size
from tests.work import lines_run

PAGE = 4096
SHARE = size(1, 8)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_hundred_thousand_tenants_with_one_block_each() -> None:
    count = 100_000 // SHARE
    bench = Bench(count * PAGE, segment_bytes=64 * make.MIB, max_blocks=1 << 17)
    engine = bench.attach()
    for number in range(count):
        assert engine.store([make.key(number)], PAGE, tenant=f"t{number}").written == 1
    stats = bench.node.stats(bench.now)
    assert len(stats.tenants) == 1000
    assert stats.other_tenants is not None
    assert stats.other_tenants.bytes + sum(tenant.bytes for tenant in stats.tenants) == count * PAGE
    assert bench.faults() == []

    def tick_and_store() -> None:
        bench.pass_time(10.0)
        assert engine.store([make.key("one more")], PAGE, tenant="newcomer").written == 1

    assert lines_run(tick_and_store) < 10 * count, "a tick and a store do not walk all tenants at length"
    records = [QuotaSpec(f"t{number}", 8 * PAGE) for number in range(10_000 // SHARE)]
    assert bench.apply(make.shares(*records)) == []
    bench.pass_time(10.0)
    assert bench.tenant("t1").limit_bytes == 8 * PAGE
    fresh = [make.key(("fresh", number)) for number in range(4096)]
    assert engine.store(fresh, PAGE, tenant="newcomer").written == 4096, "room is made among a hundred thousand"
    assert bench.faults() == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_million_index_entries() -> None:
    count, piece = (1 << 20) // SHARE, 4096
    bench = Bench(count * PAGE, segment_bytes=1024 * make.MIB, max_blocks=count)
    engine = bench.attach()
    rng = np.random.default_rng(5)
    chains = [[row.tobytes() for row in rng.integers(0, 256, (piece, 32), np.uint8)] for _ in range(count // piece)]
    stored = sum(engine.store(chain, PAGE).written for chain in chains)
    assert stored > 0.999 * count, "at half load two buckets of eight are next to never full"
    assert bench.pool.blocks == stored
    assert sum(engine.lookup(chain) == piece for chain in chains) > 0.9 * len(chains)
    assert engine.lookup([make.key("absent")]) == 0
    for number in range(8):
        chain = [make.key((number, at)) for at in range(piece)]
        done = engine.store(chain, PAGE)
        assert done.written >= piece - 8, done.outcomes
    assert bench.faults() == []
