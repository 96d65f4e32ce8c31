"""Who goes first: one eviction policy a file, behind one small protocol.

A policy sees descriptor numbers, sizes and times, never keys or tenants. It holds the blocks that may be evicted and
nothing else: blocks under a guaranteed pin, being written or quarantined are not in it.
"""

from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order over evictable blocks. Every call is O(1) unless said otherwise."""

    def __len__(self) -> int: ...

    def insert(self, block: int, size_bytes: int, now: float) -> None:
        """A block became evictable. It must not be in the order."""

    def touch(self, block: int, now: float) -> None:
        """A block was used. It must be in the order."""

    def remove(self, block: int) -> None:
        """A block is no longer evictable. It must be in the order."""

    def victims(self) -> Iterator[int]:
        """Blocks, first to go first. The order must not change while the iterator is in use."""
