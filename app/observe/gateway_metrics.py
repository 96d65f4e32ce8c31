"""Metrics of a node's gateway: requests of its clients and their results. A node without a gateway has none."""

from app.observe.page import MetricsPage, counter, gauge, histogram, metrics_of
from dataplane.protocol.stats.gateways import GatewayStats

_GATEWAY = ("node", "gateway")
NUMBERS = metrics_of(GatewayStats, _GATEWAY)
PROBLEM = gauge("larder_gateway_problem", "1 while new workers cannot map the gateway's memory, else 0.", _GATEWAY)
MEMORY_SHORT = gauge(
    "larder_gateway_memory_short",
    "1 while the machine or /dev/shm has no memory left for what clients store, else 0.",
    _GATEWAY,
)
INSTANCES = gauge("larder_gateway_instances", "Registered workers.", _GATEWAY)
REQUESTS = counter("larder_gateway_requests", "Requests of clients.", (*_GATEWAY, "operation"))
FAILURES = counter("larder_gateway_failures", "Requests that failed, by reason.", (*_GATEWAY, "operation", "reason"))
SECONDS = histogram("larder_gateway_request_seconds", "Duration of requests.", (*_GATEWAY, "operation"))


def add(page: MetricsPage, node: str, stats: GatewayStats) -> None:
    """Add the samples of one node."""
    labels = (node, stats.gateway)
    page.add_fields(NUMBERS, stats, *labels)
    page.add(PROBLEM, stats.problem != "", *labels)
    page.add(MEMORY_SHORT, stats.memory_short, *labels)
    page.add(INSTANCES, len(stats.instances), *labels)
    for operation in stats.operations:
        page.add(REQUESTS, operation.requests, *labels, operation.operation)
        page.add_by(FAILURES, operation.failures.items(), *labels, operation.operation)
        if len(operation.buckets) == len(stats.bounds_s) + 1:  # a node of another release may have other bounds
            page.add_histogram(
                SECONDS, stats.bounds_s, operation.buckets, operation.seconds, *labels, operation.operation
            )
