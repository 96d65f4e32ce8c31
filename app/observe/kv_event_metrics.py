"""Metrics of a node's publisher of KV events for routers. A node that publishes no KV events has none."""

from app.observe.page import NODE, MetricsPage, counter
from dataplane.protocol.stats.kv_events import KvEventStats

NUMBERS = {
    "published": counter("larder_kv_events_published", "KV events sent to subscribers.", NODE),
    "dropped": counter(
        "larder_kv_events_dropped",
        "KV events that were lost before they were sent, or that were sent while the queue of a subscriber was full.",
        NODE,
    ),
    "replayed": counter("larder_kv_events_replayed", "KV events sent again to subscribers that asked for them.", NODE),
    "replays_abandoned": counter(
        "larder_kv_events_replays_abandoned",
        "Replays that were abandoned because their client did not read the answers.",
        NODE,
    ),
}


def add(page: MetricsPage, node: str, stats: KvEventStats) -> None:
    """Add the samples of one node."""
    page.add_fields(NUMBERS, stats, node)
