"""The eviction order in force: every account's shelf, and which account is asked first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING

from dataplane.core.accounts import Account, Ranking
from dataplane.core.search import Search
from dataplane.core.shelves import MakePolicy, Rank, Shelf

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant

_DEMOTED = Rank.DEMOTED


class Order:
    """Shelves of all accounts, kept in step with what is charged to them."""

    def __init__(self, make: MakePolicy) -> None:
        self._make = make
        self.common = Account(Shelf(make))
        self.ranking = Ranking()
        self.changes = 0
        """Times that what may go changed, otherwise than by going."""
        self._own: dict[Account, None] = {}
        self._demoting: dict[Account, None] = {}
        self._watched: Sequence[Account] = ()

    def __len__(self) -> int:
        return sum(len(account.shelf) for account in self.accounts())

    @property
    def alone(self) -> bool:
        """No tenant has a quota in force."""
        return not self._own

    def accounts(self) -> list[Account]:
        return [self.common, *self._own]

    # ---- blocks

    def insert(self, block: Block, now: float, rank: Rank = Rank.NORMAL) -> None:
        """The block became evictable."""
        self.changes += 1
        account = block.tenant.account
        if rank is _DEMOTED:
            self._demoting[account] = None
        account.shelf.insert(block, rank, now)

    def move(self, block: Block, rank: Rank | None, now: float) -> None:
        """Give a block another rank, or none: it may not go then."""
        if block.shelf is None:
            if rank is not None:
                self.insert(block, now, rank)
        elif rank is None:
            self.changes += 1
            block.shelf.remove(block)
        elif rank is not block.rank:
            block.shelf.remove(block)
            self.insert(block, now, rank)

    # ---- charges

    def charge(self, tenant: Tenant, nbytes: int) -> None:
        """Bytes were charged to a tenant, or given back."""
        tenant.bytes += nbytes
        account = tenant.account
        account.bytes += nbytes
        if self._own:
            self.ranking.changed(account)

    # ---- accounts

    def open(
        self, moving: Sequence[Tenant], leaving: Sequence[Tenant], blocks: Iterable[Block], now: float
    ) -> None:
        """Give tenants accounts of their own, or bring them back to the common one, with their blocks."""
        if not moving and not leaving:
            return
        targets: dict[Tenant, Account] = {tenant: Account(Shelf(self._make)) for tenant in moving}
        targets.update(dict.fromkeys(leaving, self.common))
        self._reshelve(targets, blocks, now, whole=bool(leaving))
        for tenant, account in targets.items():
            old = tenant.account
            old.bytes -= tenant.bytes
            account.bytes += tenant.bytes
            tenant.account = account
            if old is not self.common:
                self._own.pop(old, None)
                self._demoting.pop(old, None)
                self.ranking.forget(old)
            if account is not self.common:
                self._own[account] = None
                self.ranking.changed(account)
        self.ranking.changed(self.common)

    def _reshelve(
        self, targets: Mapping[Tenant, Account], blocks: Iterable[Block], now: float, *, whole: bool
    ) -> None:
        """Move blocks to their tenants' new shelves; `whole`: what returns lines up with what is there, by last use."""
        members: dict[Shelf, list[Block]] = {}
        for block in blocks:
            if block.shelf is not None and (
                block.tenant in targets or (whole and block.tenant.account is self.common)
            ):
                members.setdefault(block.shelf, []).append(block)
        arriving: dict[Account, list[list[Block]]] = {}
        for shelf, found in members.items():
            parts: dict[Account, list[Block]] = {}
            for block in _in_turn(shelf, found, now):
                shelf.remove(block)
                parts.setdefault(targets.get(block.tenant, self.common), []).append(block)
            for account, part in parts.items():
                arriving.setdefault(account, []).append(part)
        for account, parts_of_it in arriving.items():
            for block in merge(*parts_of_it, key=lambda block: block.used_at):
                account.shelf.insert(block, block.rank, block.used_at)
                if block.rank is Rank.DEMOTED:
                    self._demoting[account] = None

    def switch(self, make: MakePolicy, blocks: Iterable[Block], now: float) -> None:
        """Another policy for every account; nothing is dropped."""
        self.changes += 1
        self._make = make
        shelved: dict[Shelf, list[Block]] = {account.shelf: [] for account in self.accounts()}
        for block in blocks:
            if block.shelf is not None and block.rank is Rank.NORMAL:
                shelved[block.shelf].append(block)
        for shelf, members in shelved.items():
            shelf.switch(make, members, now)

    def demoting(self) -> Iterator[Account]:
        """Accounts that have demoted blocks."""
        for account in list(self._demoting):
            if account.shelf.count(Rank.DEMOTED):
                yield account
            else:
                del self._demoting[account]

    def over_limit(self) -> list[Account]:
        """Accounts that are charged more than their limit."""
        return [
            each for each in self._watched if each.limit_bytes is not None and each.bytes > each.limit_bytes
        ]

    def watch(self, over: Sequence[Account]) -> None:
        """These were found above their limit: only a limit that is lowered does that, it binds what is new."""
        self.changes += 1  # they may lose more than before
        self._watched = over

    def search(self, blocks: dict[int, Block], asking: Account | None, now: float) -> Search:
        """Whose block goes next."""
        return Search(self, blocks, asking, now)


def _in_turn(shelf: Shelf, members: Sequence[Block], now: float) -> list[Block]:
    """Blocks of one shelf in the sequence in which they would go."""
    if len(members) == 1:
        return list(members)
    turn = {number: at for at, number in enumerate(n for rank in Rank for n in shelf.victims(rank, now))}
    last = len(turn)
    return sorted(members, key=lambda block: (turn.get(block.number, last), block.used_at))
