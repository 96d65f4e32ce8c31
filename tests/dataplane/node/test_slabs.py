"""Slots of the arena: none overlap, none is lost, the capacity holds."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.blocks.slabs import SLOT_ALIGN, Slabs, Slot, slot_bytes
from tests.dataplane import factories as make
from tests.sizes import size

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


@settings(max_examples=size(60, 20), deadline=None)
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


@settings(max_examples=size(40, 15), deadline=None)
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
