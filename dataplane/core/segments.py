"""Segments come and go: a space gets another one, and the empty ones of others make way for it."""

from __future__ import annotations

from collections.abc import Callable, Set

from dataplane.core.names import Names, SegmentEnd, SpaceEnd
from dataplane.core.ports import Memory
from dataplane.core.ranges import Ranges
from dataplane.core.slabs import Segment, Slabs
from dataplane.core.spaces import Spaces
from dataplane.protocol.events import Event, SegmentCreated, SegmentRetired


class Segments:
    """Keeps slabs, memory, names and events of segments consistent with each other."""

    def __init__(
        self, slabs: Slabs, spaces: Spaces, names: Names, memory: Memory, emit: Callable[[Event], None]
    ) -> None:
        self._slabs = slabs
        self._spaces = spaces
        self._names = names
        self._memory = memory
        self._emit = emit

    def room_bytes(self) -> int:
        """Bytes that a new segment could have once the empty ones are retired."""
        empty = sum(segment.nbytes for segment in self._slabs.empty_segments())
        return self._slabs.capacity_bytes - self._slabs.committed_bytes + empty

    def vacant_ranges(self, space: int) -> Ranges | None:
        """The ranges that a new segment of a space in the named segment could have once the empty ones are retired;
        None for a space that is not there."""
        return self._slabs.vacant_ranges() if self._spaces.named(space) else None

    def add(self, space: int, size: int, now: float) -> bool:
        """Give the space another segment; empty segments of others are retired when the capacity needs it."""
        spaces, named = len(self._spaces.by_number), self._spaces.named(space)
        segment = self._slabs.plan_segment(space, size, spaces, named=named)
        if segment is None:
            for empty in self._slabs.empties_for(size, spaces, named=named):
                self._retire(empty, now)
            segment = self._slabs.plan_segment(space, size, spaces, named=named)
        if segment is None:
            return False
        try:
            self._memory.create_segment(segment.number, segment.nbytes, segment.base)
        except MemoryError:  # what nobody uses may be what the machine lacks
            empties = [
                each for each in self._slabs.empty_segments() if not named or each.base is not None
            ]  # what a full /dev/shm lacks is in no memfd
            for empty in empties:
                self._retire(empty, now)
            if not empties:
                raise
            self._memory.create_segment(segment.number, segment.nbytes, segment.base)
        self._slabs.add_segment(segment)
        self._emit(SegmentCreated(now, segment.number, self._spaces.model(space), segment.nbytes))
        return True

    def forget_spaces(self, used: Set[int], now: float) -> None:
        """Forget spaces that no engine has and no block is in: a wrong block size must not outlive its engine."""
        if len(self._spaces.by_number) == len(used):
            return
        busy = {segment.space for segment in self._slabs.segments.values() if segment.slabs}
        idle = self._spaces.by_number.keys() - used - busy
        for segment in self._slabs.empty_segments():
            if segment.space in idle:
                self._retire(segment, now)
        for number in idle:
            self._spaces.forget(number)
            self._names.append(SpaceEnd(number))

    def _retire(self, segment: Segment, now: float) -> None:
        self._slabs.drop_segment(segment)
        self._names.append(SegmentEnd(segment.number))
        self._memory.retire_segment(segment.number)
        self._emit(SegmentRetired(now, segment.number, self._spaces.model(segment.space), segment.nbytes))
