"""Shelves: the evictable blocks of one account, in three ranks.

Demoted blocks go first, then the blocks that the eviction policy orders, then those under a soft pin. A block that is
guaranteed, being written, quarantined or doomed is on no shelf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from dataplane.eviction import EvictionPolicy
from dataplane.eviction.lru import Lru

if TYPE_CHECKING:
    from dataplane.core.blocks import Block

MakePolicy = Callable[[], EvictionPolicy]


class Rank(IntEnum):
    """When a block's turn comes among the blocks of its account."""

    DEMOTED = 0
    NORMAL = 1
    SOFT = 2


_NORMAL = Rank.NORMAL
_DEMOTED = Rank.DEMOTED


class Shelf:
    """One account's evictable blocks."""

    __slots__ = ("_ranks", "policy")

    def __init__(self, make: MakePolicy) -> None:
        self.policy = make()
        self._ranks: list[EvictionPolicy | None] = [None, self.policy, None]

    def __len__(self) -> int:
        return sum(len(each) for each in self._ranks if each is not None)

    def count(self, rank: Rank) -> int:
        """Blocks of one rank."""
        order = self._ranks[rank]
        return 0 if order is None else len(order)

    def insert(self, block: Block, rank: Rank, now: float) -> None:
        """The block became evictable."""
        order = self._ranks[rank]
        if order is None:
            order = self._ranks[rank] = Lru()
        order.insert(block.number, block.mark, block.charge, now, block.hits)
        block.shelf = self
        block.rank = rank

    def touch(self, block: Block, now: float) -> None:
        """The block was used; a demotion ends with that."""
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

    def refresh(self, block: Block, now: float) -> None:
        """The block's last use goes on; a demotion stays."""
        order = self._ranks[block.rank]
        if block.rank is not _DEMOTED and order is not None:
            order.refresh(block.number, now)

    def evict(self, block: Block, now: float) -> None:
        """The block goes to make room."""
        if block.rank is _NORMAL:
            self.policy.evict(block.number, now)
            block.shelf = None
            return
        order = self._ranks[block.rank]
        assert order is not None
        order.evict(block.number, now)
        block.shelf = None

    def remove(self, block: Block) -> None:
        """The block is no longer evictable."""
        order = self._ranks[block.rank]
        assert order is not None
        order.remove(block.number)
        block.shelf = None

    def victims(self, rank: Rank, now: float) -> Iterator[int]:
        """Blocks of one rank, first to go first."""
        order = self._ranks[rank]
        return iter(()) if order is None else order.victims(now)

    def switch(self, make: MakePolicy, blocks: Sequence[Block], now: float) -> None:
        """Another policy for the same NORMAL blocks, in the sequence in which they would have gone."""
        turn = {number: at for at, number in enumerate(self.policy.victims(now))}
        last = len(turn)  # a policy need not name every block: the others follow by their last use
        policy = make()
        for block in sorted(blocks, key=lambda block: (turn.get(block.number, last), block.used_at)):
            policy.insert(block.number, block.mark, block.charge, block.used_at, block.hits)
        self.policy = self._ranks[Rank.NORMAL] = policy
