"""Metrics of tenants on a node."""

from operator import attrgetter

from app.observe import node_activity_metrics
from app.observe.bounded import BoundedTenants
from app.observe.node_activity_metrics import TenantCounter
from app.observe.page import OTHER, C, G, MetricsPage, metrics_of
from dataplane.protocol.misses import MISS_REASONS
from dataplane.protocol.stats.tenants import TenantStats

_TENANT = ("node", "tenant")
TENANTS = metrics_of(TenantStats, _TENANT)
MISSED_TOKENS = TENANTS["missed_tokens"]


def counters(tenant: TenantStats) -> dict[TenantCounter, int]:
    """Return the counters of a tenant, by declaration and additional labels."""
    counts: dict[TenantCounter, int] = dict(zip(_COUNTERS, _counted(tenant), strict=True))
    node_activity_metrics.count(tenant, counts)
    for reason, tokens in tenant.missed_tokens.items():
        key = (MISSED_TOKENS, reason if reason in MISS_REASONS else OTHER)
        counts[key] = counts.get(key, 0) + tokens
    return counts


_PLAIN = {name: declared for name, declared in TENANTS.items() if declared.kind == C and declared.labels == _TENANT}
_COUNTERS = tuple((declared,) for declared in _PLAIN.values())
_counted = attrgetter(*_PLAIN)


def add(page: MetricsPage, node: str, tenants: BoundedTenants[TenantCounter]) -> None:
    """Add the samples of the tenants of one node."""
    gauges = [(name, declared) for name, declared in TENANTS.items() if declared.kind == G]
    for tenant in tenants.named:
        for name, declared in gauges:
            value = getattr(tenant, name)
            if value is not None:
                page.add(declared, value, node, tenant.tenant)
        _add_counts(page, node, tenant.tenant, tenants)
    if tenants.folded:
        for name, declared in gauges:
            if name != "limit_bytes":  # a sum of limits has no meaning
                page.add(declared, sum(map(attrgetter(name), tenants.folded)), node, OTHER)
    if tenants.counts(OTHER):
        _add_counts(page, node, OTHER, tenants)


def _add_counts(page: MetricsPage, node: str, label: str, tenants: BoundedTenants[TenantCounter]) -> None:
    for key, count in tenants.counts(label).items():
        declared, *labels = key
        page.add(declared, count, node, label, *labels)
