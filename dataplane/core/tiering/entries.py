"""One block that a tier holds, and one tenant in a tier."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from dataplane.core.pool.pins import PinBundle
from dataplane.core.tenants.accounts import Account
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
