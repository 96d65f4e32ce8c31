"""Metrics of queues and stores in shared memory, as sums over a node. Names of queues and stores are not labels."""

from app.observe.page import C, G, MetricDeclaration, MetricsPage
from dataplane.protocol.stats.ipc import IpcStats

NUMBERS = {
    "queues_total": MetricDeclaration(
        "larder_ipc_queues", G, "Live message queues in shared memory of the data plane's user.", ("node",)
    ),
    "stores_total": MetricDeclaration(
        "larder_ipc_stores", G, "Live object stores in shared memory of the data plane's user.", ("node",)
    ),
    "messages": MetricDeclaration(
        "larder_ipc_messages", C, "Messages of these queues while the data plane ran.", ("node",)
    ),
    "message_bytes": MetricDeclaration(
        "larder_ipc_message_bytes", C, "Bytes of messages of these queues while the data plane ran.", ("node",)
    ),
    "put_bytes": MetricDeclaration(
        "larder_ipc_put_bytes", C, "Bytes put into these stores while the data plane ran.", ("node",)
    ),
    "dead_peers": MetricDeclaration(
        "larder_ipc_dead_peers",
        C,
        "Readers of queues and processes of stores that ended without leaving, while the data plane ran.",
        ("node",),
    ),
}


def add(page: MetricsPage, node: str, stats: IpcStats) -> None:
    """Add the samples of one node."""
    for name, declared in NUMBERS.items():
        page.add(declared, getattr(stats, name), node)
