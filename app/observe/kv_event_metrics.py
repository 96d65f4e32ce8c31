"""Metrics of a node's publisher of KV events for routers. A node that publishes no KV events has none."""

from app.observe.page import C, MetricDeclaration, MetricsPage
from dataplane.protocol.stats.kv_events import KvEventStats

NUMBERS = {
    "published": MetricDeclaration("larder_kv_events_published", C, "KV events sent to subscribers.", ("node",)),
    "dropped": MetricDeclaration(
        "larder_kv_events_dropped",
        C,
        "KV events that were lost before they were sent, or that were sent while the queue of a subscriber was full.",
        ("node",),
    ),
    "replayed": MetricDeclaration(
        "larder_kv_events_replayed", C, "KV events sent again to subscribers that asked for them.", ("node",)
    ),
    "replays_abandoned": MetricDeclaration(
        "larder_kv_events_replays_abandoned",
        C,
        "Replays that were abandoned because their client did not read the answers.",
        ("node",),
    ),
}


def add(page: MetricsPage, node: str, stats: KvEventStats) -> None:
    """Add the samples of one node."""
    for name, declared in NUMBERS.items():
        page.add(declared, getattr(stats, name), node)
