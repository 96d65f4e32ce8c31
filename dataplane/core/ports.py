"""What the core needs from outside, as small protocols; `tiers` has the real ones."""

from collections.abc import Callable
from typing import Protocol

from dataplane.protocol.events import PoolStats
from dataplane.protocol.layout import AreaMemory

Fence = Callable[[], None]
"""Orders the data plane's stores against every engine's; see the theory in `dataplane.protocol.layout`."""


class Memory(Protocol):
    """Where bytes come from."""

    def create_segment(self, segment: int, size_bytes: int, base: int | None = None) -> None:
        """Make a segment of the arena, or take the range of the named segment that begins at `base`.

        Raises MemoryError when the machine refuses.
        """

    def retire_segment(self, segment: int) -> None:
        """Give a segment back; engines that still map it keep their mapping, nobody new gets it."""

    def create_area(self, client: int) -> AreaMemory:
        """Make the area of an attaching process, zeroed and formatted. Raises MemoryError."""

    def retire_area(self, client: int) -> None:
        """Give an area back."""

    def digest(self, segment: int, offset: int, nbytes: int) -> bytes:
        """The checksum of bytes of a segment, as they are now; see `protocol.checksums`.

        Raises MemoryError when the machine refuses to map it.
        """

    def available_bytes(self) -> int:
        """What the machine could still give to segments, what is kept ready for them included."""

    def resize(self, capacity_bytes: int) -> None:
        """All segments together may have so many bytes from now on."""

    def describe(self, stats: PoolStats) -> None:
        """Fill in what only this side knows: prefaulted bytes, huge and locked pages."""
