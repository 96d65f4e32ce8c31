"""Slots, segments and ranges of the pool: none overlap, none is lost, and what is free or evictable can be used."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.blocks.ranges import Ranges
from dataplane.core.blocks.slabs import SLOT_ALIGN, Slabs, Slot, slot_bytes
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import Commit
from dataplane.protocol.spaces import LMCACHE
from tests.core.blocks.room import Traffic
from tests.core.gateway import peer
from tests.core.gateway import space as gateway_space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size as size_of

# ---- slots


SIZES = st.one_of(
    st.integers(1, 64 * make.KIB), st.integers(1, 3 * make.MIB), st.sampled_from([4096, 65536, 262144, 262145])
)
MOVES = st.lists(st.tuples(st.booleans(), st.integers(1, 3), SIZES, st.integers(0, 10_000)), max_size=60)


def fill(slabs: Slabs, space: int, size: int) -> list[Slot]:
    """Take slots, and segments when they are missing, until there is no room."""
    taken = []
    while True:
        slot = slabs.take(space, size)
        if slot is not None:
            taken.append(slot)
            continue
        segment = slabs.plan_segment(space, size)
        if segment is None:
            return taken
        slabs.add_segment(segment)


@settings(max_examples=size_of(60, 20), deadline=None)
@given(moves=MOVES)
def test_slots_never_overlap_and_the_capacity_is_never_exceeded(moves: list[tuple[bool, int, int, int]]) -> None:
    slabs = Slabs(8 * make.MIB, 4 * make.MIB)
    taken: list[Slot] = []
    for takes, space, nbytes, pick in moves:
        if not takes and taken:
            slabs.give(taken.pop(pick % len(taken)))
            continue
        size = slot_bytes(nbytes)
        slot = slabs.take(space, size)
        if slot is None:
            for empty in slabs.empty_segments():
                slabs.drop_segment(empty)
            segment = slabs.plan_segment(space, size)
            if segment is None:
                continue
            slabs.add_segment(segment)
            slot = slabs.take(space, size)
            assert slot is not None, "a segment that was planned for a size serves it"
        assert slot.slab.slot_bytes == size
        assert slot.slab.segment.space == space
        taken.append(slot)
    assert slabs.committed_bytes == sum(segment.nbytes for segment in slabs.segments.values())
    assert slabs.committed_bytes <= slabs.capacity_bytes
    slots = sorted((slot.slab.segment.number, slot.offset, slot.slab.slot_bytes) for slot in taken)
    for (number, offset, size), (other, start, _) in itertools.pairwise(slots):
        assert number != other or offset + size <= start
    assert all(offset + size <= slabs.segments[number].nbytes for number, offset, size in slots)
    assert all(offset % SLOT_ALIGN == 0 for _, offset, _ in slots)
    for slot in taken:
        slabs.give(slot)
    assert slabs.empty_segments() == list(slabs.segments.values()), "what is given back is usable again"


@settings(max_examples=size_of(40, 15), deadline=None)
@given(power=st.integers(12, 24), blocks=st.integers(1, 40), segment=st.sampled_from([2, 4, 64]))
def test_a_pool_of_n_power_of_two_blocks_holds_exactly_n(power: int, blocks: int, segment: int) -> None:
    size = 1 << power
    slabs = Slabs(blocks * size, segment * make.MIB)
    assert len(fill(slabs, 1, size)) == blocks


@given(nbytes=st.integers(1, 1 << 40))
def test_a_slot_wastes_at_most_an_eighth_and_is_whole_pages(nbytes: int) -> None:
    size = slot_bytes(nbytes)
    assert size >= nbytes
    assert size % SLOT_ALIGN == 0
    if nbytes > 32 * make.KIB:
        assert size - nbytes <= size / 8
    assert slot_bytes(size) == size, "the slot of a slot is itself"


@given(nbytes=st.integers(1, 1 << 30))
def test_blocks_of_the_spaces_own_size_waste_less_than_a_page(nbytes: int) -> None:
    assert 0 <= slot_bytes(nbytes, nbytes) - nbytes < SLOT_ALIGN


def test_an_emptied_slab_takes_another_slot_size() -> None:
    slabs = Slabs(2 * make.MIB, 2 * make.MIB)
    small = fill(slabs, 1, 4096)
    assert len(small) == 512
    assert slabs.take(1, 65536) is None
    for slot in small:
        slabs.give(slot)
    assert len(fill(slabs, 1, 65536)) == 32


def test_another_space_gets_an_emptied_segment_only_when_it_was_dropped() -> None:
    slabs = Slabs(2 * make.MIB, 2 * make.MIB)
    for slot in fill(slabs, 1, 4096):
        slabs.give(slot)
    assert fill(slabs, 2, 4096) == []
    slabs.drop_segment(slabs.empty_segments()[0])
    assert len(fill(slabs, 2, 4096)) == 512


@given(size=st.integers(1, 200), blocks=st.integers(1, 20), expected=st.integers(1, 32))
def test_with_huge_pages_segments_are_whole_pages_and_serve_their_space(size: int, blocks: int, expected: int) -> None:
    page = 2 * make.MIB
    nbytes = size * 300 * make.KIB // SLOT_ALIGN * SLOT_ALIGN
    capacity = -(-blocks * nbytes // page) * page
    slabs = Slabs(capacity, expected * page, page)
    while (segment := slabs.plan_segment(1, nbytes)) is not None:
        assert segment.nbytes % page == 0
        slabs.add_segment(segment)
        assert slabs.take(1, nbytes) is not None, "a segment that was planned for a size serves it"
    assert slabs.committed_bytes <= capacity
    assert slabs.free_slot_bytes == slabs.committed_bytes - slabs.taken_bytes


def test_blocks_of_a_space_are_counted() -> None:
    slabs = Slabs(8 * make.MIB, 2 * make.MIB)
    first = fill(slabs, 1, 4096)[:300]
    assert [(number, use.bytes) for number, use in slabs.largest_spaces(2)] == [(1, 8 * make.MIB)]
    for slot in first:
        slabs.give(slot)
    assert slabs.free_slot_bytes == 300 * 4096
    use = slabs.use(1)
    assert (use.slots, len(use.segments)) == (2048 - 300, 4)


def test_slabs_are_filled_from_the_lowest_so_that_others_empty_out() -> None:
    slabs = Slabs(64 * make.MIB, 8 * make.MIB)
    slots = fill(slabs, 1, 65_536)
    for slot in slots[::2]:
        slabs.give(slot)
    taken = [slabs.take(1, 65_536) for _ in range(32)]
    lowest = {(slot.slab.segment.number, slot.slab.offset) for slot in taken if slot is not None}
    assert lowest == {(1, 0), (1, 2 * make.MIB)}


def test_the_first_space_does_not_get_the_whole_pool_in_one_piece() -> None:
    slabs = Slabs(64 * make.MIB, 64 * make.MIB)
    segment = slabs.plan_segment(1, 1 * make.MIB)
    assert segment is not None
    assert segment.nbytes == 8 * make.MIB


# ---- several spaces and sizes in one pool


BLOCK_SIZES = (4096, 5000, 12_288, 65_536, 100_000, 262_144, 300_000, 1_000_000, 2 * make.MIB)


def two_spaces(capacity: int, segment: int = 2 * make.MIB, **options: Any):
    bench = Bench(capacity, segment_bytes=segment, max_blocks=8192, **options)
    return bench, bench.attach(make.space(dtype="bf16"), make.space(dtype="fp8"))


@pytest.mark.parametrize("size", BLOCK_SIZES[:: size_of(1, 3)])
@pytest.mark.parametrize("before", BLOCK_SIZES[:: size_of(1, 3)])
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


@settings(max_examples=size_of(25, 10), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_without_leases_every_reservation_that_fits_the_pool_succeeds(seed: int) -> None:
    rng = random.Random(seed)
    _bench, engine = two_spaces(12 * make.MIB, rng.choice([2, 4, 64]) * make.MIB)
    for step in range(60):
        size = rng.choice(BLOCK_SIZES) if rng.random() < 0.8 else rng.randint(1, 6 * make.MIB)
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
    assert bench.node.stats(bench.now).totals.refused_blocks == 12 * 32 - 256
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


# ---- what a refusal means


MIXES = {
    "models": (64 * make.KIB, 3 * make.MIB // 2, 32 * make.MIB),
    "odd": (4096, 5000, 100_000, 262_144, 262_145, 700_000, 9 * make.MIB),
    "small": (4096, 65_536, 200_000),
    "large": (300_000, make.MIB, 5_000_000, 7 * make.MIB),
}
POOLS = [
    ("models", 160, 64, 0),
    ("odd", 24, 4, 0),
    ("small", 8, 2, 0),
    ("large", 48, 16, 0),
    ("models", 160, 64, 128),
    ("odd", 24, 4, 24),
    ("large", 48, 16, 20),
]
"""Sizes, and capacity, segments and named segment in MiB."""


@pytest.mark.parametrize(("mix", "capacity", "segment", "named"), POOLS)
@settings(max_examples=size_of(12, 4), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_refusal_means_no_room_with_any_leases_pins_and_reservations(
    mix: str, capacity: int, segment: int, named: int, seed: int
) -> None:
    sizes = MIXES[mix]
    traffic = Traffic(seed, capacity * make.MIB, segment * make.MIB, sizes, named * make.MIB)
    for number in range(200):
        traffic.step(number)
    assert traffic.bench.faults() == []
    for engine in traffic.engines:
        engine.release()
    for engine, reservation in traffic.open:
        engine.abort(reservation)
    traffic.generation += 1
    snapshot, bodies = make.pins([], traffic.generation)
    assert traffic.bench.apply(snapshot, bodies) == []
    for number, (engines, position) in enumerate(traffic.homes):
        stored = engines[0].store([make.key(("last", number))], sizes[-1], space=position)
        assert stored.written == 1, "once every lease ended, everything fits again"


# ---- ranges of the named segment of a gateway


SLOT = 64 << 10


@settings(max_examples=size_of(25, 10), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_without_leases_every_reservation_of_a_gateway_that_fits_succeeds(seed: int) -> None:
    rng = random.Random(seed)
    named = rng.choice([6, 12]) * make.MIB
    bench = Bench(12 * make.MIB, segment_bytes=rng.choice([2, 4, 64]) * make.MIB, max_blocks=8192, named_bytes=named)
    own = bench.attach(make.space())
    gateway = bench.attach(gateway_space("a"), gateway_space("b"), gateway=LMCACHE, pid=0)
    for step in range(60):
        size = rng.choice([4096, 5000, 65_536, 300_000, 1_000_000, rng.randint(1, 6 * make.MIB)])
        chain = make.keys(rng.randint(1, max(1, min(12, 2 * make.MIB // size))), (seed, step))
        engine, at = rng.choice([(own, 0), (gateway, 0), (gateway, 1)])
        stored = engine.store(chain, size, space=at)
        assert stored.written == len(chain), (step, size, stored.outcomes)


def test_a_pool_in_the_named_segment_alone_holds_as_much_as_another() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, gateway_space())
    assert engine.store(make.keys(64), SLOT) == 64
    assert sorted(bench.memory.bases.values()) == [0, 32 * SLOT]


def test_no_more_is_stored_in_the_named_segment_than_it_has_and_the_rest_of_the_pool_is_for_others() -> None:
    bench = Bench(128 * SLOT, named_bytes=32 * SLOT)
    engine, own = peer(bench, gateway_space()), bench.attach(make.space())
    chain = make.keys(40)
    leased = engine.hold(chain[: engine.store(chain, SLOT)])
    assert len(leased) == 32
    refused = engine.reserve(make.keys(1, "more"), SLOT)
    assert refused.outcomes.tolist() == [Code.POOL_FULL]
    assert own.store(make.keys(96), SLOT).written == 96
    engine.release(leased)
    assert engine.store(make.keys(1, "more"), SLOT) == 1, "it evicts its own"
    assert own.lookup(make.keys(96)) == 96
    assert engine.reserve([make.key("large")], 33 * SLOT).outcomes.tolist() == [Code.TOO_LARGE]


def test_a_gateway_without_a_named_segment_stores_nothing() -> None:
    bench = Bench(32 * SLOT)
    assert peer(bench, gateway_space()).reserve([make.key(1)], SLOT).outcomes.tolist() == [Code.TOO_LARGE]


def test_a_large_block_replaces_only_its_neighbours() -> None:
    bench = Bench(64 * make.MIB, segment_bytes=2 * make.MIB, named_bytes=32 * make.MIB)
    small, large = peer(bench, gateway_space("small")), peer(bench, gateway_space("large"))
    chains = [make.keys(32, number) for number in range(16)]
    for chain in chains:
        bench.now += 1
        small.store(chain, SLOT)
    leased = [small.hold(chains[at][:1], used=False) for at in (0, 4, 8)]
    assert large.store([make.key("large")], 6 * make.MIB) == 1
    gone = [at for at, chain in enumerate(chains) if not small.found(chain)]
    assert gone == [1, 2, 3], "the oldest neighbours without a lease"
    assert large.reserve([make.key("huge")], 16 * make.MIB).outcomes.tolist() == [Code.FRAGMENTED]
    for each in leased:
        small.release(each)


def test_memory_moves_between_spaces_of_a_gateway_and_others() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine, own = peer(bench, gateway_space()), bench.attach(make.space())
    for turn in range(4):
        assert engine.store(make.keys(64, ("theirs", turn)), SLOT) == 64
        assert own.store(make.keys(64, ("ours", turn)), SLOT).written == 64
    assert bench.memory.bases == {}


def test_a_pool_that_grows_grows_for_others_alone() -> None:
    bench = Bench(32 * SLOT, named_bytes=32 * SLOT)
    engine, own = peer(bench, gateway_space()), bench.attach(make.space())
    chain = make.keys(32)
    leased = engine.hold(chain[: engine.store(chain, SLOT)])
    bench.node.resize(64 * SLOT, bench.now)
    assert engine.reserve([make.key("more")], SLOT).outcomes.tolist() == [Code.POOL_FULL]
    assert own.store(make.keys(32, "own"), SLOT).written == 32
    engine.release(leased)
    assert engine.store(make.keys(32, "more"), SLOT) == 32
    assert own.lookup(make.keys(32, "own")) == 32


def test_blocks_are_verified_where_they_are() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, gateway_space())
    granted = engine.reserve(make.keys(4), SLOT)
    right = checksum(bytes(SLOT))
    sums = [right, right, checksum(b"something else"), right]
    engine.core.node.commit(engine.client, Commit(0, granted.reservation, checksums=b"".join(sums)), bench.now)
    state = bench.node.verifying.start(Scope(), bench.now)
    bench.pass_time(1)
    assert (state.checked, state.corrupt) == (4, 1)
    assert engine.found(make.keys(4)) == 2


def test_quotas_bind_tenants_of_a_gateway() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=8 * SLOT), QuotaSpec("b", floor_bytes=16 * SLOT)))
    engine = peer(bench, gateway_space())
    chain = make.keys(16, "floor")
    assert engine.store(chain, SLOT, tenant="b") == 16
    for turn in range(20):
        assert engine.store(make.keys(8, ("limit", turn)), SLOT, tenant="a") == 8
        assert engine.store(make.keys(8, ("other", turn)), SLOT, tenant="c") == 8
    assert bench.tenant("a").bytes == 8 * SLOT
    assert engine.found(chain) == 16


def test_pins_hold_in_spaces_of_a_gateway_and_of_others() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT, pin_budget_bytes=16 * SLOT)
    engine, own = peer(bench, gateway_space()), bench.attach(make.space())
    chain = make.keys(8)
    snapshot, bodies = make.pins([make.pin("p", chain)], 1)
    assert bench.apply(snapshot, bodies) == []
    engine.store(chain, SLOT)
    own.store(chain, SLOT)
    for turn in range(6):
        engine.store(make.keys(40, ("theirs", turn)), SLOT)
        own.store(make.keys(40, ("ours", turn)), SLOT)
    assert own.lookup(chain) == 8
    assert engine.found(chain) == 8


def test_a_refusal_of_memory_by_the_machine_makes_the_gateway_evict_its_blocks() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, gateway_space())
    engine.store(make.keys(32), SLOT)
    bench.memory.refuse = True
    assert engine.store(make.keys(8, "more"), SLOT) == 8
    leased = engine.hold(make.keys(8, "more"))
    other = bench.node.engines[engine.client]
    assert other.connected
    bench.memory.refuse = False
    assert engine.store(make.keys(24, "again"), SLOT) == 24
    engine.release(leased)


def test_a_full_named_segment_does_not_evict_other_segments() -> None:
    bench = Bench(96 * SLOT, named_bytes=64 * SLOT)
    engine, own = peer(bench, gateway_space()), bench.attach(make.space())
    own.store(make.keys(32), SLOT)
    number = own.reserve(make.keys(1, "one"), SLOT).reservation
    own.abort(number)
    bench.node.invalidate(Scope(model=make.MODEL), bench.now)
    bench.pass_time(1)
    before = dict(bench.memory.segments)
    assert before
    assert bench.pool.used_bytes == 0
    bench.memory.refuse = True
    refused = engine.reserve([make.key("x")], SLOT)
    assert refused.outcomes.tolist() == [Code.OUT_OF_MEMORY]
    assert bench.memory.segments == before


def test_ranges_are_given_lowest_first_and_grow_together_again() -> None:
    ranges = Ranges(100)
    for offset, nbytes in ((0, 10), (10, 20), (30, 30)):
        assert ranges.lowest(nbytes) == offset
        ranges.take(offset, nbytes)
    ranges.give(0, 10)
    ranges.give(30, 30)
    assert ranges.free == [(0, 10), (30, 70)]
    assert (ranges.lowest(10), ranges.lowest(11), ranges.lowest(71)) == (0, 30, None)
    ranges.give(10, 20)
    assert ranges.free == [(0, 100)]
    for offset, nbytes in ((-1, 1), (0, 0), (99, 2), (0, 101)):
        with pytest.raises(ValueError, match="are not free"):
            ranges.take(offset, nbytes)
    ranges.take(40, 20)
    with pytest.raises(ValueError, match="are not free"):
        ranges.take(59, 1)


@settings(max_examples=size_of(200, 50), deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12), expected=st.integers(1, 40))
def test_the_cheapest_neighbours_are_found(cuts: list[tuple[int, bool]], expected: int) -> None:
    total = sum(nbytes for nbytes, _ in cuts)
    ranges = Ranges(total)
    taken: list[tuple[int, int, int]] = []
    at = 0
    for nbytes, is_taken in cuts:
        if is_taken:
            ranges.take(at, nbytes)
            taken.append((at, nbytes, at))
        at += nbytes
    fixed = taken[::3]
    for each in fixed:
        taken.remove(each)
    sizes = {at: nbytes for at, nbytes, _ in taken}
    pieces = sorted([(at, nbytes, nbytes) for at, nbytes, _ in taken] + [(*free, 0) for free in ranges.free])
    costs = []
    for first in range(len(pieces)):
        cost = size = 0
        for last in range(first, len(pieces)):
            if last > first and pieces[last - 1][0] + pieces[last - 1][1] != pieces[last][0]:
                break
            size += pieces[last][1]
            cost += pieces[last][2]
            if size >= expected:
                costs.append(cost)
    found = ranges.cheapest(expected, taken)
    assert (found is None) == (not costs)
    if found is not None:
        assert sum(sizes[at] for at in found) == min(costs)
