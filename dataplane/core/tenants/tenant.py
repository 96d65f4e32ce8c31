"""One tenant: its charges, counters, rate and usage accounts."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.core.tenants.accounts import Account
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.usage import MAX_USAGE_TIERS, OTHERS, TierUsageCounters, UsageCounters

_KIB_S = 1024 * 1_000_000
_MAX = 2**63 - 1
GAUGES = ("bytes", "blocks", "pinned_bytes", "lookup_bytes")
COUNTERS = (
    "requested_blocks",
    "hit_blocks",
    "stored_blocks",
    "evicted_blocks",
    "refused_blocks",
    "would_refuse_blocks",
    "hit_tokens",
    "hit_bytes",
)
_COUNTS = (*GAUGES, *COUNTERS)
COUNTERS_BY_NAME = ("refused", "evicted", "missed_tokens", "tier_hit_tokens", "tier_hit_bytes")
"""Fields that a tenant and its statistics have in common."""
_LIMITS = ("limit_bytes", "floor_bytes", "weight", "pin_budget_bytes", "store_rate_bytes", "on_exceed", "mode")
"""Fields that a quota and the statistics of its tenant have in common."""


def wrapped(count: int) -> int:
    """Return `count` wrapped to 63 bits. Engines feed these counters, and their claims must not break a message that
    also reports on others."""
    return count & (2**63 - 1)


@dataclass(slots=True)
class Rate:
    """A token bucket of `per_s` bytes a second, which holds at most one second's worth. A debt must be paid off before
    the bucket grants more."""

    per_s: int
    left_bytes: float
    at: float
    _most: int = 0
    """Bytes of the last grant."""

    def granted(self, size: int, count: int, now: float) -> int:
        """Return how many of `count` slots of `size` bytes may be taken now."""
        passed = max(0.0, now - self.at)  # a clock that was set back must not remove tokens
        self.left_bytes = min(float(self.per_s), self.left_bytes + passed * self.per_s)
        self.at = now
        # A slot larger than a second's worth is granted when the bucket is full, and paid off afterwards.
        fits_one = self.left_bytes >= min(size, self.per_s)
        granted = min(count, max(int(self.left_bytes // size), int(fits_one)))
        self._most = size * granted
        return granted

    def spend(self, nbytes: int) -> None:
        """Charge taken bytes. Bytes beyond the grant, which occur when the rate is only observed, make no debt."""
        self.left_bytes -= min(nbytes, self._most)


@dataclass(eq=False, slots=True)
class TierAccount:
    """Usage of one tier in one account, in the same units."""

    at_us: int
    bytes: int = 0
    byte_us: int = 0
    served_tokens: int = 0
    served_bytes: int = 0

    def settle(self, now_us: int) -> None:
        """Add the bytes over time up to `now_us`."""
        self.byte_us += self.bytes * (now_us - self.at_us)
        self.at_us = now_us

    def counters(self) -> TierUsageCounters:
        """Return the counters for the wire."""
        return TierUsageCounters(self.byte_us // _KIB_S & _MAX, self.served_tokens & _MAX, self.served_bytes & _MAX)


@dataclass(eq=False, slots=True)
class UsageAccount:
    """Usage of one tenant in one family of spaces. Counts are in blocks, bytes and tokens; times are in microseconds of
    the node's clock."""

    number: int
    salt: str | None
    """Salt of the tenant; None for the shared account of tenants without their own account."""
    key: str
    """Name of the family among those of the tenant."""
    model: str
    family: str
    """Identity of the leading space, or of the space itself as long as its model is not known."""
    at_us: int
    """Time up to which `byte_us` is settled."""
    tenant: Tenant | None = None
    """The tenant; None for the shared account, and for a tenant that has blocks in tiers only."""
    spaces: set[int] = field(default_factory=set)
    bytes: int = 0
    byte_us: int = 0
    requested_tokens: int = 0
    served_tokens: int = 0
    stored_blocks: int = 0
    stored_bytes: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    served_bytes: int = 0
    tiers: dict[str, TierAccount] = field(default_factory=dict)
    """Usage of tiers, by name of the tier."""

    @property
    def holds_bytes(self) -> bool:
        """Whether memory or a tier holds bytes of the account."""
        return self.bytes > 0 or any(tier.bytes for tier in self.tiers.values())

    def settle(self, now_us: int) -> None:
        """Add the bytes over time up to `now_us`, in memory and in tiers."""
        self.byte_us += self.bytes * (now_us - self.at_us)
        self.at_us = now_us
        for tier in self.tiers.values():
            tier.settle(now_us)

    def counters(self) -> UsageCounters:
        """Return the counters for the wire. Counts that engines claim may wrap around but cannot break a message."""
        return UsageCounters(
            number=self.number,
            tenant=OTHERS if self.salt is None else shown(self.salt),
            model=self.model,
            space=self.family,
            held_kib_s=self.byte_us // _KIB_S & _MAX,
            requested_tokens=self.requested_tokens & _MAX,
            served_tokens=self.served_tokens & _MAX,
            stored_blocks=self.stored_blocks,
            stored_bytes=self.stored_bytes,
            evicted_blocks=self.evicted_blocks,
            evicted_bytes=self.evicted_bytes,
            refused=dict(self.refused),
            served_bytes=self.served_bytes & _MAX,
            tiers={name: tier.counters() for name, tier in self.tiers.items()},
        )


@dataclass(eq=False, slots=True)
class Tenant:
    """A tenant, identified by its cache_salt."""

    salt: str
    number: int
    account: Account
    """Its own account while its quota is enforced, otherwise the common account."""
    spec: QuotaSpec | None = None
    """Its quota record; None for an unmanaged tenant."""
    rate: Rate | None = None
    bytes: int = 0
    """Charged bytes in any state."""
    blocks: int = 0
    pinned_bytes: int = 0
    """Bytes of its guaranteed blocks, which are within the pin budgets."""
    lookup_bytes: int = 0
    """Bytes of blocks that look-ups held when that was last measured."""
    hinted_bytes: int = 0
    """Charged bytes of its blocks under hinted pins."""
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0
    would_refuse_blocks: int = 0
    refused: dict[str, int] | None = None
    """Refused blocks by code name."""
    evicted: dict[str, int] | None = None
    """Evicted blocks by reason."""
    hit_tokens: int = 0
    hit_bytes: int = 0
    tier_hit_tokens: dict[str, int] | None = None
    """Part of `hit_tokens` that tiers served, by name."""
    tier_hit_bytes: dict[str, int] | None = None
    missed_tokens: dict[str, int] | None = None
    """Tokens that its requests missed, by reason."""
    reported: TenantStats | None = None
    """Last statistics that were included in full, either as the tenant's own or in the sum of the other tenants."""
    usage: dict[int, UsageAccount] = field(default_factory=dict)
    """Usage accounts by space number."""

    @property
    def managed(self) -> bool:
        return self.spec is not None

    @property
    def enforced(self) -> bool:
        """Whether the tenant's quota is enforced rather than observed."""
        return self.spec is not None and self.spec.mode == "enforce"

    @property
    def limit_bytes(self) -> int | None:
        """Enforced limit in bytes, or None."""
        return self.account.limit_bytes if self.enforced else None

    @property
    def over_bytes(self) -> int:
        """Bytes above the recorded limit, even if it is only observed."""
        limit = self.spec.limit_bytes if self.spec is not None else None
        return 0 if limit is None else max(0, self.bytes - limit)

    @property
    def pin_budget_bytes(self) -> int | None:
        """Bytes that its guaranteed pins may hold; None for as much as the pool's budget.

        It is at most 90 % of an enforced limit, so that pins leave room below the limit.
        """
        if self.spec is None or not self.enforced:
            return None
        bounds = [] if self.spec.pin_budget_bytes is None else [self.spec.pin_budget_bytes]
        if self.spec.limit_bytes is not None:
            bounds.append(self.spec.limit_bytes * 9 // 10)
        return min(bounds, default=None)

    def looked_up(self, requested: int, hits: int) -> None:
        """Count a look-up."""
        self.requested_blocks = wrapped(self.requested_blocks + requested)
        self.hit_blocks = wrapped(self.hit_blocks + hits)

    def hit(self, tokens: int, nbytes: int) -> None:
        """Count an acquired chain."""
        self.hit_tokens = wrapped(self.hit_tokens + tokens)
        self.hit_bytes = wrapped(self.hit_bytes + nbytes)

    def hit_in_tier(self, name: str, tokens: int, nbytes: int) -> None:
        """Count a block of an acquired chain that the tier of this name served."""
        if self.tier_hit_tokens is None or self.tier_hit_bytes is None:
            self.tier_hit_tokens, self.tier_hit_bytes = {}, {}
        if name not in self.tier_hit_bytes and len(self.tier_hit_bytes) >= MAX_USAGE_TIERS:
            name = OTHERS
        for counts, count in ((self.tier_hit_tokens, tokens), (self.tier_hit_bytes, nbytes)):
            counts[name] = wrapped(counts.get(name, 0) + count)

    def miss(self, reason: str, tokens: int) -> None:
        """Count tokens that a request missed."""
        if self.missed_tokens is None:
            self.missed_tokens = {}
        self.missed_tokens[reason] = wrapped(self.missed_tokens.get(reason, 0) + tokens)

    def evict(self, reason: str, blocks: int) -> None:
        """Count evicted blocks."""
        if self.evicted is None:
            self.evicted = {}
        self.evicted[reason] = self.evicted.get(reason, 0) + blocks

    def refuse(self, code: Code, blocks: int) -> None:
        """Count refused blocks."""
        self.refused_blocks += blocks
        if self.refused is None:
            self.refused = {}
        name = code.name.lower()
        self.refused[name] = self.refused.get(name, 0) + blocks

    def stats(self) -> TenantStats:
        stats = TenantStats(tenant=shown(self.salt), over_limit=self.over_bytes > 0, managed=self.managed)
        for name in _COUNTS:  # most tenants have few counts, and there may be 1,000 tenants
            if count := getattr(self, name):
                setattr(stats, name, count)
        for name in COUNTERS_BY_NAME:
            if counts := getattr(self, name):
                setattr(stats, name, dict(counts))
        if self.spec is not None:
            for name in _LIMITS:
                setattr(stats, name, getattr(self.spec, name))
            stats.effective_floor_bytes = self.account.floor_bytes if self.enforced else 0
        return stats
