"""Accounts: between whom room is shared out, and who has borrowed most.

A tenant whose quota is in force has an account of its own. All others, without a record or only observed, share the
common one: among them the policy alone decides, as if there were no tenants, and together they borrow with weight 1. So
a pool without quotas is one plain cache, and a hundred thousand unknown salts cost no more than one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from dataplane.core.shelves import Shelf


@dataclass(eq=False, slots=True)
class Account:
    """Whose blocks go, and how much of them may be taken."""

    shelf: Shelf
    weight: float = 1.0
    floor_bytes: int = 0
    """What nobody else can take: effective, at most what the pool can really guarantee."""
    limit_bytes: int | None = None
    bytes: int = 0
    """Charged bytes in any state."""
    entry: tuple[float, int] | None = None
    """Its valid place in the ranking."""

    @property
    def share(self) -> float:
        """Use over weight: who has the most of it gives first."""
        return self.bytes / self.weight


@dataclass(slots=True)
class Ranking:
    """Borrowers, the largest share first. A lazy heap: a change costs nothing until somebody asks. Accounts within
    their floors are not in it, so that ten thousand of them cost a search nothing."""

    _heap: list[tuple[float, int, Account]] = field(default_factory=list)
    _changed: dict[Account, None] = field(default_factory=dict)
    _count: int = 0
    changes: int = 0
    """Times that an account changed."""
    _room: int = 1024
    """Entries, outdated ones included, before the heap is cleaned."""

    def changed(self, account: Account) -> None:
        """The account's bytes, floor or weight changed."""
        self._changed[account] = None
        self.changes += 1

    def forget(self, account: Account) -> None:
        """The account is closed."""
        self._changed.pop(account, None)
        account.entry = None

    def borrowers(self) -> Generator[Account, None, None]:
        """Accounts above their floor, the largest share first. Close the generator before anything changes."""
        self._settle()
        heap, taken = self._heap, []
        try:
            while heap:
                entry = heappop(heap)
                account = entry[2]
                if account.entry != entry[:2]:
                    continue
                taken.append(entry)
                yield account
        finally:
            for entry in taken:
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
        if len(self._heap) > self._room:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[:2]]
            heapify(self._heap)
            self._room = 2 * len(self._heap) + 1024


def effective_floors(floors: dict[str, int], capacity_bytes: int) -> dict[str, int]:
    """What is really guaranteed of each floor: all of it, or the same part of each when the pool is too small."""
    wanted = sum(floors.values())
    if wanted <= capacity_bytes:
        return floors
    return {name: floor * capacity_bytes // wanted for name, floor in floors.items()}
