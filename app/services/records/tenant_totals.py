"""Totals of tenants over all nodes, summed from the reports of each node."""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, fields

from dataplane.protocol.misses import MISS_REASONS
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats

OTHER = "other"
"""Reason in place of those that this release does not know."""


@dataclass
class TenantTotals:
    """Totals of one tenant over all nodes that are not lost."""

    bytes: int = 0
    blocks: int = 0
    pinned_bytes: int = 0
    lookup_bytes: int = 0
    would_refuse_blocks: int = 0
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    missed_tokens: Counter[str] = field(default_factory=Counter)
    over_limit: bool = False
    limit_share: float | None = None
    """Largest share of its limit that it holds on a node; None without a limit."""
    floors: list[tuple[int, int]] = field(default_factory=list)
    """Floor and effective floor, as reported by each node."""
    latest: TenantStats | None = None
    """Report of one node, with the share that is in force there."""

    def add(self, report: TenantStats) -> None:
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(report, name))
        self.refused.update(report.refused)
        for reason, tokens in report.missed_tokens.items():
            self.missed_tokens[reason if reason in MISS_REASONS else OTHER] += tokens
        self.over_limit |= report.over_limit
        if report.limit_bytes is not None:
            # A limit holds on each node: the sum over nodes may be far above it while no node is at it.
            self.limit_share = max(self.limit_share or 0.0, report.bytes / max(report.limit_bytes, 1))
        self.floors.append((report.floor_bytes, report.effective_floor_bytes))
        self.latest = report

    @property
    def is_empty(self) -> bool:
        """Whether the tenant holds nothing and has never requested anything."""
        return not self.refused and not self.missed_tokens and not any(getattr(self, name) for name in SUMMED)

    def effective_floor(self, floor_bytes: int) -> int | None:
        """Return the smallest guarantee of this floor among nodes; None if no node has reported this floor yet."""
        return min((effective for floor, effective in self.floors if floor == floor_bytes), default=None)


SUMMED = tuple(each.name for each in fields(TenantTotals) if each.type is int)
"""Totals that are sums of what nodes report under the same names."""


def totals_by_tenant(stats: Iterable[NodeStats], only: Container[str] | None = None) -> dict[str, TenantTotals]:
    """Return totals by shown name, limited to `only` if given. Tenants that no node lists among its
    largest are missing."""
    totals: dict[str, TenantTotals] = {}
    for node in stats:
        for tenant in node.tenants:
            if only is not None and tenant.tenant not in only:
                continue
            totals.setdefault(tenant.tenant, TenantTotals()).add(tenant)
    return totals
