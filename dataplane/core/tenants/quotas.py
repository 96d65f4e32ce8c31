"""All tenants, and the quotas that an operator set.

A tenant without a record is unmanaged: it borrows free room, appears in the statistics, and is never wiped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

from msgspec.structs import replace

from dataplane.core.tenants.accounts import Account
from dataplane.core.tenants.tenant import COUNTERS, COUNTERS_BY_NAME, GAUGES, Tenant, wrapped
from dataplane.core.tenants.usage import UsageTable
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.stats.tenants import TenantStats

MAX_LISTED_TENANTS = 1000
MAX_UNKNOWN_FINGERPRINTS = 4096
MAX_UNKNOWN_SPACES = 16
MAX_IDLE_TENANTS = 10_000
"""Number of tenants above which those without blocks and without a record are forgotten."""
MIN_VISITED = 2048
"""Number of tenants that one call of `prune` checks at least."""
PICTURE_S = 5.0


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
    by_salt: dict[str, Tenant] = field(default_factory=dict)
    _by_fingerprint: dict[int, Tenant] = field(default_factory=dict)
    _unknown: dict[int, AdmissionSightings] = field(default_factory=dict)
    _next: int = 1
    _unvisited: list[str] = field(default_factory=list)
    """Salts that `prune` has not checked yet in its current round."""
    _picture: tuple[list[TenantStats], TenantStats | None] | None = None
    _pictured_at: float = 0.0
    _others: TenantStats = field(default_factory=lambda: TenantStats(tenant="other"))
    """Sum of what tenants counted while they were not listed."""

    def get(self, salt: str) -> Tenant:
        """Return the tenant with a salt; create it on first use."""
        return self.restore(self._next, salt)

    def restore(self, number: int, salt: str) -> Tenant:
        """Return the tenant with a salt; create it with the number that it had before a restart."""
        tenant = self.by_salt.get(salt)
        if tenant is None:
            tenant = self.by_salt[salt] = Tenant(salt, number, self.common)
            self.never_below(number)
            fingerprint = tenant_fingerprint(salt)
            self._by_fingerprint[fingerprint] = tenant
            seen = self._unknown.pop(fingerprint, None)
            if seen is not None:
                tenant.looked_up(seen.requested, seen.hits)
                for space, requested in seen.leading.items():
                    self.usage.looked_up(tenant, space, requested)
        return tenant

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
        freely.

        A call checks part of the tenants: more of them, the more are too many, so that their number stays bounded.
        """
        excess = len(self.by_salt) - MAX_IDLE_TENANTS
        if excess <= 0:
            self._unvisited = []
            return
        if not self._unvisited:
            self._unvisited = list(self.by_salt)
        for _ in range(min(max(MIN_VISITED, excess // 8), len(self._unvisited))):
            salt = self._unvisited.pop()
            tenant = self.by_salt.get(salt)
            if tenant is not None and not tenant.blocks and not tenant.managed:
                self._count_among_others(tenant)
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
        for tenant, stats in zip(ranked, listed, strict=True):
            tenant.reported = stats
        self._picture = listed, self._sum_of_others(ranked)
        return self._picture

    def _sum_of_others(self, ranked: list[Tenant]) -> TenantStats | None:
        """Return the sums over the tenants that are not listed; None if there are none and never were."""
        others = self._others
        if len(self.by_salt) > len(ranked):
            listed = set(ranked)
            unlisted = [tenant for tenant in self.by_salt.values() if tenant not in listed]
            for tenant in unlisted:
                self._count_among_others(tenant)
            for name in GAUGES:
                setattr(others, name, sum([getattr(tenant, name) for tenant in unlisted]))
        elif others == TenantStats(tenant="other"):
            return None
        else:
            for name in GAUGES:
                setattr(others, name, 0)
        return replace(others, **{name: dict(getattr(others, name)) for name in COUNTERS_BY_NAME})

    def _count_among_others(self, tenant: Tenant) -> None:
        """Add what a tenant has counted since it was last listed to the counts of the others. So no counter falls when
        a tenant moves into the list or out of it."""
        before = tenant.reported or _NOTHING
        if (
            all(getattr(tenant, name) == getattr(before, name) for name in COUNTERS)
            and (tenant.evicted or {}) == before.evicted
            and (tenant.missed_tokens or {}) == before.missed_tokens
        ):
            return
        now, others = tenant.stats(), self._others
        for name in COUNTERS:
            added = getattr(now, name) - getattr(before, name)
            setattr(others, name, wrapped(getattr(others, name) + max(0, added)))
        for name in COUNTERS_BY_NAME:
            sums, counted = getattr(others, name), getattr(before, name)
            for reason, count in getattr(now, name).items():
                if added := count - counted.get(reason, 0):
                    sums[reason] = wrapped(sums.get(reason, 0) + max(0, added))
        tenant.reported = now

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


_NOTHING = TenantStats(tenant="")
