"""Metrics of a node's gateway: requests of its clients and their results. A node without a gateway has none."""

from app.observe.page import C, G, H, MetricDeclaration, MetricsPage
from dataplane.protocol.stats.gateways import GatewayStats

_GATEWAY = ("node", "gateway")
NUMBERS = {
    "connections": MetricDeclaration(
        "larder_gateway_connections", G, "Connections of the gateway's clients.", _GATEWAY
    ),
    "lookups": MetricDeclaration(
        "larder_gateway_lookups", G, "Look-ups that hold blocks, or whose result has not been fetched yet.", _GATEWAY
    ),
    "memory_bytes": MetricDeclaration(
        "larder_gateway_memory_bytes", G, "Size of the named segment that the gateway's clients map.", _GATEWAY
    ),
    "stored_bytes": MetricDeclaration("larder_gateway_stored_bytes", C, "Bytes that clients stored.", _GATEWAY),
    "read_bytes": MetricDeclaration("larder_gateway_read_bytes", C, "Bytes that clients read.", _GATEWAY),
    "chunks_in": MetricDeclaration("larder_gateway_chunks_in", C, "Chunks that clients stored.", _GATEWAY),
    "chunks_out": MetricDeclaration("larder_gateway_chunks_out", C, "Chunks that clients read.", _GATEWAY),
    "requested_chunks": MetricDeclaration(
        "larder_gateway_requested_chunks", C, "Chunks that look-ups requested.", _GATEWAY
    ),
    "hit_chunks": MetricDeclaration("larder_gateway_hit_chunks", C, "Chunks that look-ups found.", _GATEWAY),
    "tier_hit_chunks": MetricDeclaration(
        "larder_gateway_tier_hit_chunks",
        C,
        "Those of the found chunks that look-ups waited for while tiers behind memory loaded them.",
        _GATEWAY,
    ),
    "unanswered": MetricDeclaration(
        "larder_gateway_unanswered", C, "Responses that could not be delivered because the client was gone.", _GATEWAY
    ),
}
PROBLEM = MetricDeclaration(
    "larder_gateway_problem", G, "1 while new workers cannot map the gateway's memory, else 0.", _GATEWAY
)
NAME_RESTORED = MetricDeclaration(
    "larder_gateway_name_restored",
    C,
    "Number of times that the name of the gateway's memory was removed and restored.",
    _GATEWAY,
)
MEMORY_SHORT = MetricDeclaration(
    "larder_gateway_memory_short",
    G,
    "1 while the machine or /dev/shm has no memory left for what clients store, else 0.",
    _GATEWAY,
)
INSTANCES = MetricDeclaration("larder_gateway_instances", G, "Registered workers.", _GATEWAY)
ENDED = MetricDeclaration(
    "larder_gateway_lookups_ended",
    C,
    "Look-ups that ended without a request of their scheduler.",
    (*_GATEWAY, "reason"),
)
REQUESTS = MetricDeclaration("larder_gateway_requests", C, "Requests of clients.", (*_GATEWAY, "operation"))
FAILURES = MetricDeclaration(
    "larder_gateway_failures", C, "Requests that failed, by reason.", (*_GATEWAY, "operation", "reason")
)
SECONDS = MetricDeclaration("larder_gateway_request_seconds", H, "Duration of requests.", (*_GATEWAY, "operation"))


def add(page: MetricsPage, node: str, stats: GatewayStats) -> None:
    """Add the samples of one node."""
    labels = (node, stats.gateway)
    for name, declared in NUMBERS.items():
        page.add(declared, getattr(stats, name), *labels)
    page.add(PROBLEM, stats.problem != "", *labels)
    page.add(NAME_RESTORED, stats.name_restored, *labels)
    page.add(MEMORY_SHORT, stats.memory_short, *labels)
    page.add(INSTANCES, len(stats.instances), *labels)
    for reason, count in stats.lookups_ended.items():
        page.add(ENDED, count, *labels, reason)
    for each in stats.operations:
        page.add(REQUESTS, each.requests, *labels, each.operation)
        for reason, count in each.failures.items():
            page.add(FAILURES, count, *labels, each.operation, reason)
        if len(each.buckets) == len(stats.bounds_s) + 1:  # a node of another release may have other bounds
            page.add_histogram(SECONDS, stats.bounds_s, each.buckets, each.seconds, *labels, each.operation)
