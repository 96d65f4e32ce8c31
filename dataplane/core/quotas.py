"""Tenants: who is charged for what, and the byte limit that an operator set.

A tenant without a record is unmanaged: it borrows what is free, is shown, and is never wiped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.eviction import EvictionPolicy
from dataplane.protocol.events import TenantStats
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.salts import shown

MAX_LISTED_TENANTS = 1000
MAX_UNKNOWN_FINGERPRINTS = 4096
MAX_IDLE_TENANTS = 10_000


def wrapped(count: int) -> int:
    """A counter that engines feed, kept in 63 bits: what they claim must not break a message of somebody else."""
    return count & (2**63 - 1)


@dataclass(eq=False, slots=True)
class Tenant:
    """One cache_salt's account."""

    salt: str
    number: int
    limit_bytes: int | None = None
    managed: bool = False
    bytes: int = 0
    """Charged bytes in any state."""
    blocks: int = 0
    order: EvictionPolicy | None = None
    """Its own eviction order, kept only while it has a limit."""
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0

    @property
    def over_bytes(self) -> int:
        """Bytes above the limit."""
        return 0 if self.limit_bytes is None else max(0, self.bytes - self.limit_bytes)

    def looked_up(self, requested: int, hits: int) -> None:
        """Count a look-up."""
        self.requested_blocks = wrapped(self.requested_blocks + requested)
        self.hit_blocks = wrapped(self.hit_blocks + hits)

    def stats(self) -> TenantStats:
        return TenantStats(
            tenant=shown(self.salt),
            bytes=self.bytes,
            blocks=self.blocks,
            limit_bytes=self.limit_bytes,
            over_limit=self.over_bytes > 0,
            managed=self.managed,
            requested_blocks=self.requested_blocks,
            hit_blocks=self.hit_blocks,
            stored_blocks=self.stored_blocks,
            evicted_blocks=self.evicted_blocks,
            refused_blocks=self.refused_blocks,
        )


@dataclass(slots=True)
class Sightings:
    """Look-ups of a fingerprint whose tenant is not known yet."""

    requested: int = 0
    hits: int = 0


@dataclass(slots=True)
class Tenants:
    """All tenants that were seen or have a record."""

    by_salt: dict[str, Tenant] = field(default_factory=dict)
    _by_fingerprint: dict[int, Tenant] = field(default_factory=dict)
    _unknown: dict[int, Sightings] = field(default_factory=dict)
    _next: int = 1

    def get(self, salt: str) -> Tenant:
        """The tenant's account; made on first sight."""
        tenant = self.by_salt.get(salt)
        if tenant is None:
            tenant = self.by_salt[salt] = Tenant(salt, self._next)
            self._next += 1
            fingerprint = tenant_fingerprint(salt)
            self._by_fingerprint[fingerprint] = tenant
            seen = self._unknown.pop(fingerprint, None)
            if seen is not None:
                tenant.looked_up(seen.requested, seen.hits)
        return tenant

    def looked_up(self, fingerprint: int, requested: int, hits: int) -> None:
        """Count a look-up that a ring reports; unknown fingerprints wait, within bounds, until their tenant stores."""
        tenant = self._by_fingerprint.get(fingerprint)
        if tenant is not None:
            tenant.looked_up(requested, hits)
            return
        seen = self._unknown.get(fingerprint)
        if seen is None:
            if len(self._unknown) >= MAX_UNKNOWN_FINGERPRINTS:
                return
            seen = self._unknown[fingerprint] = Sightings()
        seen.requested = wrapped(seen.requested + requested)
        seen.hits = wrapped(seen.hits + hits)

    def limited(self) -> list[Tenant]:
        """Tenants with a byte limit."""
        return [tenant for tenant in self.by_salt.values() if tenant.limit_bytes is not None]

    def prune(self) -> None:
        """Forget tenants without blocks and record when there are very many: engines choose salts freely."""
        if len(self.by_salt) <= MAX_IDLE_TENANTS:
            return
        for salt, tenant in list(self.by_salt.items()):
            if not tenant.blocks and not tenant.managed:
                del self.by_salt[salt]
                self._by_fingerprint.pop(tenant_fingerprint(salt), None)

    def stats(self) -> tuple[list[TenantStats], TenantStats | None]:
        """The largest tenants, and the sum of the others."""
        ranked = sorted(self.by_salt.values(), key=lambda tenant: (-tenant.bytes, tenant.salt))
        listed = [tenant.stats() for tenant in ranked[:MAX_LISTED_TENANTS]]
        rest = ranked[MAX_LISTED_TENANTS:]
        if not rest:
            return listed, None
        other = TenantStats(tenant="other")
        for tenant in rest:
            for name in (
                "bytes",
                "blocks",
                "requested_blocks",
                "hit_blocks",
                "stored_blocks",
                "evicted_blocks",
            ):
                setattr(other, name, getattr(other, name) + getattr(tenant, name))
            other.refused_blocks += tenant.refused_blocks
        return listed, other
