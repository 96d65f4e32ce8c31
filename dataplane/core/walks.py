"""A walk along the eviction order: the first thing that makes usable room.

That is a block whose slot serves the request, or a slab or segment all of whose blocks were met on the way, or, rather
than a block of the right slot, a slab or segment half of which was met before it: most of its bytes are older. So a
size or space that is rare and busy grows at the cost of what is old, and does not only wear out its own few blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.ranges import Ranges
from dataplane.core.slabs import Segment, Slab, Slabs

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.search import Search


@dataclass(slots=True)
class Walk:
    """One walk, and what it found."""

    slabs: Slabs
    search: Search
    space: int
    size: int
    missing: int
    skip: Callable[[Block], bool]
    """Blocks that may not go in this search, for they are leased or were to be spared."""
    room: int
    """Bytes that a new segment could have once `emptied` and what is empty already are retired; -1 when the machine
    has no memory for new ones."""
    ranges: Ranges | None = None
    """The ranges that a new segment in the named segment could have, once `emptied` are retired; None when it would be
    a memfd."""
    victims: list[list[Block]] = field(default_factory=list)
    """Groups: a group makes room only when all of it goes."""
    evictable_bytes: int = 0
    _met: dict[Slab, tuple[list[Block], int]] = field(default_factory=dict)
    """Blocks met of a slab that serves another size, and the slots that it would give."""
    _counts: dict[Segment, list[int]] = field(default_factory=dict)
    """Of segments that would have to go whole: blocks met, half of its blocks, and all."""
    _whole: dict[Slab, list[int]] = field(default_factory=dict)
    """The counts of the segment of each slab that makes room only with all of that."""
    _ripe: list[Slab | Segment] = field(default_factory=list)
    """Half met, in the order in which they were."""
    _emptied: list[Segment] = field(default_factory=list)
    """Segments all of whose blocks were met, and that are not among the victims."""
    _vacant: Ranges | None = None
    """`ranges` once those segments are retired."""
    _agreed: set[Segment] = field(default_factory=set)
    """Those of them that the search let go, should they be needed."""
    _taken: set[Block] = field(default_factory=set)
    """Blocks among the victims."""
    _gone: set[Slab] = field(default_factory=set)
    """Slabs that went before all of their blocks were met."""

    def along(self, candidates: Iterable[Block]) -> None:
        """Go until there are enough victims, or to the end."""
        space, size, skip, take, taken = self.space, self.size, self.skip, self.search.take, self._taken
        whole = self._whole
        for block in candidates:
            if skip(block) or block in taken:
                continue
            slab = block.slot.slab
            if slab.slot_bytes == size and slab.segment.space == space:
                self.evictable_bytes += block.charge
                if not (self._ripe and self._take_ripe()) and take(block):
                    taken.add(block)
                    self.victims.append([block])
                    self.missing -= 1
            elif (counts := whole.get(slab)) is not None:
                self.evictable_bytes += block.charge
                counts[0] += 1
                if counts[0] == counts[1] or counts[0] == counts[2]:
                    self._meet_segment(slab.segment, counts)
            elif slab not in self._gone:
                self.evictable_bytes += block.charge
                self._meet(block, slab)
            if self.missing <= 0:
                return

    def _meet(self, block: Block, slab: Slab) -> None:
        """A block of another size or space: it makes room together with the rest of its slab, or of its segment."""
        found = self._met.get(slab)
        if found is None:
            slots = self.slabs.yields(slab, self.space, self.size)
            if not slots:
                self._meet_first(slab)
                return
            found = self._met[slab] = ([], slots)
        blocks, slots = found
        blocks.append(block)
        if len(blocks) == len(slab.blocks):
            self._take(blocks, slots)
        elif len(blocks) == -(-len(slab.blocks) // 2):
            self._ripe.append(slab)

    def _meet_first(self, slab: Slab) -> None:
        """The first block of a slab that makes room only with all of its segment."""
        segment = slab.segment
        counts = self._counts.get(segment)
        if counts is None:
            blocks = sum(len(each.blocks) for each in segment.slabs) if self.room >= 0 else 0
            counts = self._counts[segment] = [0, -(-blocks // 2), blocks]
        self._whole[slab] = counts
        counts[0] += 1
        if counts[0] == counts[1] or counts[0] == counts[2]:
            self._meet_segment(segment, counts)

    def _meet_segment(self, segment: Segment, counts: list[int]) -> None:
        """Half of a segment's blocks were met, or all."""
        if counts[0] == counts[1]:
            self._ripe.append(segment)
        if counts[0] < counts[2]:
            return
        self._emptied.append(segment)
        self.room += segment.nbytes
        if self.ranges is not None:
            if self._vacant is None:
                self._vacant = self.ranges.copy()
            if segment.base is not None:
                self._vacant.give(segment.base, segment.nbytes)
            if min(self.room, self._vacant.largest()) >= self.size:
                self._take_neighbours(self.ranges, self._vacant)
            return
        if self.room < self.size:
            return
        group = [block for each in self._emptied for block in _blocks(each)]
        if self.search.take_all(group):
            self._go(group)
        else:
            self._without_protected()
        if self.room >= self.size:
            self.missing -= self.room // self.size
            self.room %= self.size
            self._emptied.clear()

    def _take_neighbours(self, ranges: Ranges, vacant: Ranges) -> None:
        """For a range of the named segment, ranges must go that lie side by side, and of others what the capacity
        lacks. One is enough for now: whoever looks for room looks again."""
        while True:
            side_by_side = [(each.base, each.nbytes, each) for each in self._emptied if each.base is not None]
            going = ranges.cheapest(self.size, side_by_side)
            if going is None:
                return
            lacking = self.size - self.room + sum(each.nbytes for each in self._emptied)
            lacking -= sum(each.nbytes for each in going)
            for each in self._emptied:
                if lacking > 0 and each not in going:
                    going.append(each)
                    lacking -= each.nbytes
            if lacking > 0:
                return
            if all(self._may_go(each, vacant) for each in going):
                self._go([block for each in going for block in _blocks(each)])
                self.missing = 0
                return

    def _may_go(self, segment: Segment, vacant: Ranges) -> bool:
        """Whether tenants' guarantees let an emptied segment go; if not, it makes no room in this walk."""
        if segment not in self._agreed:
            if not self.search.take_all(_blocks(segment)):
                self._emptied.remove(segment)
                self.room -= segment.nbytes
                if segment.base is not None:
                    vacant.take(segment.base, segment.nbytes)
                return False
            self._agreed.add(segment)
        return True

    def _without_protected(self) -> None:
        """Not all of the emptied segments may go, for they hold what tenants are guaranteed: as many as may."""
        kept: list[Segment] = []
        for segment in reversed(self._emptied):
            if self.search.take_all(_blocks(segment)):
                kept.append(segment)
            else:
                self.room -= segment.nbytes
        self._emptied = kept
        if self.room >= self.size:
            self._go([block for each in kept for block in _blocks(each)])

    def _take_ripe(self) -> bool:
        """Take a slab or segment that is half met, if all of it may go."""
        while self._ripe:
            container = self._ripe.pop(0)
            if isinstance(container, Slab):
                blocks, slots = list(container.blocks), self._met[container][1]
                whole = len(blocks) == len(self._met[container][0])
                gone = {container}
            else:
                blocks = _blocks(container)
                whole = self._counts[container][0] == self._counts[container][2]
                slots = self._slots_of(container)
                gone = container.slabs
            if whole or not slots or any(self._stays(block) for block in blocks):
                continue
            if self._take(blocks, slots):
                self._gone |= gone
                if isinstance(container, Segment):
                    for slab in gone:
                        self._whole.pop(slab, None)
                    if self.ranges is None:
                        self.room = (self.room + container.nbytes) % self.size
                return True
        return False

    def _slots_of(self, segment: Segment) -> int:
        """How many slots there are in new segments when one more is emptied."""
        if self.ranges is None:
            return (self.room + segment.nbytes) // self.size
        room = self.room - sum(each.nbytes for each in self._emptied)
        ranges = self.ranges
        if segment.base is not None:
            ranges = ranges.copy()
            ranges.give(segment.base, segment.nbytes)
        fits = min(room + segment.nbytes, ranges.largest()) >= self.size
        return self.missing if fits else 0

    def _take(self, blocks: list[Block], slots: int) -> bool:
        if not self.search.take_all(blocks):
            return False
        self._go(blocks)
        self.missing -= slots
        return True

    def _go(self, group: list[Block]) -> None:
        self._taken.update(group)
        self.victims.append(group)

    def _stays(self, block: Block) -> bool:
        """It may not go with a container; one that goes already makes no room a second time."""
        return block.shelf is None or block in self._taken or self.skip(block)


def _blocks(segment: Segment) -> list[Block]:
    return [block for slab in segment.slabs for block in slab.blocks]
