"""Metrics of queues and stores in shared memory, as sums over a node. Names of queues and stores are not labels."""

from app.observe.page import NODE, MetricsPage, metrics_of
from dataplane.protocol.stats.ipc import IpcStats

NUMBERS = metrics_of(IpcStats, NODE)


def add(page: MetricsPage, node: str, stats: IpcStats) -> None:
    """Add the samples of one node."""
    page.add_fields(NUMBERS, stats, node)
