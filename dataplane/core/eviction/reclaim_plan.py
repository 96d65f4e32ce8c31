"""A walk along the eviction order that selects the first victims whose eviction makes usable room.

The walk takes a block whose slot serves the request, or a slab or segment all of whose blocks were met on the way. It
prefers a slab or segment of which half was met earlier to a block with a matching slot, because most of the container's
bytes are older. A rare but busy slot size or space can thus grow at the cost of old blocks instead of cycling through
its own few blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.blocks.ranges import Ranges
from dataplane.core.blocks.slabs import Segment, Slab, Slabs

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.eviction.victim_iterator import VictimIterator


@dataclass(slots=True)
class ReclaimPlan:
    """One walk and the victims that it found."""

    slabs: Slabs
    search: VictimIterator
    space: int
    size: int
    missing: int
    skip: Callable[[Block], bool]
    """Predicate for blocks that this search may not evict because they are leased or must be spared."""
    free_bytes: int
    """Bytes that a new segment could have after `_emptied` and the empty segments are retired; -1 when the machine has
    no memory for new segments."""
    ranges: Ranges | None = None
    """Ranges of the named segment that are free after the already empty segments are retired; None when a new segment
    would be a memfd."""
    victims: list[list[Block]] = field(default_factory=list)
    """Groups of blocks; a group makes room only if all of its blocks are evicted."""
    evictable_bytes: int = 0
    _visited: dict[Slab, tuple[list[Block], int]] = field(default_factory=dict)
    """For each slab of another slot size: the blocks met, and the number of slots that it would yield."""
    _counts: dict[Segment, list[int]] = field(default_factory=dict)
    """For each segment that makes room only as a whole: the number of blocks met, half of its blocks, all of them."""
    _counts_of_slab: dict[Slab, list[int]] = field(default_factory=dict)
    """For each slab in such a segment, the counts of the segment."""
    _ripe: list[Slab | Segment] = field(default_factory=list)
    """Slabs and segments of which half was met, in the order in which they reached it."""
    _emptied: list[Segment] = field(default_factory=list)
    """Segments all of whose blocks were met and that are not among the victims."""
    _vacant: Ranges | None = None
    """`ranges` after the segments in `_emptied` are retired."""
    _agreed: set[Segment] = field(default_factory=set)
    """Segments in `_emptied` whose eviction the search has allowed."""
    _victim_blocks: set[Block] = field(default_factory=set)
    """Blocks among the victims."""
    _gone: set[Slab] = field(default_factory=set)
    """Slabs that were selected before all of their blocks were met."""

    def along(self, candidates: Iterable[Block]) -> None:
        """Walk along the candidates until there are enough victims or no more candidates."""
        space, size, skip, take, victim_blocks = self.space, self.size, self.skip, self.search.take, self._victim_blocks
        counts_of = self._counts_of_slab
        for block in candidates:
            if skip(block) or block in victim_blocks:
                continue
            slab = block.slot.slab
            if slab.slot_bytes == size and slab.segment.space == space:
                self.evictable_bytes += block.charge
                if not (self._ripe and self._take_ripe()) and take(block):
                    victim_blocks.add(block)
                    self.victims.append([block])
                    self.missing -= 1
            elif (counts := counts_of.get(slab)) is not None:
                self.evictable_bytes += block.charge
                counts[0] += 1
                if counts[0] == counts[1] or counts[0] == counts[2]:
                    self._visit_segment(slab.segment, counts)
            elif slab not in self._gone:
                self.evictable_bytes += block.charge
                self._visit(block, slab)
            if self.missing <= 0:
                return

    def _visit(self, block: Block, slab: Slab) -> None:
        """Count a block of another size or space, which makes room only together with its whole slab or segment."""
        visit = self._visited.get(slab)
        if visit is None:
            slots = self.slabs.yields(slab, self.space, self.size)
            if not slots:
                self._visit_first(slab)
                return
            visit = self._visited[slab] = ([], slots)
        blocks, slots = visit
        blocks.append(block)
        if len(blocks) == len(slab.blocks):
            self._take(blocks, slots)
        elif len(blocks) == -(-len(slab.blocks) // 2):
            self._ripe.append(slab)

    def _visit_first(self, slab: Slab) -> None:
        """Count the first block met of a slab that makes room only together with its whole segment."""
        segment = slab.segment
        counts = self._counts.get(segment)
        if counts is None:
            blocks = sum(len(slab.blocks) for slab in segment.slabs) if self.free_bytes >= 0 else 0
            counts = self._counts[segment] = [0, -(-blocks // 2), blocks]
        self._counts_of_slab[slab] = counts
        counts[0] += 1
        if counts[0] == counts[1] or counts[0] == counts[2]:
            self._visit_segment(segment, counts)

    def _visit_segment(self, segment: Segment, counts: list[int]) -> None:
        """Handle a segment of which half or all of the blocks were met."""
        if counts[0] == counts[1]:
            self._ripe.append(segment)
        if counts[0] < counts[2]:
            return
        self._emptied.append(segment)
        self.free_bytes += segment.nbytes
        if self.ranges is not None:
            if self._vacant is None:
                self._vacant = self.ranges.copy()
            if segment.base is not None:
                self._vacant.give(segment.base, segment.nbytes)
            if min(self.free_bytes, self._vacant.largest()) >= self.size:
                self._take_neighbours(self.ranges, self._vacant)
            return
        if self.free_bytes < self.size:
            return
        group = [block for emptied in self._emptied for block in self._blocks(emptied)]
        if self.search.take_all(group):
            self._go(group)
        else:
            self._without_protected()
        if self.free_bytes >= self.size:
            self.missing -= self.free_bytes // self.size
            self.free_bytes %= self.size
            self._emptied.clear()

    def _take_neighbours(self, ranges: Ranges, vacant: Ranges) -> None:
        """Select emptied segments that make one range of the named segment free: segments in adjacent ranges, and
        others to make up for missing capacity.

        One range is enough, because the caller searches again if it needs more.
        """
        while True:
            side_by_side = [
                (segment.base, segment.nbytes, segment) for segment in self._emptied if segment.base is not None
            ]
            selected = ranges.cheapest(self.size, side_by_side)
            if selected is None:
                return
            lacking = self.size - self.free_bytes + sum(segment.nbytes for segment in self._emptied)
            lacking -= sum(segment.nbytes for segment in selected)
            for segment in self._emptied:
                if lacking > 0 and segment not in selected:
                    selected.append(segment)
                    lacking -= segment.nbytes
            if lacking > 0:
                return
            if all(self._may_go(segment, vacant) for segment in selected):
                self._go([block for segment in selected for block in self._blocks(segment)])
                self.missing = 0
                return

    def _may_go(self, segment: Segment, vacant: Ranges) -> bool:
        """Return whether the floors of tenants allow the eviction of an emptied segment. If they do not, the segment
        makes no room in this walk."""
        if segment not in self._agreed:
            if not self.search.take_all(self._blocks(segment)):
                self._emptied.remove(segment)
                self.free_bytes -= segment.nbytes
                if segment.base is not None:
                    vacant.take(segment.base, segment.nbytes)
                return False
            self._agreed.add(segment)
        return True

    def _without_protected(self) -> None:
        """Keep only the emptied segments whose eviction the floors of tenants allow, because not all may be evicted."""
        remaining: list[Segment] = []
        for segment in reversed(self._emptied):
            if self.search.take_all(self._blocks(segment)):
                remaining.append(segment)
            else:
                self.free_bytes -= segment.nbytes
        self._emptied = remaining
        if self.free_bytes >= self.size:
            self._go([block for segment in remaining for block in self._blocks(segment)])

    def _take_ripe(self) -> bool:
        """Take the first half-met slab or segment all of whose blocks may be evicted; return whether there was one."""
        while self._ripe:
            container = self._ripe.pop(0)
            if isinstance(container, Slab):
                blocks = [self.search.blocks[number] for number in container.blocks]
                slots = self._visited[container][1]
                complete = len(blocks) == len(self._visited[container][0])
                gone = {container}
            else:
                blocks = self._blocks(container)
                complete = self._counts[container][0] == self._counts[container][2]
                slots = self._slots_of(container)
                gone = container.slabs
            if complete or not slots or any(self._stays(block) for block in blocks):
                continue
            if self._take(blocks, slots):
                self._gone |= gone
                if isinstance(container, Segment):
                    for slab in gone:
                        self._counts_of_slab.pop(slab, None)
                    if self.ranges is None:
                        self.free_bytes = (self.free_bytes + container.nbytes) % self.size
                return True
        return False

    def _slots_of(self, segment: Segment) -> int:
        """Return how many slots new segments would have if `segment` were emptied too."""
        if self.ranges is None:
            return (self.free_bytes + segment.nbytes) // self.size
        free_bytes = self.free_bytes - sum(emptied.nbytes for emptied in self._emptied)
        ranges = self.ranges
        if segment.base is not None:
            ranges = ranges.copy()
            ranges.give(segment.base, segment.nbytes)
        fits = min(free_bytes + segment.nbytes, ranges.largest()) >= self.size
        return self.missing if fits else 0

    def _take(self, blocks: list[Block], slots: int) -> bool:
        if not self.search.take_all(blocks):
            return False
        self._go(blocks)
        self.missing -= slots
        return True

    def _go(self, group: list[Block]) -> None:
        self._victim_blocks.update(group)
        self.victims.append(group)

    def _stays(self, block: Block) -> bool:
        """Return whether a block prevents the eviction of its container. A block that is already a victim does, because
        it cannot make room twice."""
        return block.queue is None or block in self._victim_blocks or self.skip(block)

    def _blocks(self, segment: Segment) -> list[Block]:
        blocks = self.search.blocks
        return [blocks[number] for slab in segment.slabs for number in slab.blocks]
