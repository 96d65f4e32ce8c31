"""The search for victims: the order in which accounts give up blocks when room is needed.

The order is: demoted blocks; blocks of accounts above their limits; blocks of borrowers above their floors, largest
share first, with blocks under soft pins after all others; finally the blocks of the requesting account itself. An
account never loses a block within its floor to another account. A hinted pin counts only within its account: it delays
the turn of a block, not the turn of the account.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

from dataplane.core.tenants.accounts import Account, Accounts
from dataplane.core.tenants.eviction_queues import Rank

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block

_MISSES = 64
"""Number of blocks larger than the bytes that an account may still lose, after which the search leaves the account."""
_WITHOUT_PIN = (Rank.NORMAL, Rank.HINTED)
"""Ranks of blocks that no operator's pin and no demotion affects, in eviction order."""
_Turn = tuple[float, int, Account, Iterator[int]]


@dataclass(slots=True)
class VictimIterator:
    """One search. Call `take` for each block that will be evicted before you request the next one."""

    order: Accounts
    blocks: dict[int, Block]
    asking: Account | None
    """Account whose reservation needs room; None when the node itself needs it."""
    now: float
    _taken_bytes: dict[Account, int] = field(default_factory=dict)
    _shown: set[int] = field(default_factory=set)
    """Blocks that were already candidates, possibly for another reason."""

    def take(self, block: Block) -> bool:
        """Count a block as a victim. Return False if its account would fall below its floor."""
        if self.order.alone:
            return True
        account = block.tenant.account
        remaining_bytes = self._remaining_bytes(account) - block.charge
        if account is not self.asking and remaining_bytes < account.floor_bytes:
            return False
        self._taken_bytes[account] = account.bytes - remaining_bytes
        return True

    def take_all(self, blocks: Sequence[Block]) -> bool:
        """Take blocks that make room only together: all of them or none. Return whether they were taken."""
        before = dict(self._taken_bytes)
        if all(self.take(block) for block in blocks):
            return True
        self._taken_bytes = before
        return False

    def _remaining_bytes(self, account: Account) -> int:
        return account.bytes - self._taken_bytes.get(account, 0)

    def candidates(self) -> Generator[Block, None, None]:
        """Yield blocks in eviction order. Close the generator before anything changes."""
        if self.order.alone:  # no tenant has an enforced quota: the pool is one cache
            for rank in Rank:
                for number in self.order.common.queue.victims(rank, self.now):
                    yield self.blocks[number]
            return
        for account in self.order.demoting():
            yield from self._from(account, Rank.DEMOTED, account.floor_bytes)
        for account in self.order.over_limit():
            for rank in (*_WITHOUT_PIN, Rank.SOFT):
                yield from self._from(account, rank, max(account.limit_bytes or 0, account.floor_bytes))
        for ranks in (_WITHOUT_PIN, (Rank.SOFT,)):
            yield from self._borrowed(ranks)
        if self.asking is not None:
            for rank in Rank:
                yield from self._own(self.asking, rank)

    def _own(self, account: Account, rank: Rank) -> Iterator[Block]:
        for number in account.queue.victims(rank, self.now):
            if self._first_time(number):
                yield self.blocks[number]

    def _first_time(self, number: int) -> bool:
        if number in self._shown:
            return False
        self._shown.add(number)
        return True

    def _from(self, account: Account, rank: Rank, floor: int) -> Iterator[Block]:
        misses = 0
        for number in account.queue.victims(rank, self.now):
            block = self.blocks[number]
            remaining_bytes = self._remaining_bytes(account)
            if remaining_bytes - block.charge >= floor:
                if self._first_time(number):
                    yield block
                continue
            misses += 1
            if remaining_bytes <= floor or misses == _MISSES:
                return

    def _borrowed(self, ranks: Sequence[Rank]) -> Iterator[Block]:
        """Yield blocks of borrowers, each from the account that has the largest share at that time."""
        waiting = self.order.ranking.borrowers()
        following = next(waiting, None)
        turns: list[_Turn] = []
        count = 0
        try:
            while turns or following is not None:
                if following is not None and (not turns or -following.share <= turns[0][0]):
                    if any(following.queue.count(rank) for rank in ranks):
                        count += 1
                        blocks: Iterator[int] = chain.from_iterable(
                            [following.queue.victims(rank, self.now) for rank in ranks]
                        )
                        share = self._remaining_bytes(following) / following.weight
                        heappush(turns, (-share, count, following, blocks))
                    following = next(waiting, None)
                    continue
                _, number, account, blocks = heappop(turns)
                until = turns[0][0] if turns else 0.0
                if following is not None:
                    until = min(until, -following.share)
                misses = 0
                for descriptor in blocks:
                    block = self.blocks[descriptor]
                    remaining_bytes = self._remaining_bytes(account)
                    if remaining_bytes <= account.floor_bytes or misses == _MISSES:
                        break
                    if remaining_bytes - block.charge < account.floor_bytes:
                        misses += 1
                        continue
                    if not self._first_time(descriptor):
                        continue
                    yield block
                    share = self._remaining_bytes(account) / account.weight
                    if -share > until:
                        heappush(turns, (-share, number, account, blocks))
                        break
        finally:
            waiting.close()
