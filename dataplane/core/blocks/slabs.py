"""Slot allocator of the pool: segments of one space, cut into slabs of one slot size.

A segment belongs to one space at a time, because producers of a space map it writable. Slots up to 256 KiB share
segments that are cut into 2 MiB slabs, each of one slot size. Larger slots have their own segments, sized to a whole
number of slots. An empty slab may take another slot size; an empty segment may be retired for another space. The
capacity bounds the memory of all segments together, so a pool of n blocks of a size that divides the slab holds
exactly n.

Segments of a gateway's spaces are ranges of one named segment (`ranges`); their bytes count like all others.

The allocator takes the first free slot of the lowest slab, and places a new slab in the fullest segment. Free space
thus gathers in few places, and slabs and segments become empty that another size or space can use.

Goals: room made by eviction is usable; no waste for power-of-two blocks; O(log slabs) take and give. Non-goals: moving
blocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from itertools import count

from dataplane.core.blocks.ranges import Ranges
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.pool import SpaceStats

SLOT_ALIGN = 4096
SMALL_SLAB_BYTES = 2 << 20
SMALL_SLOT_BYTES = SMALL_SLAB_BYTES // 8
STEPS_PER_DOUBLING = 8
SEGMENTS_PER_POOL = 8
"""Minimum number of segments in a pool, unless they would be smaller than a slab, so that the first space does not get
the whole pool in one piece."""
SEGMENTS_PER_SPACE = 4
"""Minimum number of segments for each space, where the pool is large enough."""


def slot_bytes(nbytes: int, block_bytes: int = 0) -> int:
    """Return the slot size for a block of `nbytes` bytes: whole pages, exact for the space's own block size, otherwise
    at most an eighth larger."""
    pages = -(-nbytes // SLOT_ALIGN) * SLOT_ALIGN
    if nbytes == block_bytes:
        return pages
    step = max(SLOT_ALIGN, (1 << (pages.bit_length() - 1)) // STEPS_PER_DOUBLING)
    return -(-pages // step) * step


@dataclass(eq=False, slots=True)
class Slab:
    """A run of equal slots in one segment."""

    segment: Segment
    offset: int
    """Bytes from the start of the segment."""
    nbytes: int
    slot_bytes: int
    free: list[int]
    """Free slot numbers; the last is taken first. Empty in a slab that was given back to its segment."""
    blocks: set[int] = field(default_factory=set)
    """Numbers of the blocks in its slots."""
    listed: bool = True
    """Whether it is in a heap of open slabs, although it may no longer have a free slot."""

    @property
    def slots(self) -> int:
        return self.nbytes // self.slot_bytes


@dataclass(eq=False, slots=True)
class Segment:
    """One memfd of the pool, or a range of the named segment, assigned to one space."""

    number: int
    space: int
    nbytes: int
    small: bool
    base: int | None = None
    """Offset in the named segment; None for a memfd."""
    extents: list[tuple[int, int]] = field(default_factory=list)
    """Unused (offset, bytes) that a new slab may take, in descending order."""
    slabs: set[Slab] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Slot:
    """Place of one block's bytes. Immutable by convention."""

    slab: Slab
    index: int
    offset: int
    """Bytes from the start of the segment."""


@dataclass(slots=True)
class SpaceUse:
    """Share of the pool that one space uses."""

    slots: int = 0
    """Number of taken slots."""
    bytes: int = 0
    """Bytes of the taken slots."""
    padding_bytes: int = 0
    """Bytes of the taken slots beyond the sizes of their blocks. The pool maintains this, because it knows the
    blocks."""
    segments: dict[Segment, None] = field(default_factory=dict)

    def stats(self, space: Space) -> SpaceStats:
        """Return the statistics of the space that uses this."""
        return SpaceStats(
            space=_identity(space),
            model=space.model,
            revision=space.revision,
            dtype=space.dtype,
            world_size=space.world_size,
            rank=space.rank,
            block_bytes=space.block_bytes,
            blocks=self.slots,
            bytes=self.bytes,
            padding_bytes=self.padding_bytes,
            segments=len(self.segments),
            gateway=space.gateway,
        )


@lru_cache(4096)
def _identity(space: Space) -> str:
    return space.identity()


class Slabs:
    """Bookkeeping of the slots, slabs and segments of the pool. The caller creates and retires the memory."""

    def __init__(
        self, capacity_bytes: int, segment_bytes: int, page_bytes: int = SLOT_ALIGN, named_bytes: int = 0
    ) -> None:
        self.ranges = Ranges(named_bytes)
        self.capacity_bytes = capacity_bytes
        self.segment_bytes = segment_bytes
        self.committed_bytes = 0
        self.taken_bytes = 0
        """Bytes of taken slots."""
        self.releases = 0
        """Number of times that room became free. While it is unchanged, a request refused for lack of a slot would be
        refused again."""
        self.segments: dict[int, Segment] = {}
        self.spaces: dict[int, SpaceUse] = {}
        self.page_bytes = page_bytes
        self._next_segment = 1
        self._serials = count()
        self._open: dict[tuple[int, int], list[tuple[int, int, int, Slab]]] = {}
        """Heaps of slabs with free slots by (space, slot size), lowest slab first."""

    @property
    def free_slot_bytes(self) -> int:
        """Bytes in segments that no taken slot uses: free slots, free slabs, and remainders of slabs that slots do not
        fill."""
        return self.committed_bytes - self.taken_bytes

    def take(self, space: int, size: int) -> Slot | None:
        """Take a free slot from an open slab or from a new slab in the space's segments; return None when there is
        neither."""
        slab = self._lowest_open(space, size) or self._new_slab(space, size)
        if slab is None:
            return None
        index = slab.free.pop()
        self._count(slab, 1)
        return Slot(slab, index, slab.offset + index * slab.slot_bytes)

    def give(self, slot: Slot) -> None:
        """Return a slot. When its slab becomes empty, return the slab's extent to the segment."""
        slab = slot.slab
        self._count(slab, -1)
        self.releases += 1
        slab.free.append(slot.index)
        if not slab.blocks and len(slab.free) == slab.slots:
            slab.free.clear()
            segment = slab.segment
            segment.slabs.remove(slab)
            insort(segment.extents, (slab.offset, slab.nbytes), key=_highest_first)
        elif not slab.listed:
            self._list(slab)

    def most_bytes(self, *, named: bool) -> int:
        """Return the size in bytes of the largest block that the pool could ever hold."""
        return min(self.capacity_bytes, self.ranges.nbytes) if named else self.capacity_bytes

    def plan_segment(self, space: int, size: int, spaces: int = 1, *, named: bool = False) -> Segment | None:
        """Plan a new segment for slots of `size` within the capacity; return None when there is no room.

        With several spaces, segments are small enough that each space can have some. Otherwise every store in one space
        would take the memory of another. The caller creates the memory and then calls `add_segment`.
        """
        free_bytes = self.capacity_bytes - self.committed_bytes
        if named:
            free_bytes = min(free_bytes, self.ranges.largest())
        nbytes = self._segment_for(size, spaces, free_bytes, named=named)
        if not nbytes:
            return None
        base = self.ranges.lowest(nbytes) if named else None
        segment = _fresh(self._next_segment, space, nbytes, small=size <= SMALL_SLOT_BYTES, base=base)
        if not segment.small:  # whole slots: the rest of the last page is unusable
            segment.extents = [(0, nbytes // size * size)]
        self._next_segment += 1
        return segment

    def next_ranges(self, space: int, size: int, count: int, spaces: int = 1) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) of the named segment that `count` more slots of `size` would take: the ranges
        of the segments that `plan_segment` would plan without evicting blocks."""
        free_bytes = self.capacity_bytes - self.committed_bytes
        if self._segment_for(size, spaces, min(free_bytes, self.ranges.largest()), named=True) == 0:
            return []
        count -= self._free_slots(space, size, count)
        ranges, planned = self.ranges.copy(), []
        while count > 0:
            nbytes = self._segment_for(size, spaces, min(free_bytes, ranges.largest()), named=True)
            base = ranges.lowest(nbytes) if nbytes else None
            if base is None:
                break
            ranges.take(base, nbytes)
            planned.append((base, nbytes))
            free_bytes -= nbytes
            slab = SMALL_SLAB_BYTES if size <= SMALL_SLOT_BYTES else nbytes
            count -= max(1, nbytes // slab * (slab // size))
        return planned

    def _free_slots(self, space: int, size: int, most: int) -> int:
        """Return the number of free slots that a space has for this size, counted up to `most`."""
        free = 0
        for *_, slab in self._open.get((space, size), ()):
            free += len(slab.free)
            if free >= most:
                return most
        use = self.spaces.get(space)
        for segment in use.segments if use is not None else ():
            free += sum(nbytes // size for _, nbytes in segment.extents if _serves(segment, nbytes, size))
            if free >= most:
                return most
        return free

    def add_segment(self, segment: Segment) -> None:
        """Put a planned segment into use after its memory was created."""
        if segment.base is not None:
            self.ranges.take(segment.base, segment.nbytes)
        self.segments[segment.number] = segment
        self.use(segment.space).segments[segment] = None
        self.committed_bytes += segment.nbytes

    def never_below(self, segment: int) -> None:
        """Do not assign segment numbers up to this one, because engines may still map these segments."""
        self._next_segment = max(self._next_segment, segment + 1)

    def restore_segment(self, number: int, space: int, nbytes: int, *, small: bool, base: int | None) -> Segment:
        """Adopt a segment of a previous data plane; all of it counts as unused.

        Raise ValueError when its range of the named segment is not free.
        """
        segment = _fresh(number, space, nbytes, small=small, base=base)
        self.never_below(number)
        self.add_segment(segment)
        return segment

    def restore_slab(self, segment: Segment, offset: int, size: int, taken_slots: set[int]) -> Slab:
        """Restore a slab of an adopted segment with its taken slots. Raise ValueError when it does not fit there."""
        at = next((at for at, extent in enumerate(segment.extents) if extent[0] == offset), None)
        if at is None or segment.small != (size <= SMALL_SLOT_BYTES) or size > segment.extents[at][1]:
            raise ValueError(f"no slab of {size} bytes a slot begins at {offset} of segment {segment.number}")
        nbytes = segment.extents.pop(at)[1]
        slots = nbytes // size
        if max(taken_slots) >= slots:
            raise ValueError(f"slot {max(taken_slots)} of {slots} at {offset} of segment {segment.number}")
        free = [index for index in range(slots - 1, -1, -1) if index not in taken_slots]
        slab = Slab(segment, offset, nbytes, size, free, listed=False)
        segment.slabs.add(slab)
        self._count(slab, len(taken_slots))
        if free:
            self._list(slab)
        return slab

    def drop_segment(self, segment: Segment) -> None:
        """Remove an empty segment. Raise ValueError when it has slabs."""
        if segment.slabs:
            raise ValueError(f"segment {segment.number} is in use")
        del self.segments[segment.number]
        use = self.use(segment.space)
        del use.segments[segment]
        self.committed_bytes -= segment.nbytes
        if segment.base is not None:
            self.ranges.give(segment.base, segment.nbytes)
        self.releases += 1
        if not use.segments:
            del self.spaces[segment.space]
            for key in [key for key in self._open if key[0] == segment.space]:
                del self._open[key]

    def empty_segments(self) -> list[Segment]:
        """Return the segments of all spaces that have no block."""
        return [segment for segment in self.segments.values() if not segment.slabs]

    def vacant_ranges(self) -> Ranges:
        """Return the ranges of the named segment that are free after all empty segments are retired."""
        ranges = self.ranges.copy()
        for segment in self.empty_segments():
            if segment.base is not None:
                ranges.give(segment.base, segment.nbytes)
        return ranges

    def empties_for(self, size: int, spaces: int, *, named: bool) -> list[Segment]:
        """Return the empty segments to retire so that `plan_segment` can plan the best segment; no more than needed."""
        free_bytes = self.capacity_bytes - self.committed_bytes
        empties = sorted(self.empty_segments(), key=lambda segment: segment.nbytes)
        most = free_bytes + sum(segment.nbytes for segment in empties)
        if named:
            most = min(most, self.vacant_ranges().largest())
        best = self._segment_for(size, spaces, most, named=named)
        retired: list[Segment] = []
        if named and best:
            ranges = [(segment.base, segment.nbytes, segment) for segment in empties if segment.base is not None]
            retired = self.ranges.cheapest(best, ranges) or []
            empties = [segment for segment in empties if segment not in retired]
            free_bytes += sum(segment.nbytes for segment in retired)
        while best and free_bytes < best:
            segment = empties.pop()
            retired.append(segment)
            free_bytes += segment.nbytes
        return retired

    def resize(self, capacity_bytes: int) -> None:
        """Set the capacity. Existing segments stay, so raise ValueError when it is below the committed bytes."""
        if capacity_bytes < self.committed_bytes:
            raise ValueError(f"{self.committed_bytes} bytes are committed, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.releases += 1

    def yields(self, slab: Slab, space: int, size: int) -> int:
        """Return how many slots of `size` in `space` the slab's extent would hold once it is empty; 0 if it cannot hold
        any."""
        segment = slab.segment
        if segment.space != space or not _serves(segment, slab.nbytes, size):
            return 0
        return slab.nbytes // size

    def use(self, space: int) -> SpaceUse:
        """Return the pool usage of a space; create it on first use."""
        return self.spaces.get(space) or self.spaces.setdefault(space, SpaceUse())

    def largest_spaces(self, most: int) -> Iterator[tuple[int, SpaceUse]]:
        """Yield at most `most` spaces that have segments, with their usage, largest number of bytes first."""
        yield from nlargest(most, self.spaces.items(), key=lambda item: item[1].bytes)

    def _count(self, slab: Slab, slots: int) -> None:
        nbytes = slots * slab.slot_bytes
        self.taken_bytes += nbytes
        use = self.spaces[slab.segment.space]
        use.slots += slots
        use.bytes += nbytes

    def _segment_for(self, size: int, spaces: int, free_bytes: int, *, named: bool) -> int:
        """Return the size in bytes of a segment for slots of `size` when `free_bytes` are left; 0 when that is too
        little."""
        page = SLOT_ALIGN if named else self.page_bytes
        free_bytes = free_bytes // page * page
        capacity = self.most_bytes(named=named)
        part = capacity // SEGMENTS_PER_POOL // SMALL_SLAB_BYTES * SMALL_SLAB_BYTES
        target = min(self.segment_bytes, max(part, SMALL_SLAB_BYTES))
        if spaces > 1:
            share = capacity // (SEGMENTS_PER_SPACE * spaces) // SMALL_SLAB_BYTES * SMALL_SLAB_BYTES
            target = min(target, max(share, SMALL_SLAB_BYTES))
        if free_bytes < size:
            return 0
        if size <= SMALL_SLOT_BYTES:
            return min(target, free_bytes)
        nbytes = min(max(1, target // size), free_bytes // size) * size
        return -(-nbytes // page) * page

    def _lowest_open(self, space: int, size: int) -> Slab | None:
        heap = self._open.get((space, size))
        while heap:
            slab = heap[0][3]
            if slab.free:
                return slab
            heappop(heap)
            slab.listed = False
        return None

    def _list(self, slab: Slab) -> None:
        slab.listed = True
        segment = slab.segment
        heap = self._open.setdefault((segment.space, slab.slot_bytes), [])
        heappush(heap, (segment.number, slab.offset, next(self._serials), slab))

    def _new_slab(self, space: int, size: int) -> Slab | None:
        use = self.spaces.get(space)
        chosen: Segment | None = None
        for segment in use.segments if use is not None else ():
            if (chosen is None or len(segment.extents) < len(chosen.extents)) and any(
                _serves(segment, nbytes, size) for _, nbytes in segment.extents
            ):
                chosen = segment
        if chosen is None:
            return None
        extents = chosen.extents
        at = next(at for at in reversed(range(len(extents))) if _serves(chosen, extents[at][1], size))
        offset, nbytes = extents.pop(at)
        slab = Slab(chosen, offset, nbytes, size, list(range(nbytes // size - 1, -1, -1)))
        chosen.slabs.add(slab)
        self._list(slab)
        return slab


def _fresh(number: int, space: int, nbytes: int, *, small: bool, base: int | None) -> Segment:
    step = SMALL_SLAB_BYTES if small else nbytes
    extents = [(offset, min(step, nbytes - offset)) for offset in range(0, nbytes, step)]
    return Segment(number, space, nbytes, small, base, extents[::-1])


def _serves(segment: Segment, nbytes: int, size: int) -> bool:
    """Return whether an extent of a segment may take slots of `size`. Large slots must leave little of the extent over;
    otherwise it is better to retire the whole segment."""
    if segment.small:
        return size <= SMALL_SLOT_BYTES and size <= nbytes
    return SMALL_SLOT_BYTES < size <= nbytes and nbytes % size <= nbytes // 8


def _highest_first(extent: tuple[int, int]) -> int:
    return -extent[0]
