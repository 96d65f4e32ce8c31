"""Tenants: their charges, counters and the quotas that an operator set.

A tenant without a record is unmanaged: it borrows free room, appears in the statistics, and is never wiped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nsmallest

from dataplane.core.tenants.accounts import Account
from dataplane.core.tenants.usage import UsageAccount, UsageTable
from dataplane.protocol.codes import Code
from dataplane.protocol.control import QuotaSpec
from dataplane.protocol.events import TenantStats
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.salts import shown

MAX_LISTED_TENANTS = 1000
MAX_UNKNOWN_FINGERPRINTS = 4096
MAX_UNKNOWN_SPACES = 16
MAX_IDLE_TENANTS = 10_000
PICTURE_S = 5.0


def wrapped(count: int) -> int:
    """Return `count` wrapped to 63 bits. Engines feed these counters, and their claims must not break a message that
    also reports on others."""
    return count & (2**63 - 1)


@dataclass(slots=True)
class Rate:
    """A token bucket of `per_s` bytes a second, which holds at most one second's worth. A debt must be paid off before
    the bucket grants more."""

    per_s: int
    left: float
    at: float
    _most: int = 0
    """Bytes of the last grant."""

    def granted(self, size: int, count: int, now: float) -> int:
        """Return how many of `count` slots of `size` bytes may be taken now."""
        passed = max(0.0, now - self.at)  # a clock that was set back must not remove tokens
        self.left = min(float(self.per_s), self.left + passed * self.per_s)
        self.at = now
        # A slot larger than a second's worth is granted when the bucket is full, and paid off afterwards.
        whole = self.left >= min(size, self.per_s)
        granted = min(count, max(int(self.left // size), int(whole)))
        self._most = size * granted
        return granted

    def spend(self, nbytes: int) -> None:
        """Charge taken bytes. Bytes beyond the grant, which occur when the rate is only observed, make no debt."""
        self.left -= min(nbytes, self._most)


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
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0
    would_refuse_blocks: int = 0
    refused: dict[str, int] | None = None
    """Refused blocks by code name."""
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

    def refuse(self, code: Code, blocks: int) -> None:
        """Count refused blocks."""
        self.refused_blocks += blocks
        if self.refused is None:
            self.refused = {}
        name = code.name.lower()
        self.refused[name] = self.refused.get(name, 0) + blocks

    def stats(self) -> TenantStats:
        stats = TenantStats(
            tenant=shown(self.salt),
            bytes=self.bytes,
            blocks=self.blocks,
            over_limit=self.over_bytes > 0,
            managed=self.managed,
            pinned_bytes=self.pinned_bytes,
            would_refuse_blocks=self.would_refuse_blocks,
            refused=self.refused or {},
            requested_blocks=self.requested_blocks,
            hit_blocks=self.hit_blocks,
            stored_blocks=self.stored_blocks,
            evicted_blocks=self.evicted_blocks,
            refused_blocks=self.refused_blocks,
        )
        spec = self.spec
        if spec is not None:
            for name in (
                "limit_bytes",
                "floor_bytes",
                "weight",
                "pin_budget_bytes",
                "store_rate_bytes",
                "on_exceed",
                "mode",
            ):
                setattr(stats, name, getattr(spec, name))
            stats.effective_floor_bytes = self.account.floor_bytes if self.enforced else 0
        return stats


@dataclass(slots=True)
class AdmissionSightings:
    """Look-ups of a fingerprint whose tenant is not yet known."""

    requested: int = 0
    hits: int = 0
    leading: dict[int, int] = field(default_factory=dict)
    """Requested blocks by the leading space of the requesting engine."""


@dataclass(slots=True)
class TenantTable:
    """All tenants that have sent a store request or have a record."""

    common: Account
    usage: UsageTable
    on_new: Callable[[Tenant], None] = lambda tenant: None
    """Callback for every new tenant."""
    by_salt: dict[str, Tenant] = field(default_factory=dict)
    _by_fingerprint: dict[int, Tenant] = field(default_factory=dict)
    _unknown: dict[int, AdmissionSightings] = field(default_factory=dict)
    _next: int = 1
    _picture: tuple[list[TenantStats], TenantStats | None] | None = None
    _pictured_at: float = 0.0

    def get(self, salt: str) -> Tenant:
        """Return the tenant with a salt; create it on first use."""
        tenant = self.by_salt.get(salt)
        if tenant is None:
            tenant = self.by_salt[salt] = Tenant(salt, self._next, self.common)
            self.never_below(self._next)
            fingerprint = tenant_fingerprint(salt)
            self._by_fingerprint[fingerprint] = tenant
            seen = self._unknown.pop(fingerprint, None)
            if seen is not None:
                tenant.looked_up(seen.requested, seen.hits)
                for space, requested in seen.leading.items():
                    self.usage.looked_up(tenant, space, requested)
            self.on_new(tenant)
        return tenant

    def restore(self, number: int, salt: str) -> Tenant:
        """Return the tenant with a salt, created with the number that it had before a restart."""
        self._next = number
        return self.get(salt)

    def never_below(self, number: int) -> None:
        """Do not assign numbers up to this one."""
        self._next = max(self._next, number + 1)

    def looked_up(self, fingerprint: int, requested: int, hits: int, space: int) -> None:
        """Count a look-up that a ring reports.

        Counts of an unknown fingerprint are kept, within bounds, until its tenant stores a block. `space` is the
        leading space of the engine; 0 when it has none.
        """
        tenant = self._by_fingerprint.get(fingerprint)
        if tenant is not None:
            tenant.looked_up(requested, hits)
            if space:
                self.usage.looked_up(tenant, space, requested)
            return
        seen = self._unknown.get(fingerprint)
        if seen is None:
            if len(self._unknown) >= MAX_UNKNOWN_FINGERPRINTS:
                return
            seen = self._unknown[fingerprint] = AdmissionSightings()
        seen.requested = wrapped(seen.requested + requested)
        seen.hits = wrapped(seen.hits + hits)
        if space and (space in seen.leading or len(seen.leading) < MAX_UNKNOWN_SPACES):
            seen.leading[space] = wrapped(seen.leading.get(space, 0) + requested)

    def managed(self) -> list[Tenant]:
        """Return the tenants that have a record."""
        return [tenant for tenant in self.by_salt.values() if tenant.spec is not None]

    def prune(self) -> None:
        """Forget tenants without blocks and without a record when there are too many, since engines choose salts
        freely."""
        if len(self.by_salt) <= MAX_IDLE_TENANTS:
            return
        for salt, tenant in list(self.by_salt.items()):
            if not tenant.blocks and not tenant.managed:
                del self.by_salt[salt]
                self._by_fingerprint.pop(tenant_fingerprint(salt), None)

    def stats(self, now: float) -> tuple[list[TenantStats], TenantStats | None]:
        """Return the statistics of the largest tenants and the sum of the others.

        With very many tenants the result is up to PICTURE_S seconds old.
        """
        if len(self.by_salt) > MAX_IDLE_TENANTS and self._picture and now - self._pictured_at < PICTURE_S:
            return self._picture
        self._pictured_at = now
        ranked = self._shown()
        listed = [tenant.stats() for tenant in ranked]
        other = None
        if len(self.by_salt) > len(ranked):
            other = TenantStats(tenant="other")
            for name in _SUMMED:
                everybody = sum([getattr(tenant, name) for tenant in self.by_salt.values()])
                setattr(other, name, wrapped(everybody - sum(getattr(tenant, name) for tenant in ranked)))
        self._picture = listed, other
        return self._picture

    def _shown(self) -> list[Tenant]:
        """Return the largest tenants. With very many tenants, half of the list is reserved for the largest ones that
        have a record."""

        def turn(tenant: Tenant) -> tuple[int, str]:
            return -tenant.bytes, tenant.salt

        everybody = self.by_salt.values()
        if len(everybody) <= MAX_LISTED_TENANTS:
            return sorted(everybody, key=turn)
        half = MAX_LISTED_TENANTS // 2
        chosen = dict.fromkeys(nsmallest(half, self.managed(), key=turn))
        for tenant in nsmallest(MAX_LISTED_TENANTS, everybody, key=turn):
            if len(chosen) < MAX_LISTED_TENANTS:
                chosen[tenant] = None
        return sorted(chosen, key=turn)


_SUMMED = (
    "bytes",
    "blocks",
    "pinned_bytes",
    "requested_blocks",
    "hit_blocks",
    "stored_blocks",
    "evicted_blocks",
    "refused_blocks",
    "would_refuse_blocks",
)
