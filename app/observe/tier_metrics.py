"""Metrics of the tiers behind a node's memory. A node without tiers has none.

The numbers of labels are bounded: the reasons that are known, the 50 tenants with the most bytes in each tier, and
`other` for the rest.
"""

from collections.abc import Iterable

from app.observe.bounded import TENANT_LABELS
from app.observe.page import NODE, OTHER, MetricsPage, counter, gauge, histogram, metrics_of
from app.observe.process_metrics import add_reported
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tiers import TierStats, TierTenantStats

TIER_LABELS = 16
_TIER = ("node", "tier")
_TENANT = (*_TIER, "tenant")
TIERS = metrics_of(TierStats, _TIER)
LOAD_SECONDS = histogram(
    "larder_tier_load_seconds",
    "Duration of calls that load up to 8 MiB from the tier, without the wait for their turn, failed ones included.",
    _TIER,
)
REASONS = frozenset(
    (
        "away",
        "waiting",
        "budget",
        "limit",
        "listing",
        "evicted",
        "memory",
        "missing",
        "corrupt",
        "clock",
        "full",
        "late",
        "failed",
        "invalidated",
        "size",
        "dtype",
        "heads",
        "values",
    )
)
TENANTS = metrics_of(TierTenantStats, _TENANT)
FLOOR = gauge(
    "larder_tier_tenant_floor_bytes",
    "Bytes of the tier that are guaranteed to a tenant by its quota; absent without a floor.",
    _TENANT,
)
DIRECTORY = {
    "tier_directory_blocks": gauge(
        "larder_tier_directory_blocks",
        "Blocks of tiers that the node's tier directory lists, where engines look for them.",
        NODE,
    ),
    "tier_directory_unlisted": counter(
        "larder_tier_directory_unlisted",
        "Times that a block did not fit into the tier directory; engines do not find such blocks.",
        NODE,
    ),
}


def add(page: MetricsPage, stats: NodeStats) -> None:
    """Add the samples of one node."""
    if stats.tiers:
        page.add_fields(DIRECTORY, stats, stats.node)
    for tier in stats.tiers[:TIER_LABELS]:
        page.add_fields(TIERS, tier, stats.node, tier.name, named=REASONS)
        add_reported(page, LOAD_SECONDS, stats.tier_load_seconds.get(tier.name), stats.node, tier.name)
        for tenant in _bounded(tier):
            page.add_fields(TENANTS, tenant, stats.node, tier.name, tenant.tenant)
            if tenant.floor_bytes:
                page.add(FLOOR, tenant.effective_floor_bytes, stats.node, tier.name, tenant.tenant)


def _bounded(tier: TierStats) -> Iterable[TierTenantStats]:
    """Return the listed tenants with the most bytes, and one `other` for the rest of the tier, which includes a tenant
    named `other`."""
    largest = sorted(
        (tenant for tenant in tier.tenants if tenant.tenant != OTHER), key=lambda tenant: (-tenant.bytes, tenant.tenant)
    )
    named = largest[:TENANT_LABELS]
    blocks = tier.blocks - sum(tenant.blocks for tenant in named)
    if blocks <= 0:
        return named
    # The room of blocks that are being copied is not charged to a tenant yet.
    nbytes = tier.stored_bytes - tier.spilling_bytes - sum(tenant.bytes for tenant in named)
    return [*named, TierTenantStats(OTHER, blocks, max(0, nbytes))]
