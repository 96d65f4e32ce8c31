"""Creation of segments for spaces, and retirement of empty segments to make way for them."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from dataplane.core.blocks.ports import MemorySource
from dataplane.core.blocks.ranges import Ranges
from dataplane.core.blocks.slabs import Segment, Slabs
from dataplane.core.journal.id_journal import IdJournal, SegmentEnd, SpaceEnd
from dataplane.core.spaces import Spaces
from dataplane.protocol.events import Event, SegmentCreated, SegmentRetired


@dataclass(frozen=True, slots=True)
class Segments:
    """Keeps the slabs, memory, id journal and events of segments consistent with each other."""

    slabs: Slabs
    spaces: Spaces
    journal: IdJournal
    memory: MemorySource
    emit: Callable[[Event], None]

    def room_bytes(self) -> int:
        """Return the bytes that a new segment could have after all empty segments are retired."""
        empty = sum(segment.nbytes for segment in self.slabs.empty_segments())
        return self.slabs.capacity_bytes - self.slabs.committed_bytes + empty

    def vacant_ranges(self, space: int) -> Ranges | None:
        """Return the ranges that a new segment of a space could take after all empty segments are retired; None for a
        space that is not in the named segment."""
        return self.slabs.vacant_ranges() if self.spaces.named(space) else None

    def add(self, space: int, size: int, now: float) -> bool:
        """Give the space another segment, retiring empty segments of other spaces when the capacity requires it.

        Return False when there is no room. Raise MemoryError when the machine refuses the memory.
        """
        spaces, named = len(self.spaces.by_number), self.spaces.named(space)
        segment = self.slabs.plan_segment(space, size, spaces, named=named)
        if segment is None:
            for empty in self.slabs.empties_for(size, spaces, named=named):
                self._retire(empty, now)
            segment = self.slabs.plan_segment(space, size, spaces, named=named)
        if segment is None:
            return False
        try:
            self.memory.create_segment(segment.number, segment.nbytes, segment.base)
        except MemoryError:  # empty segments may hold the memory that the machine lacks
            empties = [
                empty for empty in self.slabs.empty_segments() if not named or empty.base is not None
            ]  # retiring a memfd does not free space in a full /dev/shm
            for empty in empties:
                self._retire(empty, now)
            if not empties:
                raise
            self.memory.create_segment(segment.number, segment.nbytes, segment.base)
        self.slabs.add_segment(segment)
        self.emit(SegmentCreated(now, segment.number, self.spaces.model(space), segment.nbytes))
        return True

    def forget_spaces(self, used: Set[int], now: float) -> None:
        """Forget spaces without engines and blocks, so that a wrong block size does not outlive its engine."""
        if len(self.spaces.by_number) == len(used):
            return
        busy = {segment.space for segment in self.slabs.segments.values() if segment.slabs}
        idle = self.spaces.by_number.keys() - used - busy
        for segment in self.slabs.empty_segments():
            if segment.space in idle:
                self._retire(segment, now)
        for number in idle:
            self.spaces.forget(number)
            self.journal.append(SpaceEnd(number))

    def _retire(self, segment: Segment, now: float) -> None:
        self.slabs.drop_segment(segment)
        self.journal.append(SegmentEnd(segment.number))
        self.memory.retire_segment(segment.number)
        self.emit(SegmentRetired(now, segment.number, self.spaces.model(segment.space), segment.nbytes))
