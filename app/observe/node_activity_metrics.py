"""Metrics of the activity on a node: durations of engines' operations, evictions, refusals, ages, hits by tier.

Numbers that a node of an earlier release does not report are omitted.
"""

from collections.abc import MutableMapping

from app.observe import process_metrics
from app.observe.catalogue import CATALOGUE
from app.observe.page import NODE, OTHER, MetricDeclaration, MetricsPage, counter, histogram
from app.observe.process_metrics import add_reported
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.tiers import MEMORY
from dataplane.protocol.usage import OTHERS

TenantCounter = tuple[MetricDeclaration] | tuple[MetricDeclaration, str]
"""A counter of tenants, with the value of its label besides `node` and `tenant`, if it has one."""
OPERATIONS = histogram(
    "larder_engine_operation_seconds",
    "Duration of engines' operations, as Larder's client measures it.",
    ("node", "operation"),
)
_REASON = ("node", "reason")
EVICTED_BLOCKS = counter("larder_evicted_blocks", "Blocks evicted, by reason.", _REASON)
EVICTED_BYTES = counter("larder_evicted_bytes", "Bytes evicted, by reason.", _REASON)
REFUSED = counter("larder_refused_blocks", "Blocks refused, by reason.", _REASON)
_TENANT_REASON = ("node", "tenant", "reason")
TENANT_EVICTED = counter("larder_tenant_evicted_blocks", "Blocks of the tenant evicted, by reason.", _TENANT_REASON)
TENANT_REFUSED = counter("larder_tenant_refused_blocks", "Blocks refused to the tenant, by reason.", _TENANT_REASON)
_TIER = ("node", "tenant", "tier")
HIT_TOKENS = counter(
    "larder_hit_tokens",
    "Tokens of the chains that engines acquired, counted once for all ranks, by where they came from: the name of a "
    "tier for blocks at their first use after a load, else memory. A load before a restart of the data plane is not "
    "known after it.",
    _TIER,
)
HIT_BYTES = counter(
    "larder_hit_bytes",
    "Bytes of the chains that engines acquired, summed over all ranks, by where they came from, as in "
    "larder_hit_tokens_total.",
    _TIER,
)
AGES = {
    "evicted_idle": histogram(
        "larder_evicted_idle_seconds", "Time since the last use of blocks that were evicted to make room.", NODE
    ),
    "block_lifetime": histogram(
        "larder_block_lifetime_seconds", "Time from the reservation of blocks to their eviction to make room.", NODE
    ),
    "reuse_gap": histogram("larder_block_reuse_gap_seconds", "Time between consecutive uses of a block.", NODE),
}


def add(page: MetricsPage, stats: NodeStats) -> None:
    """Add the samples of one node, except those of its tenants."""
    node = stats.node
    for operation, seconds in stats.operations.items():
        add_reported(page, OPERATIONS, seconds, node, operation)
    for reason, evicted in stats.evicted.items():
        page.add(EVICTED_BLOCKS, evicted.blocks, node, reason)
        page.add(EVICTED_BYTES, evicted.bytes, node, reason)
    page.add_by(REFUSED, stats.refused.items(), node)
    for name, declared in AGES.items():
        add_reported(page, declared, getattr(stats, name), node)
    if stats.process is not None:
        process_metrics.add(page, stats.process, "data", node)
    page.add_by(process_metrics.EVENTS_DROPPED, stats.events_dropped.items(), "data", node, named=CATALOGUE)


def count(tenant: TenantStats, counts: MutableMapping[TenantCounter, int]) -> None:
    """Add the counters of a tenant to `counts`. For tenants that a node does not list, it reports no reasons: their
    refused blocks get the reason `other`."""
    for reason, blocks in tenant.evicted.items():
        counts[TENANT_EVICTED, reason] = blocks
    unexplained = tenant.refused_blocks
    for reason, blocks in tenant.refused.items():
        counts[TENANT_REFUSED, reason] = blocks
        unexplained -= blocks
    if unexplained > 0:
        counts[TENANT_REFUSED, OTHER] = unexplained + tenant.refused.get(OTHER, 0)
    for declared, total, by_tier in (
        (HIT_TOKENS, tenant.hit_tokens, tenant.tier_hit_tokens),
        (HIT_BYTES, tenant.hit_bytes, tenant.tier_hit_bytes),
    ):
        counts[declared, MEMORY] = max(0, total - sum(by_tier.values())) if by_tier else total
        for tier, served in by_tier.items():
            label = OTHER if tier == OTHERS else tier
            counts[declared, label] = counts.get((declared, label), 0) + served
