"""Metrics of a node's gateway: requests of its clients and their results. A node without a gateway has none."""

from app.observe.page import C, G, H, MetricDeclaration, MetricsPage
from dataplane.protocol.events import GatewayStats

_GATEWAY = ("node", "gateway")
NUMBERS = {
    "connections": MetricDeclaration(
        "larder_gateway_connections", G, "Connections of the gateway's clients.", _GATEWAY
    ),
    "lookups": MetricDeclaration(
        "larder_gateway_lookups",
        G,
        "Look-ups that hold blocks, or whose result has not been fetched yet.",
        _GATEWAY,
    ),
    "memory_bytes": MetricDeclaration(
        "larder_gateway_memory_bytes", G, "Size of the memory that the gateway's clients map.", _GATEWAY
    ),
    "stored_bytes": MetricDeclaration(
        "larder_gateway_stored_bytes", C, "Bytes that clients stored.", _GATEWAY
    ),
    "read_bytes": MetricDeclaration("larder_gateway_read_bytes", C, "Bytes that clients read.", _GATEWAY),
    "chunks_in": MetricDeclaration("larder_gateway_chunks_in", C, "Chunks that clients stored.", _GATEWAY),
    "chunks_out": MetricDeclaration("larder_gateway_chunks_out", C, "Chunks that clients read.", _GATEWAY),
    "requested_chunks": MetricDeclaration(
        "larder_gateway_requested_chunks", C, "Chunks that look-ups asked for.", _GATEWAY
    ),
    "hit_chunks": MetricDeclaration("larder_gateway_hit_chunks", C, "Chunks that look-ups found.", _GATEWAY),
    "unanswered": MetricDeclaration(
        "larder_gateway_unanswered", C, "Answers that their client was not there to take.", _GATEWAY
    ),
}
PROBLEM = MetricDeclaration(
    "larder_gateway_problem", G, "1 while new workers cannot map the gateway's memory, else 0.", _GATEWAY
)
NAME_RESTORED = MetricDeclaration(
    "larder_gateway_name_restored",
    C,
    "Times that the name of the gateway's memory was removed and restored.",
    _GATEWAY,
)
MEMORY_SHORT = MetricDeclaration(
    "larder_gateway_memory_short",
    G,
    "1 while the machine or /dev/shm has no more memory for stores of clients, else 0.",
    _GATEWAY,
)
INSTANCES = MetricDeclaration("larder_gateway_instances", G, "Workers that are registered.", _GATEWAY)
ENDED = MetricDeclaration(
    "larder_gateway_lookups_ended", C, "Look-ups that ended without their scheduler.", (*_GATEWAY, "reason")
)
REQUESTS = MetricDeclaration("larder_gateway_requests", C, "Requests of clients.", (*_GATEWAY, "operation"))
FAILURES = MetricDeclaration(
    "larder_gateway_failures", C, "Requests that failed, by reason.", (*_GATEWAY, "operation", "reason")
)
SECONDS = MetricDeclaration(
    "larder_gateway_request_seconds", H, "How long the node took for a request.", (*_GATEWAY, "operation")
)


def add(page: MetricsPage, node: str, stats: GatewayStats) -> None:
    """Add the samples of one node."""
    of = (node, stats.gateway)
    for name, declared in NUMBERS.items():
        page.add(declared, getattr(stats, name), *of)
    page.add(PROBLEM, stats.problem != "", *of)
    page.add(NAME_RESTORED, stats.name_restored, *of)
    page.add(MEMORY_SHORT, stats.memory_short, *of)
    page.add(INSTANCES, len(stats.instances), *of)
    for reason, count in stats.lookups_ended.items():
        page.add(ENDED, count, *of, reason)
    for each in stats.operations:
        page.add(REQUESTS, each.requests, *of, each.operation)
        for reason, count in each.failures.items():
            page.add(FAILURES, count, *of, each.operation, reason)
        if len(each.buckets) == len(stats.bounds_s) + 1:  # a node of another release may have other bounds
            page.add_histogram(SECONDS, stats.bounds_s, each.buckets, each.seconds, *of, each.operation)
