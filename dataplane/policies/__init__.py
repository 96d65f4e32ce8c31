"""Eviction policies, one per module, behind the `EvictionPolicy` protocol.

A policy sees descriptor numbers, 64-bit fingerprints of keys, sizes and times, but no keys or tenants. It orders only
blocks that may be evicted: blocks that are under a guaranteed pin, being written or quarantined are not in it.
A descriptor number identifies a block only while the block is in the order, and may be reused later. A fingerprint
stays with its key, so policies that remember evicted blocks (ghosts) store fingerprints.

To add a policy, implement the protocol in a new module here, register it in `registry.POLICIES`, and add its name to
`Algorithm` and `ALGORITHMS` of `dataplane.protocol.control.records`. Test it in `tests/eviction`, and describe it in
`docs/reference/eviction.md`.
"""

from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order over evictable blocks. Every call is O(1) unless its documentation says otherwise."""

    def __len__(self) -> int: ...

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        """Add a block that became evictable: stored, unpinned, or taken over from another policy. It must not be in
        the order.

        `hits` is the number of earlier uses; 0 for a block that was just stored.
        """

    def touch(self, block: int, now: float) -> None:
        """Record a use of a block. It must be in the order."""

    def refresh(self, block: int, now: float) -> None:
        """Make a block as recent as after a use without counting a use, because the rest of its chain was stored.

        The block must be in the order. Algorithms that count uses or ignore recency may do nothing.
        """

    def evict(self, block: int, now: float) -> None:
        """Remove a block that is evicted to make room. It must be in the order. Policies record ghosts here."""

    def remove(self, block: int) -> None:
        """Remove a block for another reason: pinned, invalidated or taken over. It must be in the order. Policies
        record no ghost."""

    def victims(self, now: float) -> Iterator[int]:
        """Iterate over every evictable block in eviction order. The order must not change during the iteration.

        The caller takes as many blocks as it needs and may skip some (leased blocks, other slot sizes). The iterator
        therefore changes nothing; only `evict` does.
        """
