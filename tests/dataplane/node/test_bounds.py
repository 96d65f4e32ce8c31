"""What one engine or one message may cost the others: little, and never for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dataplane.client import Space, attach
from dataplane.core.stats import node_stats
from dataplane.memory.prefault import Prefault
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.layout import RING_COUNT_BITS, RING_COUNT_MASK, RING_KIND_SHIFT, RING_LOOKUP
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.dataplane.plane import Plane, wait_for

PAGE = 4096


def test_segments_that_change_hands_cost_no_descriptors_and_no_memory(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="16MiB").start()
    spaces = [Space(model="a"), Space(model="b")]
    with attach(plane.socket, spaces, timeout_s=30) as engine:
        for number in range(200):
            chain = [make.key(("churn", number))]
            with engine.reserve(chain, make.MIB, space=number % 2) as room:
                room.array(0)[:] = 1
                assert room.commit().blocks == 1
        assert plane.open_fds() < 60
        mine = Path("/proc/self/maps").read_text().count("larder-segment")
        assert mine <= 32, "the engine unmaps what was retired"
    with plane.manager() as manager:
        assert manager.describe().pool.committed_bytes <= 16 * make.MIB


def test_a_segment_that_is_retired_while_it_is_prefaulted_keeps_no_page() -> None:
    failures: list[str] = []
    prefault = Prefault(lambda name, _: failures.append(name))
    file = SharedFile.create("larder-test", 256 * make.MIB)
    try:
        prefault.submit(1, file)
        wait_for(lambda: os.fstat(file.fd).st_blocks, "the first pages")
        prefault.cancel(1)
        file.punch()
        assert os.fstat(file.fd).st_blocks == 0
        prefault.submit(2, file)
        prefault.cancel(2)
    finally:
        prefault.stop()
        assert os.fstat(file.fd).st_blocks == 0
        file.close()
    assert failures == []


def test_counters_that_engines_feed_stay_within_a_message() -> None:
    bench, engine = bench_of(8)
    bench.node.pool.totals.requested_blocks = 2**63 - 5
    first = RING_LOOKUP << RING_KIND_SHIFT | RING_COUNT_MASK << RING_COUNT_BITS
    engine.note(first, 1)
    bench.pass_time(0.1)
    assert 0 <= node_stats(bench.node, bench.now).totals.requested_blocks < 2**63


def test_a_fully_leased_pool_is_not_searched_block_by_block() -> None:
    bench, engine = bench_of(512)
    chain = make.keys(512)
    engine.store(chain, PAGE)
    assert engine.acquire(chain) == 512
    before = bench.node.pool.totals.evictions_cancelled
    assert engine.reserve(make.keys(1, "more"), PAGE).outcomes.tolist() == [Code.POOL_FULL]
    assert bench.node.pool.totals.evictions_cancelled - before <= 2
    engine.release()
    assert engine.store(make.keys(1, "more"), PAGE).written == 1


def test_a_wrong_block_size_does_not_outlive_its_engine() -> None:
    bench = Bench(64 * PAGE)
    wrong = bench.attach(make.space(block_bytes=8192))
    with pytest.raises(ProtocolError):
        bench.attach(make.space(block_bytes=4096))
    wrong.detach_cleanly()
    bench.pass_time(1)
    right = bench.attach(make.space(block_bytes=4096))
    assert right.store(make.keys(3), 4096).written == 3


def test_spaces_with_blocks_outlive_their_engines() -> None:
    bench = Bench(64 * PAGE)
    first = bench.attach(make.space("kept"), make.space("empty"))
    chain = make.keys(3)
    first.store(chain, PAGE)
    first.detach_cleanly()
    bench.pass_time(1)
    assert [space.model for space in bench.node.pool.spaces.by_number.values()] == ["kept"]
    assert bench.attach(make.space("kept")).lookup(chain) == 3


def test_eight_ranks_share_a_small_pool_without_taking_each_others_segments() -> None:
    bench = Bench(256 * make.MIB)
    ranks = [bench.attach(make.space(rank=rank, world_size=8)) for rank in range(8)]
    chain = make.keys(4)
    for rank in ranks:
        assert rank.store(chain, make.MIB).written == 4
    assert [rank.lookup(chain) for rank in ranks] == [4] * 8
