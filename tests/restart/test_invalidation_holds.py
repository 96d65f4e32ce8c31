"""What was invalidated stays so: across a kill at any store, and whatever the clock says afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.core.restore import Contradiction
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.layout import COLD_STORED_AT, IndexMemory, pack_keys
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine
from tests.restart.support.cuts import Image, KillBench

MIB = 1 << 20
MODEL = Scope(model=make.MODEL)


def readable(bench: KillBench, chain: Sequence[bytes]) -> int:
    """Blocks that a client counts as hits."""
    return int(bench.index.find_ready(pack_keys(list(chain)), 1)[2].sum())


def stored(chain: Sequence[bytes]) -> tuple[KillBench, BenchEngine]:
    bench = KillBench(capacity_bytes=2 * MIB)
    engine = bench.attach(pid=100)
    engine.store(chain, 4096)
    bench.now += 1
    return bench, engine


def test_an_invalidation_works_after_a_kill_in_the_middle_of_one() -> None:
    chain = make.keys(8)
    bench, _ = stored(chain)
    images = bench.cuts(lambda: bench.node.operator.invalidate(MODEL, bench.now))
    assert len(images) > 4
    for image in images:
        after = KillBench(image, capacity_bytes=2 * MIB)
        after.node.operator.invalidate(MODEL, after.now)
        assert readable(after, chain) == 0
        for _ in range(5):
            after.now += 1
            after.node.tick(after.now)
            assert readable(after, chain) == 0
        assert after.faults() == []


def test_an_invalidation_after_a_restart_covers_blocks_stored_with_a_clock_ahead() -> None:
    chain = make.keys(8)
    bench, _ = stored(chain)
    image = bench.image()
    image.now -= 3600
    after = KillBench(image, capacity_bytes=2 * MIB)
    assert readable(after, chain) == len(chain)
    after.node.operator.invalidate(MODEL, after.now)
    assert readable(after, chain) == 0


def test_an_invalidation_covers_blocks_stored_before_the_clock_was_set_back() -> None:
    chain, later = make.keys(8), make.keys(4, "later")
    bench, engine = stored(chain)
    bench.now -= 3600
    bench.node.operator.invalidate(MODEL, bench.now)
    assert readable(bench, chain) == 0
    engine.store(later, 4096)
    assert readable(bench, later) == len(later), "what is stored after it is not meant"


def test_memory_with_an_impossible_store_time_is_not_adopted() -> None:
    bench, _ = stored(make.keys(2))
    image: Image = bench.image()
    index = bytearray(image.index)
    IndexMemory.attach(index).cold[0, COLD_STORED_AT] = 2**64 - 2
    image.index = bytes(index)
    with pytest.raises(Contradiction, match="stored at"):
        KillBench(image, capacity_bytes=2 * MIB)
