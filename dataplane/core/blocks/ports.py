"""Protocols for the services that the core needs from outside; `dataplane.memory` implements them."""

from collections.abc import Callable
from typing import Protocol

from dataplane.protocol.layout import AreaMemory
from dataplane.protocol.stats.pool import PoolStats

Fence = Callable[[], None]
"""Barrier that orders the data plane's stores against every engine's stores; see `dataplane.protocol.layout`."""


class MemorySource(Protocol):
    """Source of memory for segments and areas."""

    def create_segment(self, segment: int, size_bytes: int, base: int | None = None) -> None:
        """Create a segment of the pool, or take the range of the named segment that begins at `base`.

        Raise MemoryError when the machine refuses.
        """

    def retire_segment(self, segment: int) -> None:
        """Give a segment back. Engines that map it keep their mapping; no other engine can map it any more."""

    def create_area(self, client: int) -> AreaMemory:
        """Create the area of an attaching process, zeroed and formatted. Raise MemoryError."""

    def retire_area(self, client: int) -> None:
        """Give an area back."""

    def digest(self, segment: int, offset: int, nbytes: int) -> bytes:
        """Return the checksum of the current bytes of a range of a segment; see `protocol.checksums`.

        Raise MemoryError when the machine refuses to map the segment.
        """

    def available_bytes(self) -> int:
        """Return the bytes that the machine could still give to segments, including memory held ready for them."""

    def resize(self, capacity_bytes: int) -> None:
        """Set the total number of bytes that all segments may have."""

    def describe(self, stats: PoolStats) -> None:
        """Fill in the fields that only the memory source knows: prefaulted bytes, huge and locked pages."""
