"""Accounts, among which the room of the pool is divided, and their ranking by borrowed bytes.

A tenant whose quota is enforced has its own account. All other tenants, without a record or only observed, share the
common account: among them the eviction policy alone decides, as if there were no tenants, and together they borrow with
weight 1. A pool without quotas is therefore one plain cache, and a hundred thousand unknown salts cost no more than
one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from dataplane.core.tenants.eviction_queues import EvictionQueue


@dataclass(eq=False, slots=True)
class Account:
    """Eviction queue, charge and limits of one tenant with an enforced quota, or of all other tenants together."""

    queue: EvictionQueue
    weight: float = 1.0
    floor_bytes: int = 0
    """Effective floor: bytes that other accounts cannot take, at most what the pool can guarantee."""
    limit_bytes: int | None = None
    bytes: int = 0
    """Charged bytes in any state."""
    hinted_bytes: int = 0
    """Charged bytes of blocks under hinted pins."""
    entry: tuple[float, int] | None = None
    """Its valid entry in the heap of the ranking; None when it is not ranked."""

    @property
    def share(self) -> float:
        """Charged bytes divided by the weight; the account with the largest share gives up blocks first."""
        return self.bytes / self.weight


@dataclass(slots=True)
class Ranking:
    """Borrowers by share, largest first, in a lazy heap: a change costs nothing until the next query. Accounts within
    their floors are not in the heap, so ten thousand of them do not slow down a search."""

    _heap: list[tuple[float, int, Account]] = field(default_factory=list)
    _changed: dict[Account, None] = field(default_factory=dict)
    _count: int = 0
    changes: int = 0
    """Number of times that an account changed."""
    _max_entries: int = 1024
    """Number of entries, including outdated ones, above which the heap is cleaned."""

    def changed(self, account: Account) -> None:
        """Record that the account's bytes, floor or weight changed."""
        self._changed[account] = None
        self.changes += 1

    def forget(self, account: Account) -> None:
        """Remove an account that is closed."""
        self._changed.pop(account, None)
        account.entry = None

    def borrowers(self) -> Generator[Account, None, None]:
        """Yield accounts above their floor, largest share first. Close the generator before anything changes."""
        self._settle()
        heap, popped = self._heap, []
        try:
            while heap:
                entry = heappop(heap)
                account = entry[2]
                if account.entry != entry[:2]:
                    continue
                popped.append(entry)
                yield account
        finally:
            for entry in popped:
                heappush(heap, entry)

    def _settle(self) -> None:
        for account in self._changed:
            if account.bytes <= account.floor_bytes:
                account.entry = None
                continue
            self._count += 1
            account.entry = (-account.share, self._count)
            heappush(self._heap, (*account.entry, account))
        self._changed.clear()
        if len(self._heap) > self._max_entries:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[:2]]
            heapify(self._heap)
            self._max_entries = 2 * len(self._heap) + 1024


class ChargedTenant(Protocol):
    """A tenant, as far as its charge goes."""

    account: Account
    bytes: int


class Accounts:
    """The common account and those of tenants with an enforced quota. The search for victims walks over them."""

    def __init__(self, common: EvictionQueue) -> None:
        self.common = Account(common)
        self.ranking = Ranking()
        self._own: dict[Account, None] = {}

    @property
    def alone(self) -> bool:
        """Whether no tenant has an enforced quota."""
        return not self._own

    def accounts(self) -> list[Account]:
        return [self.common, *self._own]

    def charge(self, tenant: ChargedTenant, nbytes: int) -> None:
        """Charge bytes to a tenant; a negative number gives bytes back."""
        tenant.bytes += nbytes
        account = tenant.account
        account.bytes += nbytes
        if self._own:
            self.ranking.changed(account)

    def demoting(self) -> Iterable[Account]:
        """Return the accounts that have demoted blocks."""
        return ()

    def over_limit(self) -> Iterable[Account]:
        """Return the accounts that are charged more than their limit."""
        return ()


def effective_floors(floors: dict[str, int], capacity_bytes: int) -> dict[str, int]:
    """Return the bytes guaranteed for each floor: all of it, or the same fraction of each when the pool is too
    small."""
    total = sum(floors.values())
    if total <= capacity_bytes:
        return floors
    return {name: floor * capacity_bytes // total for name, floor in floors.items()}
