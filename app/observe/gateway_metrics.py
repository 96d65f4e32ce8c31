"""Metrics of a node's gateway: what its clients asked for and how that went. Nothing where there is no gateway."""

from app.observe.page import C, Declared, G, H, Page
from dataplane.protocol.events import GatewayStats

_GATEWAY = ("node", "gateway")
NUMBERS = {
    "connections": Declared(
        "larder_gateway_connections", G, "Connections of the gateway's clients.", _GATEWAY
    ),
    "lookups": Declared(
        "larder_gateway_lookups",
        G,
        "Look-ups that hold something, or whose result nobody took yet.",
        _GATEWAY,
    ),
    "memory_bytes": Declared(
        "larder_gateway_memory_bytes", G, "Size of the memory that the gateway's clients map.", _GATEWAY
    ),
    "bytes_in": Declared("larder_gateway_bytes_in", C, "Bytes that clients stored.", _GATEWAY),
    "bytes_out": Declared("larder_gateway_bytes_out", C, "Bytes that clients read.", _GATEWAY),
    "chunks_in": Declared("larder_gateway_chunks_in", C, "Chunks that clients stored.", _GATEWAY),
    "chunks_out": Declared("larder_gateway_chunks_out", C, "Chunks that clients read.", _GATEWAY),
    "requested_chunks": Declared(
        "larder_gateway_requested_chunks", C, "Chunks that look-ups asked for.", _GATEWAY
    ),
    "hit_chunks": Declared("larder_gateway_hit_chunks", C, "Chunks that look-ups found.", _GATEWAY),
    "unanswered": Declared(
        "larder_gateway_unanswered", C, "Answers that their client was not there to take.", _GATEWAY
    ),
}
INSTANCES = Declared("larder_gateway_instances", G, "Workers that are registered.", _GATEWAY)
ENDED = Declared(
    "larder_gateway_lookups_ended", C, "Look-ups that ended without their scheduler.", (*_GATEWAY, "reason")
)
REQUESTS = Declared("larder_gateway_requests", C, "Requests of clients.", (*_GATEWAY, "operation"))
FAILURES = Declared(
    "larder_gateway_failures", C, "Requests that failed, by reason.", (*_GATEWAY, "operation", "reason")
)
SECONDS = Declared(
    "larder_gateway_request_seconds", H, "How long the node took for a request.", (*_GATEWAY, "operation")
)


def add(page: Page, node: str, stats: GatewayStats) -> None:
    """One node's samples."""
    of = (node, stats.gateway)
    for name, declared in NUMBERS.items():
        page.add(declared, getattr(stats, name), *of)
    page.add(INSTANCES, len(stats.instances), *of)
    for reason, count in stats.lookups_ended.items():
        page.add(ENDED, count, *of, reason)
    for each in stats.operations:
        page.add(REQUESTS, each.requests, *of, each.operation)
        for reason, count in each.failures.items():
            page.add(FAILURES, count, *of, each.operation, reason)
        if len(each.buckets) == len(stats.bounds_s) + 1:  # a node of another release may have others
            page.add_histogram(SECONDS, stats.bounds_s, each.buckets, each.seconds, *of, each.operation)
