"""Who goes first: one eviction policy a file, behind one small protocol.

A policy sees descriptor numbers, 64-bit fingerprints of keys, sizes and times, never keys or tenants. It holds the
blocks that may be evicted and nothing else: blocks under a guaranteed pin, being written or quarantined are not in it.
A descriptor number names a block while it is in the order and may name another one later; a fingerprint stays with
its key, so policies that remember what they evicted (ghosts) remember fingerprints.
"""

from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order over evictable blocks. Every call is O(1) unless said otherwise."""

    def __len__(self) -> int: ...

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        """A block became evictable: stored, unpinned, or taken over from another policy. It must not be in the order.

        `hits` is how often it was used before; 0 for a block that was just stored.
        """

    def touch(self, block: int, now: float) -> None:
        """A block was used. It must be in the order."""

    def refresh(self, block: int, now: float) -> None:
        """The rest of its chain was stored: the block is as recent as after a use, but this is not another use.
        It must be in the order. Algorithms that count uses or know no recency may do nothing.
        """

    def evict(self, block: int, now: float) -> None:
        """A block leaves because room was needed. It must be in the order. Ghosts are made here."""

    def remove(self, block: int) -> None:
        """A block leaves for another reason: pinned, invalidated, taken over. It must be in the order; no ghost."""

    def victims(self, now: float) -> Iterator[int]:
        """Every evictable block, first to go first. The order must not change while the iterator is in use.

        The caller takes as many as it needs and may pass over some (leased ones, another slot size), so taking one
        from the iterator changes nothing; `evict` does.
        """
