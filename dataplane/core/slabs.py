"""Which bytes of the arena serve a block: segments of one space, cut into slabs of one slot size.

A segment belongs to one space at a time, because producers of a space map it writable. Slots up to 256 KiB share
segments that are cut into 2 MiB slabs, each of one slot size; larger slots have segments of their own, sized to a whole
number of slots. A slab that empties may take another slot size; a segment that empties may be retired for another
space. The capacity bounds the memory of all segments together, so a pool of n blocks of a size that divides the slab
holds exactly n.

Goals: room made by eviction is usable; no waste for power-of-two blocks; O(1) take and give. Non-goals: moving blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane.core.blocks import Block

SLOT_ALIGN = 4096
SMALL_SLAB_BYTES = 2 << 20
SMALL_SLOT_BYTES = SMALL_SLAB_BYTES // 8
STEPS_PER_DOUBLING = 8
SEGMENTS_PER_SPACE = 4
"""At least so many segments for each space, where the pool allows it."""


def slot_bytes(nbytes: int, block_bytes: int = 0) -> int:
    """Slot for a block of `nbytes`: whole pages; exact for the space's own block size, else at most an eighth over."""
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
    """Free slot numbers; the last is taken first."""
    blocks: set[Block] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Segment:
    """One memfd of the arena, assigned to one space."""

    number: int
    space: int
    nbytes: int
    small: bool
    extents: list[tuple[int, int]] = field(default_factory=list)
    """Unused (offset, bytes) that a new slab may take."""
    slabs: set[Slab] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Slot:
    """Where one block's bytes are. Never changed once made."""

    slab: Slab
    index: int
    offset: int
    """Bytes from the start of the segment."""


class Slabs:
    """The arena's book: who has which slot. It creates and retires segments by telling its caller."""

    def __init__(self, capacity_bytes: int, segment_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.segment_bytes = segment_bytes
        self.committed_bytes = 0
        self.segments: dict[int, Segment] = {}
        self._next_segment = 1
        self._open: dict[tuple[int, int], dict[Slab, None]] = {}
        """Slabs with a free slot, by (space, slot size), in the order in which they opened."""

    def take(self, space: int, size: int) -> Slot | None:
        """A free slot of a slab that exists or fits into the space's segments; None when neither."""
        opened = self._open.get((space, size))
        if opened:
            slab = next(iter(opened))
        else:
            found = self._new_slab(space, size)
            if found is None:
                return None
            slab = found
        index = slab.free.pop()
        if not slab.free:
            del self._open[space, size][slab]
        return Slot(slab, index, slab.offset + index * slab.slot_bytes)

    def give(self, slot: Slot) -> None:
        """Take a slot back; a slab that is empty now gives its extent back to its segment."""
        slab = slot.slab
        slab.free.append(slot.index)
        segment = slab.segment
        opened = self._open.setdefault((segment.space, slab.slot_bytes), {})
        opened[slab] = None
        if not slab.blocks and len(slab.free) == slab.nbytes // slab.slot_bytes:
            del opened[slab]
            segment.slabs.remove(slab)
            segment.extents.append((slab.offset, slab.nbytes))

    def plan_segment(self, space: int, size: int, spaces: int = 1) -> Segment | None:
        """A new segment that could serve slots of `size`, within the capacity; None when there is no room for one.

        With several spaces segments are small enough that each space can have some: else a store of one would take the
        memory of another every time. The caller creates the memory and then calls `add_segment`.
        """
        wanted = self.segment_bytes
        if spaces > 1:
            share = (
                self.capacity_bytes // (SEGMENTS_PER_SPACE * spaces) // SMALL_SLAB_BYTES * SMALL_SLAB_BYTES
            )
            wanted = min(wanted, max(share, SMALL_SLAB_BYTES))
        room = (self.capacity_bytes - self.committed_bytes) // SLOT_ALIGN * SLOT_ALIGN
        if room < size:
            return None
        if size <= SMALL_SLOT_BYTES:
            nbytes = min(wanted, room)
            extents = [
                (offset, min(SMALL_SLAB_BYTES, nbytes - offset))
                for offset in range(0, nbytes, SMALL_SLAB_BYTES)
            ]
            segment = Segment(self._next_segment, space, nbytes, True, extents[::-1])
        else:
            nbytes = min(max(1, wanted // size), room // size) * size
            segment = Segment(self._next_segment, space, nbytes, False, [(0, nbytes)])
        self._next_segment += 1
        return segment

    def add_segment(self, segment: Segment) -> None:
        """Take a planned segment, whose memory now exists, into use."""
        self.segments[segment.number] = segment
        self.committed_bytes += segment.nbytes

    def drop_segment(self, segment: Segment) -> None:
        """Forget an empty segment."""
        if segment.slabs:
            raise ValueError(f"segment {segment.number} is in use")
        del self.segments[segment.number]
        self.committed_bytes -= segment.nbytes

    def empty_segments(self) -> list[Segment]:
        """Segments without a block, of any space."""
        return [segment for segment in self.segments.values() if not segment.slabs]

    def yields(self, slab: Slab, space: int, size: int) -> int:
        """How many slots of `size` in `space` the slab's extent would serve once it is empty; 0 when it cannot."""
        segment = slab.segment
        if segment.space != space or segment.small != (size <= SMALL_SLOT_BYTES):
            return 0
        return slab.nbytes // size

    def _new_slab(self, space: int, size: int) -> Slab | None:
        small = size <= SMALL_SLOT_BYTES
        for segment in self.segments.values():
            if segment.space != space or segment.small != small:
                continue
            for at in range(len(segment.extents) - 1, -1, -1):
                offset, nbytes = segment.extents[at]
                if nbytes >= size:
                    del segment.extents[at]
                    slab = Slab(segment, offset, nbytes, size, list(range(nbytes // size - 1, -1, -1)))
                    segment.slabs.add(slab)
                    self._open.setdefault((space, size), {})[slab] = None
                    return slab
        return None
