"""Eviction queues: the evictable blocks of one account in four ranks.

Demoted blocks are evicted first, then the blocks that the eviction policy orders, then blocks under a hinted pin, then
blocks under a soft pin. A block that is guaranteed, being written, quarantined or dead is in no eviction queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from dataplane.policies import EvictionPolicy
from dataplane.policies.lru import Lru

MakePolicy = Callable[[], EvictionPolicy]


class Rank(IntEnum):
    """Rank of a block among the blocks of its account; the lowest is evicted first."""

    DEMOTED = 0
    NORMAL = 1
    HINTED = 2
    SOFT = 3


_NORMAL = Rank.NORMAL
_DEMOTED = Rank.DEMOTED


@dataclass(eq=False, slots=True)
class Evictable:
    """What eviction queues know of a block. Only they write `queue` and `rank`."""

    number: int
    """Number of its descriptor."""
    charge: int
    """Bytes that its tenant is charged: the size of the slot, not of the block."""
    mark: int
    """64-bit fingerprint of its key and space, by which eviction policies identify it."""
    queue: EvictionQueue | None = field(init=False, default=None, repr=False)
    """Eviction queue that holds the block; None while the block may not be evicted."""
    rank: Rank = field(init=False, default=Rank.NORMAL)
    hits: int = field(init=False, default=0)
    """Number of uses since it was stored."""
    used_at: float = field(init=False, default=0.0)
    """Unix seconds when it was stored or last used."""


class EvictionQueue:
    """The evictable blocks of one account."""

    __slots__ = ("_ranks", "policy")

    def __init__(self, make: MakePolicy) -> None:
        self.policy = make()
        self._ranks: list[EvictionPolicy | None] = [None, self.policy, None, None]

    def __len__(self) -> int:
        return sum(len(policy) for policy in self._ranks if policy is not None)

    def count(self, rank: Rank) -> int:
        """Return the number of blocks of one rank."""
        order = self._ranks[rank]
        return 0 if order is None else len(order)

    def insert(self, block: Evictable, rank: Rank, now: float) -> None:
        """Add a block that became evictable."""
        order = self._ranks[rank]
        if order is None:
            order = self._ranks[rank] = Lru()
        order.insert(block.number, block.mark, block.charge, now, block.hits)
        block.queue = self
        block.rank = rank

    def touch(self, block: Evictable, now: float) -> None:
        """Record a use of a block. A use ends a demotion."""
        rank = block.rank
        if rank is _NORMAL:
            self.policy.touch(block.number, now)
            return
        if rank is _DEMOTED:
            self.remove(block)
            self.insert(block, Rank.NORMAL, now)
            return
        order = self._ranks[block.rank]
        assert order is not None
        order.touch(block.number, now)

    def refresh(self, block: Evictable, now: float) -> None:
        """Make a block as recent as after a use without counting one. A demoted block stays demoted."""
        order = self._ranks[block.rank]
        if block.rank is not _DEMOTED and order is not None:
            order.refresh(block.number, now)

    def evict(self, block: Evictable, now: float) -> None:
        """Remove a block that is evicted to make room."""
        if block.rank is _NORMAL:
            self.policy.evict(block.number, now)
            block.queue = None
            return
        order = self._ranks[block.rank]
        assert order is not None
        order.evict(block.number, now)
        block.queue = None

    def remove(self, block: Evictable) -> None:
        """Remove a block that is no longer evictable."""
        order = self._ranks[block.rank]
        assert order is not None
        order.remove(block.number)
        block.queue = None

    def victims(self, rank: Rank, now: float) -> Iterator[int]:
        """Iterate over the blocks of one rank in eviction order."""
        order = self._ranks[rank]
        return iter(()) if order is None else order.victims(now)

    def switch(self, make: MakePolicy, blocks: Sequence[Evictable], now: float) -> None:
        """Replace the policy. The new one receives the same NORMAL blocks in their current eviction order."""
        turn = {number: at for at, number in enumerate(self.policy.victims(now))}
        last = len(turn)  # a policy may omit blocks; these follow by their last use
        policy = make()
        for block in sorted(blocks, key=lambda block: (turn.get(block.number, last), block.used_at)):
            policy.insert(block.number, block.mark, block.charge, block.used_at, block.hits)
        self.policy = self._ranks[Rank.NORMAL] = policy
