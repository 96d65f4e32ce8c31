"""The tenants and blocks of one tier, and the order in which the tier evicts the blocks: one queue for each tenant,
merged for the tenants without a quota.

A tenant that gets a quota keeps its queue, and so does one that loses it. No block moves then, however many the tenant
has. Among the tenants without a quota, the block that was not used for the longest time is evicted first: the common
queue keeps these tenants sorted by the last use of their oldest block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from dataplane.core.pool.pins import PinBundle
from dataplane.core.tenants.accounts import Account, Accounts
from dataplane.core.tenants.eviction_queues import Evictable, EvictionQueue, Rank
from dataplane.policies.lru import Lru
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.tiers import TierTenantStats
from dataplane.protocol.stored_blocks import StoredBlock
from dataplane.protocol.tiers import Compress

_serials = count(1)
Turn = tuple[float, int, int, "TenantQueue"]
"""Last use and sequence of a queue's oldest block, the queue's serial number, and the queue."""


class TenantQueue(EvictionQueue):
    """The evictable blocks of one tenant in a tier, least recently used first."""

    __slots__ = ("serial", "turns")

    def __init__(self) -> None:
        super().__init__(Lru)
        self.serial = next(_serials)
        self.turns: dict[Rank, Turn] = {}
        """Position of the queue in the common queue, by rank. `CommonQueue` sets it."""

    def put_first(self, entry: Evictable) -> None:
        """Make a block the first one of its rank to be evicted."""
        order = self._ranks[entry.rank]
        assert isinstance(order, Lru)
        order.put_first(entry.number)


class TierShare(NamedTuple):
    """Quota of a tenant in one tier."""

    floor_bytes: int = 0
    limit_bytes: int | None = None
    weight: float = 1.0
    rejects: bool = False
    """Whether the tier refuses new blocks at the limit, instead of evicting older blocks of the tenant."""


@dataclass(eq=False, slots=True)
class TierTenant:
    """One tenant in one tier."""

    salt: str
    account: Account
    """Its own account if it has a quota in this tier, otherwise the common account."""
    share: TierShare | None = None
    """Its quota in this tier, or None."""
    queue: TenantQueue = field(default_factory=TenantQueue)
    """Its evictable blocks, with or without a quota."""
    bytes: int = 0
    blocks: int = 0
    pending_bytes: int = 0
    """Room that was taken for blocks that are being written."""
    pinned_bytes: int = 0
    """Bytes of its guaranteed blocks."""
    guaranteed: OrderedDict[TierEntry, None] = field(default_factory=OrderedDict)
    """Its guaranteed blocks, in the order of marking."""

    @property
    def unused(self) -> bool:
        """Whether the tenant has no blocks, no pending bytes and no quota in the tier."""
        return not self.blocks and not self.pending_bytes and self.share is None

    def stats(self) -> TierTenantStats:
        """Return what the node reports of the tenant."""
        share = self.share
        return TierTenantStats(
            tenant=shown(self.salt),
            blocks=self.blocks,
            bytes=self.bytes,
            floor_bytes=0 if share is None else share.floor_bytes,
            effective_floor_bytes=0 if share is None else self.account.floor_bytes,
            limit_bytes=None if share is None else share.limit_bytes,
        )


@dataclass(eq=False, slots=True)
class TierEntry(Evictable):
    """One block that the tier holds."""

    stored: StoredBlock
    tenant: TierTenant
    bundles: tuple[PinBundle, ...] = ()
    """Pins that hold it; `tier_pins` keeps them."""
    guaranteed: bool = False
    """Whether it is within the pin budgets and therefore in no eviction queue."""
    encoding: Compress = "none"
    """Encoding of the block in the tier."""


class CommonQueue:
    """The queues of all tenants without a quota, as one."""

    def __init__(self, entries: Sequence[TierEntry | None]) -> None:
        """`entries` are the blocks of the tier by number; it may change later."""
        self._entries = entries
        self._turns: dict[Rank, list[Turn]] = {rank: [] for rank in Rank}

    def count(self, rank: Rank) -> int:
        """Return the number of tenants that have blocks of a rank."""
        return len(self._turns[rank])

    def changed(self, queue: TenantQueue, rank: Rank) -> None:
        """Move a queue to its position after its oldest block may have changed. Call this for a new queue, too."""
        oldest = next(queue.victims(rank, 0.0), None)
        current: Turn | None = None
        if oldest is not None:
            entry = self._entries[oldest]
            assert entry is not None
            current = entry.used_at, entry.stored.sequence, queue.serial, queue
        previous = queue.turns.get(rank)
        if previous == current:
            return
        turns = self._turns[rank]
        if previous is not None:
            del turns[bisect_left(turns, previous)], queue.turns[rank]
        if current is not None:
            insort(turns, current)
            queue.turns[rank] = current

    def leave(self, queue: TenantQueue) -> None:
        """Remove the queue of a tenant that has a quota now."""
        for rank, turn in queue.turns.items():
            turns = self._turns[rank]
            del turns[bisect_left(turns, turn)]
        queue.turns.clear()

    def victims(self, rank: Rank, now: float) -> Iterator[int]:
        """Iterate over the blocks of one rank, least recently used first. No block may change meanwhile."""
        turns = iter(self._turns[rank])
        following = next(turns, None)
        begun: list[tuple[float, int, int, int, Iterator[int]]] = []
        while begun or following is not None:
            if following is not None and (not begun or following[:3] < begun[0][:3]):
                serial, numbers = following[2], following[3].victims(rank, now)
                following = next(turns, None)
            else:
                _, _, serial, number, numbers = heappop(begun)
                yield number
            after = next(numbers, None)
            if after is not None:
                entry = self._entries[after]
                assert entry is not None
                heappush(begun, (entry.used_at, entry.stored.sequence, serial, after, numbers))


class TierOrder(Accounts):
    """Eviction queues of all tenants, kept consistent with the bytes charged to their accounts. A tier demotes no
    blocks and has no watched accounts."""

    def __init__(self, entries: Sequence[TierEntry | None]) -> None:
        """`entries` are the blocks of the tier by number; it may change later."""
        self._merged = CommonQueue(entries)
        merged: Any = self._merged  # it has the methods of a queue that `VictimIterator` calls
        super().__init__(merged)

    # ---- blocks

    def insert(self, entry: TierEntry, now: float, rank: Rank = Rank.NORMAL) -> None:
        """Add a block that became evictable, as one that was just used."""
        entry.used_at = now
        entry.tenant.queue.insert(entry, rank, now)
        self._changed(entry.tenant, rank)

    def move(self, entry: TierEntry, rank: Rank | None, now: float) -> None:
        """Give a block another rank, or make it not evictable with None."""
        if entry.queue is not None:
            if rank is entry.rank:
                return
            entry.queue.remove(entry)
            self._changed(entry.tenant, entry.rank)
        if rank is not None:
            self.insert(entry, now, rank)

    def touch(self, entry: TierEntry, now: float) -> None:
        """Record a use of a block, if it is evictable."""
        if entry.queue is not None:
            entry.used_at = now
            entry.hits += 1
            entry.queue.touch(entry, now)
            self._changed(entry.tenant, entry.rank)

    def refresh(self, entry: TierEntry, now: float) -> None:
        """Make a block as recent as after a use without counting one, if it is evictable."""
        if entry.queue is not None:
            entry.used_at = now
            entry.queue.refresh(entry, now)
            self._changed(entry.tenant, entry.rank)

    def put_first(self, entry: TierEntry) -> None:
        """Make a block the first one of its tenant and rank to be evicted, if it is evictable."""
        if entry.queue is not None:
            entry.tenant.queue.put_first(entry)
            self._changed(entry.tenant, entry.rank)

    def _changed(self, tenant: TierTenant, rank: Rank) -> None:
        if tenant.account is self.common:
            self._merged.changed(tenant.queue, rank)

    # ---- accounts

    def open(self, tenant: TierTenant) -> None:
        """Give a tenant an account of its own."""
        self._merged.leave(tenant.queue)
        self._charge_to(tenant, Account(tenant.queue))
        self._own[tenant.account] = None

    def close(self, tenant: TierTenant) -> None:
        """Return a tenant to the common account."""
        del self._own[tenant.account]
        self.ranking.forget(tenant.account)
        self._charge_to(tenant, self.common)
        for rank in Rank:
            self._merged.changed(tenant.queue, rank)

    def _charge_to(self, tenant: TierTenant, account: Account) -> None:
        old, tenant.account = tenant.account, account
        old.bytes -= tenant.bytes
        account.bytes += tenant.bytes
        self.ranking.changed(account)
        self.ranking.changed(self.common)
