"""The eviction order: the eviction queues of all accounts, and the order in which accounts give up blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING

from dataplane.core.tenants.accounts import Account, Accounts
from dataplane.core.tenants.eviction_queues import EvictionQueue, MakePolicy, Rank

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.tenants.tenant import Tenant

_DEMOTED = Rank.DEMOTED


class EvictionOrder(Accounts):
    """Eviction queues of all accounts, kept consistent with the bytes charged to them."""

    def __init__(self, make: MakePolicy) -> None:
        super().__init__(EvictionQueue(make))
        self._make = make
        self.changes = 0
        """Number of times that the set of evictable blocks changed for a reason other than eviction."""
        self._demoting: dict[Account, None] = {}
        self._watched: Sequence[Account] = ()

    def __len__(self) -> int:
        return sum(len(account.queue) for account in self.accounts())

    # ---- blocks

    def insert(self, block: Block, now: float, rank: Rank = Rank.NORMAL) -> None:
        """Add a block that became evictable."""
        self.changes += 1
        account = block.tenant.account
        if rank is _DEMOTED:
            self._demoting[account] = None
        account.queue.insert(block, rank, now)

    def move(self, block: Block, rank: Rank | None, now: float) -> None:
        """Give a block another rank, or make it not evictable with None."""
        if block.queue is None:
            if rank is not None:
                self.insert(block, now, rank)
        elif rank is None:
            self.changes += 1
            block.queue.remove(block)
        elif rank is not block.rank:
            block.queue.remove(block)
            self.insert(block, now, rank)

    # ---- accounts

    def open(self, moving: Sequence[Tenant], leaving: Sequence[Tenant], blocks: Iterable[Block], now: float) -> None:
        """Open accounts for the tenants in `moving`, and return those in `leaving` to the common account. Their blocks
        move with them."""
        if not moving and not leaving:
            return
        targets: dict[Tenant, Account] = {tenant: Account(EvictionQueue(self._make)) for tenant in moving}
        targets.update(dict.fromkeys(leaving, self.common))
        self._requeue(targets, blocks, now, whole=bool(leaving))
        for tenant, account in targets.items():
            old = tenant.account
            old.bytes -= tenant.bytes
            account.bytes += tenant.bytes
            old.hinted_bytes -= tenant.hinted_bytes
            account.hinted_bytes += tenant.hinted_bytes
            tenant.account = account
            if old is not self.common:
                self._own.pop(old, None)
                self._demoting.pop(old, None)
                self.ranking.forget(old)
            if account is not self.common:
                self._own[account] = None
                self.ranking.changed(account)
        self.ranking.changed(self.common)

    def _requeue(self, targets: Mapping[Tenant, Account], blocks: Iterable[Block], now: float, *, whole: bool) -> None:
        """Move blocks to the new eviction queues of their tenants. With `whole`, merge blocks that return to the common
        queue with those already in it, by last use."""
        members: dict[EvictionQueue, list[Block]] = {}
        for block in blocks:
            if block.queue is not None and (block.tenant in targets or (whole and block.tenant.account is self.common)):
                members.setdefault(block.queue, []).append(block)
        arriving: dict[Account, list[list[Block]]] = {}
        for queue, queued in members.items():
            parts: dict[Account, list[Block]] = {}
            for block in _in_turn(queue, queued, now):
                queue.remove(block)
                parts.setdefault(targets.get(block.tenant, self.common), []).append(block)
            for account, part in parts.items():
                arriving.setdefault(account, []).append(part)
        for account, parts_of_it in arriving.items():
            for block in merge(*parts_of_it, key=lambda block: block.used_at):
                account.queue.insert(block, block.rank, block.used_at)
                if block.rank is Rank.DEMOTED:
                    self._demoting[account] = None

    def switch(self, make: MakePolicy, blocks: Iterable[Block], now: float) -> None:
        """Replace the eviction policy of every account; no block is dropped."""
        self.changes += 1
        self._make = make
        by_queue: dict[EvictionQueue, list[Block]] = {account.queue: [] for account in self.accounts()}
        for block in blocks:
            if block.queue is not None and block.rank is Rank.NORMAL:
                by_queue[block.queue].append(block)
        for queue, members in by_queue.items():
            queue.switch(make, members, now)

    def demoting(self) -> Iterator[Account]:
        """Yield the accounts that have demoted blocks."""
        for account in list(self._demoting):
            if account.queue.count(Rank.DEMOTED):
                yield account
            else:
                del self._demoting[account]

    def over_limit(self) -> list[Account]:
        """Return the watched accounts that are charged more than their limit."""
        return [
            account
            for account in self._watched
            if account.limit_bytes is not None and account.bytes > account.limit_bytes
        ]

    def watch(self, accounts: Sequence[Account]) -> None:
        """Set the accounts that were found above their limit.

        Only a lowered limit causes this, because a limit is enforced for new blocks.
        """
        self.changes += 1  # these accounts may lose more blocks than before
        self._watched = accounts


def _in_turn(queue: EvictionQueue, members: Sequence[Block], now: float) -> list[Block]:
    """Return blocks of one eviction queue in eviction order."""
    if len(members) == 1:
        return list(members)
    turn = {number: at for at, number in enumerate(n for rank in Rank for n in queue.victims(rank, now))}
    last = len(turn)
    return sorted(members, key=lambda block: (turn.get(block.number, last), block.used_at))
