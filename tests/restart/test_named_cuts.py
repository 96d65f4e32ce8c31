"""A data plane with a named segment that is killed between any two of its stores: ranges are where they were."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise

import pytest

from dataplane.core.journal.id_journal import N_HALF, SegmentName
from dataplane.core.restore import Contradiction
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.states import State
from tests.core.gateway import space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine
from tests.restart.support.cuts import Image, KillBench, restoration_cuts

SLOT = 64 << 10
BLOCKS = 64
CAPACITY = BLOCKS * SLOT
NAMED = CAPACITY


def bench() -> tuple[KillBench, BenchEngine, BenchEngine]:
    """A full pool of two segments can be a gateway's, or others', or one of each."""
    made = KillBench(capacity_bytes=CAPACITY, max_blocks=2 * BLOCKS, named_bytes=NAMED)
    worker = made.attach(space("a"), space("b"), group="lmcache:1", pid=0, gateway=LMCACHE)
    return made, worker, made.attach(make.space(), group="own", pid=2)


def restore(image: Image, named_bytes: int = NAMED) -> KillBench:
    after = KillBench(image, capacity_bytes=CAPACITY, max_blocks=2 * BLOCKS, named_bytes=named_bytes)
    assert after.faults() == []
    return after


def locations(made: KillBench) -> dict[int, tuple[int, int]]:
    """Where the bytes of each READY block are, whatever the segment's number: (base or -segment, offset)."""
    found = {}
    for number, block in made.node.pool.table.blocks.items():
        if block.state is State.READY:
            segment = block.slot.slab.segment
            found[number] = (-segment.number if segment.base is None else segment.base, block.slot.offset)
    return found


def check_all(made: KillBench, engines: tuple[BenchEngine, ...], work: Callable[[], object]) -> None:
    """Cut the work everywhere: what was READY before and after it is where it was, and everybody goes on."""
    before = locations(made)
    images = made.cuts(work)
    stay = dict(before.items() & locations(made).items())
    controls = made.image().state()
    assert len(images) > 5
    for number, image in enumerate(images):
        if not number % 16:
            gc.collect()  # a node is megabytes, and a circle
        after = restore(image)
        now = locations(after)
        there = image.state()
        for block, location in stay.items():
            if there[block] == controls[block]:
                assert now[block] == location, "a READY block lies somewhere else"
        for engine in engines:
            again = after.resume(engine)
            chain = make.keys(3, ("afterwards", engine.client))
            stored = again.store(chain, SLOT)
            assert again.lookup(chain) == 3 or stored.refused
        assert after.faults() == []


def test_a_store_into_a_new_range_that_is_cut_anywhere() -> None:
    made, worker, own = bench()
    worker.store(make.keys(4, "before"), SLOT, tenant="a")
    check_all(made, (worker, own), lambda: worker.store(make.keys(30, "cut"), SLOT, tenant="new"))


def test_a_range_that_another_space_of_the_gateway_takes_and_is_cut_anywhere() -> None:
    made, worker, own = bench()
    worker.store(make.keys(BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: worker.store(make.keys(3, "new"), SLOT, space=1))


def test_a_range_that_makes_way_for_others_and_comes_back_and_is_cut_anywhere() -> None:
    made, worker, own = bench()
    worker.store(make.keys(BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: own.store(make.keys(4, "ours"), SLOT))
    assert len(made.memory.bases) == 1
    check_all(made, (worker, own), lambda: worker.store(make.keys(36, "theirs"), SLOT))
    assert len(made.memory.bases) == 2


def test_large_blocks_that_take_neighbours_and_are_cut_anywhere() -> None:
    made, worker, own = bench()
    worker.store(make.keys(BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: worker.store([make.key("large")], 3 * make.MIB, space=1))


def test_a_restoration_that_is_cut_anywhere_is_done_again() -> None:
    made, worker, _ = bench()
    worker.store(make.keys(BLOCKS, "old"), SLOT)
    images = made.cuts(lambda: worker.store(make.keys(3, "new"), SLOT, space=1))
    for image in images[:: max(1, len(images) // 8)]:
        expected = locations(restore(image))
        for again in restoration_cuts(image, CAPACITY, NAMED)[::5]:
            assert locations(restore(again)) == expected


def test_a_journal_that_is_compacted_keeps_where_ranges_begin() -> None:
    made, worker, own = bench()
    halves = set()
    for turn in range(12):
        halves.add(made.image().names[8 * N_HALF])
        worker.store(make.keys(BLOCKS, ("theirs", turn)), SLOT, tenant=f"tenant {turn}" + "x" * 100)
        own.store(make.keys(40, ("ours", turn)), SLOT, tenant=f"tenant {turn}" + "y" * 100)
    worker.store(make.keys(24, "last"), SLOT)
    before = locations(made)
    assert halves == {0, 1}, "it was compacted"
    assert {location > -1 for location, _ in before.values()} == {True, False}
    assert locations(restore(made.image())) == before


def test_many_kills_in_a_row_lose_nothing_and_no_range_is_given_twice() -> None:
    made, worker, own = bench()
    for turn in range(10):
        worker.store(make.keys(20, ("a", turn)), SLOT)
        worker.store(make.keys(9, ("b", turn)), SLOT, space=1)
        own.store(make.keys(9, ("own", turn)), SLOT)
        before = locations(made)
        made = restore(made.image())
        assert locations(made) == before
        worker, own = made.resume(worker), made.resume(own)
        taken = sorted((base, made.memory.segments[number]) for number, base in made.memory.bases.items())
        assert all(base + nbytes <= after for (base, nbytes), (after, _) in pairwise(taken))


def test_without_the_named_segment_its_blocks_are_lost_and_others_stay() -> None:
    made, worker, own = bench()
    worker.store(make.keys(20), SLOT)
    chain = make.keys(8, "own")
    own.store(chain, SLOT)
    for named_bytes in (0, SLOT):
        after = restore(made.image(), named_bytes)
        assert after.restored is not None
        assert (after.restored.blocks, after.restored.lost_blocks) == (8, 20)
        assert after.resume(own).lookup(chain) == 8
        assert after.memory.bases == {}


def test_leases_of_a_gateways_engine_outlive_the_data_plane_and_its_writes_are_never_published() -> None:
    made, worker, _ = bench()
    chain = make.keys(8)
    worker.store(chain, SLOT)
    worker.acquire(chain)
    number = worker.reserve(make.keys(4, "open"), SLOT).reservation
    after = restore(made.image())
    assert after.pool.quarantined_bytes == 4 * SLOT
    again = after.resume(worker)
    assert again.store(make.keys(BLOCKS, "more"), SLOT).written > 0
    assert again.lookup(chain) == 8, "they are held still"
    with pytest.raises(ProtocolError):
        again.commit(number)
    assert after.faults() == []


def test_ranges_that_overlap_are_refused() -> None:
    made, worker, _ = bench()
    worker.store(make.keys(40), SLOT)
    first, second = made.node.pool.slabs.segments.values()
    assert (first.base, second.base) == (0, 32 * SLOT)
    made.node.pool.table.names.append(SegmentName(second.number, second.space, second.nbytes, second.small, 16 * SLOT))
    with pytest.raises(Contradiction, match="are not free"):
        restore(made.image())
