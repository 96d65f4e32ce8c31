"""Metrics of a node's publisher of KV events for routers. A node that publishes no KV events has none."""

from app.observe.page import NODE, MetricsPage, metrics_of
from dataplane.protocol.stats.kv_events import KvEventStats

NUMBERS = metrics_of(KvEventStats, NODE)


def add(page: MetricsPage, node: str, stats: KvEventStats) -> None:
    """Add the samples of one node."""
    page.add_fields(NUMBERS, stats, node)
