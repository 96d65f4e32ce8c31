"""Metrics of a node's gateway: requests of its clients and their results. A node without a gateway has none."""

from app.observe.page import MetricsPage, counter, gauge, histogram
from dataplane.protocol.stats.gateways import GatewayStats

_GATEWAY = ("node", "gateway")
NUMBERS = {
    "connections": gauge("larder_gateway_connections", "Connections of the gateway's clients.", _GATEWAY),
    "lookups": gauge(
        "larder_gateway_lookups", "Look-ups that hold blocks, or whose result has not been fetched yet.", _GATEWAY
    ),
    "memory_bytes": gauge(
        "larder_gateway_memory_bytes", "Size of the named segment that the gateway's clients map.", _GATEWAY
    ),
    "stored_bytes": counter("larder_gateway_stored_bytes", "Bytes that clients stored.", _GATEWAY),
    "read_bytes": counter("larder_gateway_read_bytes", "Bytes that clients read.", _GATEWAY),
    "chunks_in": counter("larder_gateway_chunks_in", "Chunks that clients stored.", _GATEWAY),
    "chunks_out": counter("larder_gateway_chunks_out", "Chunks that clients read.", _GATEWAY),
    "requested_chunks": counter(
        "larder_gateway_requested_chunks", "Chunks that look-ups requested, when they end.", _GATEWAY
    ),
    "hit_chunks": counter("larder_gateway_hit_chunks", "Chunks that look-ups found and requests used.", _GATEWAY),
    "tier_hit_chunks": counter(
        "larder_gateway_tier_hit_chunks",
        "Those of the hit chunks that look-ups waited for while tiers behind memory loaded them.",
        _GATEWAY,
    ),
    "unanswered": counter(
        "larder_gateway_unanswered", "Responses that could not be delivered because the client was gone.", _GATEWAY
    ),
}
PROBLEM = gauge("larder_gateway_problem", "1 while new workers cannot map the gateway's memory, else 0.", _GATEWAY)
NAME_RESTORED = counter(
    "larder_gateway_name_restored",
    "Number of times that the name of the gateway's memory was removed and restored.",
    _GATEWAY,
)
MEMORY_SHORT = gauge(
    "larder_gateway_memory_short",
    "1 while the machine or /dev/shm has no memory left for what clients store, else 0.",
    _GATEWAY,
)
INSTANCES = gauge("larder_gateway_instances", "Registered workers.", _GATEWAY)
ENDED = counter(
    "larder_gateway_lookups_ended", "Look-ups that ended without a request of their scheduler.", (*_GATEWAY, "reason")
)
REQUESTS = counter("larder_gateway_requests", "Requests of clients.", (*_GATEWAY, "operation"))
FAILURES = counter("larder_gateway_failures", "Requests that failed, by reason.", (*_GATEWAY, "operation", "reason"))
SECONDS = histogram("larder_gateway_request_seconds", "Duration of requests.", (*_GATEWAY, "operation"))


def add(page: MetricsPage, node: str, stats: GatewayStats) -> None:
    """Add the samples of one node."""
    labels = (node, stats.gateway)
    page.add_fields(NUMBERS, stats, *labels)
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
