"""A data plane that is killed between any two of its stores: the next one finds one reading of what lies there."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dataplane.core.journal.id_journal import N_HALF, SegmentName
from dataplane.core.pool.pool import Pool
from dataplane.core.restore import Contradiction
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import COLD_STORED_AT, IndexMemory, pack_keys
from dataplane.protocol.spaces import LMCACHE
from tests.core.gateway import space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine
from tests.dataplane.recovery.support.cuts import MEMORY, SLOT, KillBench, check_all, survivors

BLOCKS = 32
"""One segment of one slab: the pool is full."""
NAMED_BLOCKS = 64


def bench() -> tuple[KillBench, BenchEngine]:
    made = KillBench(capacity_bytes=BLOCKS * SLOT)
    return made, made.attach(make.space(), group="one", pid=1)


def reader(after: KillBench, engine: BenchEngine) -> BenchEngine:
    """The engine on the next data plane, without an attach."""
    return BenchEngine(after, engine.client, engine.spaces, engine.area)


def test_a_store_that_is_cut_anywhere_leaves_the_others_and_nothing_half_made() -> None:
    made, engine = bench()
    engine.store(make.keys(4, "before"), SLOT, tenant="a")
    found = set()

    def look_up(after: KillBench) -> None:
        found.add(reader(after, engine).lookup(make.keys(5, "cut")))
        assert reader(after, engine).lookup(make.keys(4, "before")) == 4

    check_all(made, [engine], lambda: engine.store(make.keys(5, "cut"), SLOT, tenant="new"), look_up)
    assert {0, 5} <= found


def test_an_interrupted_eviction_restores_blocks_that_were_not_freed() -> None:
    made, engine = bench()
    engine.store(make.keys(BLOCKS, "old"), SLOT)
    check_all(made, [engine], lambda: engine.store(make.keys(6, "new"), SLOT))


def test_leased_blocks_survive_an_interrupted_eviction() -> None:
    made, engine = bench()
    chain = make.keys(BLOCKS, "old")
    engine.store(chain, SLOT)
    assert engine.acquire(chain[:20]) == 20

    def look_up(after: KillBench) -> None:
        assert reader(after, engine).lookup(chain[:20]) == 20

    check_all(made, [engine], lambda: engine.store(make.keys(BLOCKS, "new"), SLOT), look_up)


def test_an_abort_that_is_cut_anywhere_leaves_nothing() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(5, "cut"), SLOT).reservation
    check_all(made, [engine], lambda: engine.abort(number))


def test_a_partial_commit_that_is_cut_anywhere_publishes_whole_blocks() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(6, "cut"), SLOT).reservation
    check_all(made, [engine], lambda: engine.commit(number, [0, 1, 4]))


def test_an_expiry_and_a_late_commit_that_are_cut_anywhere() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(6, "cut"), SLOT).reservation
    check_all(made, [engine], lambda: made.pass_time(31))

    def wake_up() -> None:
        with pytest.raises(ProtocolError):
            engine.commit(number)

    check_all(made, [engine], wake_up)


def test_the_death_of_a_writer_that_is_cut_anywhere() -> None:
    made, engine = bench()
    other = made.attach(make.space(), group="two", pid=2)
    other.reserve(make.keys(6, "cut"), SLOT)
    check_all(made, [engine], other.die)


def test_an_interrupted_attach_and_detach() -> None:
    made, engine = bench()
    engine.store(make.keys(3, "before"), SLOT)

    def come_and_go() -> None:
        other = made.attach(make.space("other", dtype="x"), group="two", pid=2)
        other.store(make.keys(3, "theirs"), SLOT)
        other.detach_cleanly()

    check_all(made, [engine], come_and_go)


def test_a_space_that_takes_another_ones_segment_and_is_cut_anywhere() -> None:
    made, engine = bench()
    engine.store(make.keys(BLOCKS, "old"), SLOT)
    other = made.attach(make.space("other", dtype="x"), group="two", pid=2)
    check_all(made, [engine], lambda: other.store(make.keys(3, "theirs"), SLOT))


def test_a_journal_that_is_compacted_and_cut_anywhere_keeps_every_name() -> None:
    made, engine = bench()
    engine.store(make.keys(3, "before"), SLOT, tenant="a tenant")
    halves = set()

    def come_and_go() -> None:
        for number in range(30):
            other = made.attach(make.space(), group=f"group {number}" + "x" * 100, pid=100 + number)
            other.detach_cleanly()
            halves.add(int.from_bytes(made.image().names[8 * N_HALF : 8 * N_HALF + 8], "little"))

    def names_are_known(after: KillBench) -> None:
        assert "a tenant" in after.node.pool.tenants.by_salt
        assert set(after.node.engines) <= {engine.client, *range(2, 40)}

    check_all(made, [engine], come_and_go, names_are_known)
    assert halves == {0, 1}, "it was compacted"


@pytest.mark.parametrize("named", [False, True])
def test_a_restoration_that_is_cut_anywhere_is_done_again(named: bool) -> None:
    if named:
        made, engine, _ = named_bench()
        engine.store(make.keys(NAMED_BLOCKS, "old"), SLOT)
        images = made.cuts(lambda: engine.store(make.keys(3, "new"), SLOT, space=1))
    else:
        made, engine = bench()
        chain = make.keys(BLOCKS, "old")
        engine.store(chain, SLOT)
        engine.acquire(chain[:3])
        images = made.cuts(lambda: engine.reserve(make.keys(6, "new"), SLOT))
    for image in images[:: max(1, len(images) // 10)]:
        expected = made.next(image).locations()
        assert set(expected) == survivors(image)
        for again in made.restoration_cuts(image)[:: 5 if named else 1]:
            assert made.next(again).locations() == expected


# ---- what becomes of owners


def test_a_reservation_that_its_owner_still_writes_ends_with_its_commit() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(4, "open"), SLOT).reservation
    after = made.next()
    assert after.pool.quarantined_bytes == 4 * SLOT
    known = after.node.engines[engine.client]
    message = Attach(
        1, VERSION, "one", [SpaceRequest(make.space())], resume=engine.client, resume_memory=MEMORY, writing=[number]
    )
    again, numbers = after.node.attach(message, known.pid, after.now)
    assert again.resumed
    assert after.pool.quarantined_bytes == 4 * SLOT, "it may still be writing"
    back = BenchEngine(after, again.client, numbers, after.memory.areas[again.client])
    with pytest.raises(ProtocolError) as refused:
        back.commit(number)
    assert refused.value.code is Code.RESERVATION_EXPIRED
    assert after.pool.used_bytes == 0
    assert back.reserve(make.keys(4, "open"), SLOT).reservation > number, "numbers never come twice"


def test_bytes_of_a_writer_that_died_with_the_data_plane_wait_for_its_group() -> None:
    made, engine = bench()
    scheduler = made.attach(make.space(), group="tp", pid=2)
    made.attach(make.space(), group="tp", pid=3)
    scheduler.reserve(make.keys(4, "open"), SLOT)
    after = made.next(made.image(frozenset({scheduler.client})))
    assert after.restored is not None
    assert after.restored.gone == [scheduler.client]
    after.node.process_gone(scheduler.client, after.now)
    assert after.pool.quarantined_bytes == 4 * SLOT
    after.node.process_gone(scheduler.client + 1, after.now)
    assert after.pool.used_bytes == 0
    assert set(after.node.engines) == {engine.client}


def test_another_process_does_not_resume() -> None:
    made, engine = bench()
    after = made.next()
    spaces = [SpaceRequest(make.space())]
    for pid, group, memory, expected in (
        (9, "one", MEMORY, spaces),
        (1, "two", MEMORY, spaces),
        (1, "one", MEMORY + 1, spaces),
        (1, "one", MEMORY, [SpaceRequest(make.space(), writes=False)]),
    ):
        message = Attach(1, VERSION, group, expected, resume=engine.client, resume_memory=memory)
        other, _ = after.node.attach(message, pid, after.now)
        assert not other.resumed
        assert other.client != engine.client


def test_the_order_of_eviction_is_that_of_the_last_uses() -> None:
    made, engine = bench()
    for number in range(BLOCKS):
        engine.store([make.key(number)], SLOT)
    engine.acquire([make.key(0)])
    engine.acquire([make.key(7)])
    engine.release()
    made.pass_time(0.1)
    before = [made.node.pool.table.blocks[at].key for at in _victims(made.node.pool, made.now)]
    after = made.next()
    assert [after.node.pool.table.blocks[at].key for at in _victims(after.node.pool, after.now)] == before


def test_a_restart_keeps_hinted_blocks_and_forgets_their_hints() -> None:
    made, engine = bench()
    engine.store([make.key(0)], SLOT, ttl_s=10)
    engine.store([make.key(1)], SLOT, pin_s=3600)
    assert made.node.pool.hints.pinned_bytes == SLOT
    after = made.next()
    assert after.node.pool.hints.pinned_bytes == 0
    after.pass_time(20)
    after.pass_time(1)
    assert sorted(block.key for block in after.node.pool.table.blocks.values()) == sorted([make.key(0), make.key(1)])
    assert after.node.check() == []


def _victims(pool: Pool, now: float) -> list[int]:
    return list(pool.order.common.queue.victims(Rank.NORMAL, now))


# ---- invalidations stay in force, whatever the clock says afterwards


def readable(bench: KillBench, chain: list[bytes]) -> int:
    """Return the number of blocks that a client counts as hits."""
    return int(bench.index.find_ready(pack_keys(chain), 1)[2].sum())


def test_an_invalidation_that_is_cut_anywhere_brings_nothing_back_and_can_be_done_again() -> None:
    made, engine = bench()
    chain, other = make.keys(6, "old"), make.keys(4, "other")
    engine.store(chain, SLOT, tenant="a")
    engine.store(other, SLOT, tenant="b")
    assert engine.acquire(chain[:2]) == 2
    made.now += 1

    def invalidate() -> None:
        made.node.invalidate(Scope(tenant="a"), made.now)
        made.pass_time(1)
        made.pass_time(1)

    images = made.cuts(invalidate)
    assert len(images) > 4
    for image in images:
        after = made.next(image)
        assert reader(after, engine).lookup(other) == 4
        found = reader(after, engine).lookup(chain)
        assert found in (0, 6), "all of it or nothing"
        after.node.invalidate(Scope(tenant="a"), after.now)
        for _ in range(5):
            assert readable(after, chain) == 0
            after.pass_time(1)
        assert after.faults() == []
    assert found == 0


def test_an_invalidation_after_a_restart_covers_blocks_stored_with_a_clock_ahead() -> None:
    made, engine = bench()
    chain = make.keys(8)
    engine.store(chain, SLOT)
    image = made.image()
    image.now -= 3600
    after = made.next(image)
    assert readable(after, chain) == len(chain)
    after.node.invalidate(Scope(model=make.MODEL), after.now)
    assert readable(after, chain) == 0


def test_an_invalidation_covers_blocks_stored_before_the_clock_was_set_back() -> None:
    made, engine = bench()
    chain, later = make.keys(8), make.keys(4, "later")
    engine.store(chain, SLOT)
    made.now -= 3600
    made.node.invalidate(Scope(model=make.MODEL), made.now)
    assert readable(made, chain) == 0
    engine.store(later, SLOT)
    assert readable(made, later) == len(later), "what is stored after it is not meant"


def test_memory_with_an_impossible_store_time_is_not_adopted() -> None:
    made, engine = bench()
    engine.store(make.keys(2), SLOT)
    image = made.image()
    index = bytearray(image.index)
    IndexMemory.attach(index).cold[0, COLD_STORED_AT] = 2**64 - 2
    image.index = bytes(index)
    with pytest.raises(Contradiction, match="stored at"):
        made.next(image)


# ---- a named segment: ranges are where they were


def named_bench() -> tuple[KillBench, BenchEngine, BenchEngine]:
    """A full pool of two segments can be a gateway's, or others', or one of each."""
    nbytes = NAMED_BLOCKS * SLOT
    made = KillBench(capacity_bytes=nbytes, max_blocks=2 * NAMED_BLOCKS, named_bytes=nbytes)
    worker = made.attach(space("a"), space("b"), group="lmcache:1", pid=0, gateway=LMCACHE)
    return made, worker, made.attach(make.space(), group="own", pid=2)


def test_a_store_into_a_new_range_that_is_cut_anywhere() -> None:
    made, worker, own = named_bench()
    worker.store(make.keys(4, "before"), SLOT, tenant="a")
    check_all(made, (worker, own), lambda: worker.store(make.keys(30, "cut"), SLOT, tenant="new"))


def test_a_range_that_another_space_of_the_gateway_takes_and_is_cut_anywhere() -> None:
    made, worker, own = named_bench()
    worker.store(make.keys(NAMED_BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: worker.store(make.keys(3, "new"), SLOT, space=1))


def test_a_range_that_makes_way_for_others_and_comes_back_and_is_cut_anywhere() -> None:
    made, worker, own = named_bench()
    worker.store(make.keys(NAMED_BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: own.store(make.keys(4, "ours"), SLOT))
    assert len(made.memory.bases) == 1
    check_all(made, (worker, own), lambda: worker.store(make.keys(36, "theirs"), SLOT))
    assert len(made.memory.bases) == 2


def test_large_blocks_that_take_neighbours_and_are_cut_anywhere() -> None:
    made, worker, own = named_bench()
    worker.store(make.keys(NAMED_BLOCKS, "old"), SLOT)
    check_all(made, (worker, own), lambda: worker.store([make.key("large")], 3 * make.MIB, space=1))


def test_a_journal_that_is_compacted_keeps_where_ranges_begin() -> None:
    made, worker, own = named_bench()
    halves = set()
    for turn in range(12):
        halves.add(made.image().names[8 * N_HALF])
        worker.store(make.keys(NAMED_BLOCKS, ("theirs", turn)), SLOT, tenant=f"tenant {turn}" + "x" * 100)
        own.store(make.keys(40, ("ours", turn)), SLOT, tenant=f"tenant {turn}" + "y" * 100)
    worker.store(make.keys(24, "last"), SLOT)
    before = made.locations()
    assert halves == {0, 1}, "it was compacted"
    assert {location > -1 for location, _ in before.values()} == {True, False}
    assert made.next().locations() == before


def test_many_kills_in_a_row_lose_nothing_and_no_range_is_given_twice() -> None:
    made, worker, own = named_bench()
    for turn in range(10):
        worker.store(make.keys(20, ("a", turn)), SLOT)
        worker.store(make.keys(9, ("b", turn)), SLOT, space=1)
        own.store(make.keys(9, ("own", turn)), SLOT)
        before = made.locations()
        made = made.next()
        assert made.locations() == before
        worker, own = made.resume(worker), made.resume(own)
        taken = sorted((base, made.memory.segments[number]) for number, base in made.memory.bases.items())
        assert all(base + nbytes <= after for (base, nbytes), (after, _) in pairwise(taken))


def test_without_the_named_segment_its_blocks_are_lost_and_others_stay() -> None:
    made, worker, own = named_bench()
    worker.store(make.keys(20), SLOT)
    chain = make.keys(8, "own")
    own.store(chain, SLOT)
    for named_bytes in (0, SLOT):
        after = made.next(named_bytes=named_bytes)
        assert after.restored is not None
        assert (after.restored.blocks, after.restored.lost_blocks) == (8, 20)
        assert after.resume(own).lookup(chain) == 8
        assert after.memory.bases == {}


def test_leases_of_a_gateways_engine_outlive_the_data_plane_and_its_writes_are_never_published() -> None:
    made, worker, _ = named_bench()
    chain = make.keys(8)
    worker.store(chain, SLOT)
    worker.acquire(chain)
    number = worker.reserve(make.keys(4, "open"), SLOT).reservation
    after = made.next()
    assert after.pool.quarantined_bytes == 4 * SLOT
    again = after.resume(worker)
    assert again.store(make.keys(NAMED_BLOCKS, "more"), SLOT).written > 0
    assert again.lookup(chain) == 8, "they are held still"
    with pytest.raises(ProtocolError):
        again.commit(number)
    assert after.faults() == []


def test_ranges_that_overlap_are_refused() -> None:
    made, worker, _ = named_bench()
    worker.store(make.keys(40), SLOT)
    first, second = made.node.pool.slabs.segments.values()
    assert (first.base, second.base) == (0, 32 * SLOT)
    made.node.pool.table.names.append(SegmentName(second.number, second.space, second.nbytes, second.small, 16 * SLOT))
    with pytest.raises(Contradiction, match="are not free"):
        made.next()
