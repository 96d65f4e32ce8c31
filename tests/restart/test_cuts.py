"""A data plane that is killed between any two of its stores: the next one finds one reading of what lies there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataplane.core.journal.id_journal import N_HALF
from dataplane.core.pool.pool import Pool
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import IndexMemory
from dataplane.protocol.states import STATE_BITS, STATE_MASK, State
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine
from tests.restart.support.cuts import MEMORY, Image, KillBench, restoration_cuts

SLOT = 64 << 10
BLOCKS = 32
CAPACITY = BLOCKS * SLOT
"""One segment of one slab: the pool is full after 32 blocks."""
Work = Callable[[], object]


def bench() -> tuple[KillBench, BenchEngine]:
    made = KillBench(capacity_bytes=CAPACITY)
    return made, made.attach(make.space(), group="one", pid=1)


def restore(image: Image) -> KillBench:
    """The next data plane; whatever the cut, its accounts are consistent and what readers had they still have."""
    after = KillBench(image, capacity_bytes=CAPACITY)
    assert after.faults() == []
    controls = image.state()
    words = after.index.control
    assert ((words >> STATE_BITS) >= (controls >> STATE_BITS)).all(), "an incarnation went back"
    readable = np.isin(controls & STATE_MASK, [State.READY, State.EVICTING])
    leased = np.zeros(len(words), np.bool_)
    for area in after.memory.areas.values():
        leased |= area.counters != 0
    assert (words[readable & leased] & STATE_MASK == State.READY).all(), "a held block went"
    assert not np.isin(words & STATE_MASK, [State.RESERVED, State.EVICTING]).any()
    return after


def survivors(image: Image) -> set[int]:
    """Descriptors that are READY, or EVICTING, and in the index."""
    index = IndexMemory.attach(bytearray(image.index))
    listed = {(entry & 0xFFFFFFFF) - 1 for entry in index.entries.reshape(-1).tolist() if entry}
    return {
        number
        for number, word in enumerate(index.control.tolist())
        if word & STATE_MASK in (State.READY, State.EVICTING) and number in listed
    }


def check_all(made: KillBench, engine: BenchEngine, work: Work) -> list[KillBench]:
    """Cut the work everywhere; after each cut no READY block is lost and the same engine stores and reads on."""
    images = made.cuts(work)
    assert len(images) > 5, "the work stores something"
    ends = []
    for image in images:
        after = restore(image)
        assert survivors(image) == set(after.ready()), "a READY block was lost, or one appeared"
        if engine.client in after.node.engines:
            again = after.resume(engine)
            assert not after.node.engines[engine.client].expired, "what it does not write any more is released"
            chain = make.keys(3, "afterwards")
            stored = again.store(chain, SLOT)
            assert after.faults() == []
            assert again.lookup(chain) == 3 or stored.refused
        ends.append(after)
    return ends


def test_a_store_that_is_cut_anywhere_leaves_the_others_and_nothing_half_made() -> None:
    made, engine = bench()
    engine.store(make.keys(4, "before"), SLOT, tenant="a")
    ends = check_all(made, engine, lambda: engine.store(make.keys(5, "cut"), SLOT, tenant="new"))
    found = {BenchEngine(end, engine.client, engine.spaces, engine.area).lookup(make.keys(5, "cut")) for end in ends}
    assert {0, 5} <= found
    for end in ends:
        assert BenchEngine(end, engine.client, engine.spaces, engine.area).lookup(make.keys(4, "before")) == 4


def test_an_interrupted_eviction_restores_blocks_that_were_not_freed() -> None:
    made, engine = bench()
    engine.store(make.keys(BLOCKS, "old"), SLOT)
    check_all(made, engine, lambda: engine.store(make.keys(6, "new"), SLOT))


def test_leased_blocks_survive_an_interrupted_eviction() -> None:
    made, engine = bench()
    chain = make.keys(BLOCKS, "old")
    engine.store(chain, SLOT)
    assert engine.acquire(chain[:20]) == 20
    for end in check_all(made, engine, lambda: engine.store(make.keys(BLOCKS, "new"), SLOT)):
        assert BenchEngine(end, engine.client, engine.spaces, engine.area).lookup(chain[:20]) == 20


def test_an_abort_that_is_cut_anywhere_leaves_nothing() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(5, "cut"), SLOT).reservation
    check_all(made, engine, lambda: engine.abort(number))


def test_a_partial_commit_that_is_cut_anywhere_publishes_whole_blocks() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(6, "cut"), SLOT).reservation
    check_all(made, engine, lambda: engine.commit(number, [0, 1, 4]))


def test_an_expiry_and_a_late_commit_that_are_cut_anywhere() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(6, "cut"), SLOT).reservation
    check_all(made, engine, lambda: made.pass_time(31))

    def wake_up() -> None:
        with pytest.raises(ProtocolError):
            engine.commit(number)

    check_all(made, engine, wake_up)


def test_the_death_of_a_writer_that_is_cut_anywhere() -> None:
    made, engine = bench()
    other = made.attach(make.space(), group="two", pid=2)
    other.reserve(make.keys(6, "cut"), SLOT)
    check_all(made, engine, other.die)


def test_an_interrupted_attach_and_detach() -> None:
    made, engine = bench()
    engine.store(make.keys(3, "before"), SLOT)

    def come_and_go() -> None:
        other = made.attach(make.space("other", dtype="x"), group="two", pid=2)
        other.store(make.keys(3, "theirs"), SLOT)
        other.detach_cleanly()

    check_all(made, engine, come_and_go)


def test_a_space_that_takes_another_ones_segment_and_is_cut_anywhere() -> None:
    made, engine = bench()
    engine.store(make.keys(BLOCKS, "old"), SLOT)
    other = made.attach(make.space("other", dtype="x"), group="two", pid=2)
    check_all(made, engine, lambda: other.store(make.keys(3, "theirs"), SLOT))


def test_an_invalidation_that_is_cut_anywhere_brings_nothing_back() -> None:
    made, engine = bench()
    chain = make.keys(6, "old")
    engine.store(chain, SLOT, tenant="a")
    engine.store(make.keys(4, "other"), SLOT, tenant="b")
    assert engine.acquire(chain[:2]) == 2
    made.now += 1

    def invalidate() -> None:
        made.node.operator.invalidate(Scope(tenant="a"), made.now)
        made.pass_time(1)
        made.pass_time(1)

    for image in made.cuts(invalidate):
        after = restore(image)
        reader = BenchEngine(after, engine.client, engine.spaces, engine.area)
        assert reader.lookup(make.keys(4, "other")) == 4
        assert reader.lookup(chain) in (0, 6), "all of it or nothing"
    assert BenchEngine(after, engine.client, engine.spaces, engine.area).lookup(chain) == 0


def test_a_journal_that_is_compacted_and_cut_anywhere_keeps_every_name() -> None:
    made, engine = bench()
    engine.store(make.keys(3, "before"), SLOT, tenant="a tenant")
    halves = set()

    def come_and_go() -> None:
        for number in range(30):
            other = made.attach(make.space(), group=f"group {number}" + "x" * 100, pid=100 + number)
            other.detach_cleanly()
            halves.add(int.from_bytes(made.image().names[8 * N_HALF : 8 * N_HALF + 8], "little"))

    for end in check_all(made, engine, come_and_go)[::7]:
        assert "a tenant" in end.node.pool.tenants.by_salt
        assert set(end.node.engines) <= {engine.client, *range(2, 40)}
    assert halves == {0, 1}, "it was compacted"


def test_a_restoration_that_is_cut_anywhere_is_done_again() -> None:
    made, engine = bench()
    chain = make.keys(BLOCKS, "old")
    engine.store(chain, SLOT)
    engine.acquire(chain[:3])
    images = made.cuts(lambda: engine.reserve(make.keys(6, "new"), SLOT))
    for image in images[:: max(1, len(images) // 12)]:
        expected = survivors(image)
        for again in restoration_cuts(image, CAPACITY):
            after = restore(again)
            assert set(after.ready()) == expected


# ---- what becomes of owners


def test_a_reservation_that_its_owner_still_writes_ends_with_its_commit() -> None:
    made, engine = bench()
    number = engine.reserve(make.keys(4, "open"), SLOT).reservation
    after = restore(made.image())
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
    after = KillBench(made.image(frozenset({scheduler.client})), capacity_bytes=CAPACITY)
    assert after.restored is not None
    assert after.restored.gone == [scheduler.client]
    after.node.process_gone(scheduler.client, after.now)
    assert after.pool.quarantined_bytes == 4 * SLOT
    after.node.process_gone(scheduler.client + 1, after.now)
    assert after.pool.used_bytes == 0
    assert set(after.node.engines) == {engine.client}


def test_another_process_does_not_resume() -> None:
    made, engine = bench()
    after = restore(made.image())
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
    after = restore(made.image())
    assert [after.node.pool.table.blocks[at].key for at in _victims(after.node.pool, after.now)] == before


def test_a_restart_keeps_hinted_blocks_and_forgets_their_hints() -> None:
    made, engine = bench()
    engine.store([make.key(0)], SLOT, ttl_s=10)
    engine.store([make.key(1)], SLOT, pin_s=3600)
    assert made.node.pool.hints.pinned_bytes == SLOT
    after = restore(made.image())
    assert after.node.pool.hints.pinned_bytes == 0
    after.pass_time(20)
    after.pass_time(1)
    assert sorted(block.key for block in after.node.pool.table.blocks.values()) == sorted([make.key(0), make.key(1)])
    assert after.node.check() == []


def _victims(pool: Pool, now: float) -> list[int]:
    return list(pool.order.common.queue.victims(Rank.NORMAL, now))
