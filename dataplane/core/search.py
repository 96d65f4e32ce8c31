"""Search: whose block goes next, when somebody needs room.

In this order: demoted blocks; what tenants have above their limits; what borrowers have above their floors, the largest
share first, blocks under soft pins after all others; at last the asking tenant's own blocks. A tenant never loses a
block to another one that it holds within its floor.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from dataplane.core.accounts import Account
from dataplane.core.shelves import Rank

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.order import Order

_MISSES = 64
"""Blocks too large for what an account may still give, before the search leaves it."""
_Turn = tuple[float, int, Account, Iterator[int]]


@dataclass(slots=True)
class Search:
    """One search. Call `take` for each block that is going to go, before asking for the next one."""

    order: Order
    blocks: dict[int, Block]
    asking: Account | None
    """Whose reservation needs the room; None for the node itself."""
    now: float
    _taken: dict[Account, int] = field(default_factory=dict)
    _shown: set[int] = field(default_factory=set)
    """Blocks that were candidates before, for another reason."""

    def take(self, block: Block) -> bool:
        """Count a block as going; False when by now its account would fall below its floor."""
        if self.order.alone:
            return True
        account = block.tenant.account
        left = self._left(account) - block.charge
        if account is not self.asking and left < account.floor_bytes:
            return False
        self._taken[account] = account.bytes - left
        return True

    def take_all(self, blocks: Sequence[Block]) -> bool:
        """As `take`, of blocks that make room only together."""
        before = dict(self._taken)
        if all(self.take(block) for block in blocks):
            return True
        self._taken = before
        return False

    def _left(self, account: Account) -> int:
        return account.bytes - self._taken.get(account, 0)

    def candidates(self) -> Generator[Block, None, None]:
        """Blocks, first to go first. Close the generator before anything changes."""
        if self.order.alone:  # nobody has a quota in force: one cache
            for rank in Rank:
                for number in self.order.common.shelf.victims(rank, self.now):
                    yield self.blocks[number]
            return
        for account in self.order.demoting():
            yield from self._from(account, Rank.DEMOTED, account.floor_bytes)
        for account in self.order.over_limit():
            for rank in (Rank.NORMAL, Rank.SOFT):
                yield from self._from(account, rank, max(account.limit_bytes or 0, account.floor_bytes))
        for rank in (Rank.NORMAL, Rank.SOFT):
            yield from self._borrowed(rank)
        if self.asking is not None:
            for rank in Rank:
                yield from self._own(self.asking, rank)

    def _own(self, account: Account, rank: Rank) -> Iterator[Block]:
        for number in account.shelf.victims(rank, self.now):
            if self._first_time(number):
                yield self.blocks[number]

    def _first_time(self, number: int) -> bool:
        if number in self._shown:
            return False
        self._shown.add(number)
        return True

    def _from(self, account: Account, rank: Rank, floor: int) -> Iterator[Block]:
        misses = 0
        for number in account.shelf.victims(rank, self.now):
            block = self.blocks[number]
            left = self._left(account)
            if left - block.charge >= floor:
                if self._first_time(number):
                    yield block
                continue
            misses += 1
            if left <= floor or misses == _MISSES:
                return

    def _borrowed(self, rank: Rank) -> Iterator[Block]:
        """Blocks of borrowers, one at a time from whoever has the largest share then."""
        waiting = self.order.ranking.borrowers()
        following = next(waiting, None)
        turns: list[_Turn] = []
        count = 0
        try:
            while turns or following is not None:
                if following is not None and (not turns or -following.share <= turns[0][0]):
                    if following.shelf.count(rank):
                        count += 1
                        blocks = following.shelf.victims(rank, self.now)
                        share = self._left(following) / following.weight
                        heappush(turns, (-share, count, following, blocks))
                    following = next(waiting, None)
                    continue
                _, number, account, blocks = heappop(turns)
                until = turns[0][0] if turns else 0.0
                if following is not None:
                    until = min(until, -following.share)
                misses = 0
                for each in blocks:
                    block = self.blocks[each]
                    left = self._left(account)
                    if left <= account.floor_bytes or misses == _MISSES:
                        break
                    if left - block.charge < account.floor_bytes:
                        misses += 1
                        continue
                    if not self._first_time(each):
                        continue
                    yield block
                    share = self._left(account) / account.weight
                    if -share > until:
                        heappush(turns, (-share, number, account, blocks))
                        break
        finally:
            waiting.close()
