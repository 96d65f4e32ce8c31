"""Metrics of queues and stores in shared memory, as sums over a node. Names of queues and stores are not labels."""

from app.observe.page import NODE, MetricsPage, counter, gauge
from dataplane.protocol.stats.ipc import IpcStats

NUMBERS = {
    "queues_total": gauge("larder_ipc_queues", "Live message queues in shared memory of the data plane's user.", NODE),
    "stores_total": gauge("larder_ipc_stores", "Live object stores in shared memory of the data plane's user.", NODE),
    "messages": counter("larder_ipc_messages", "Messages of these queues while the data plane ran.", NODE),
    "message_bytes": counter(
        "larder_ipc_message_bytes", "Bytes of messages of these queues while the data plane ran.", NODE
    ),
    "put_bytes": counter("larder_ipc_put_bytes", "Bytes put into these stores while the data plane ran.", NODE),
    "dead_peers": counter(
        "larder_ipc_dead_peers",
        "Readers of queues and processes of stores that ended without leaving, while the data plane ran.",
        NODE,
    ),
}


def add(page: MetricsPage, node: str, stats: IpcStats) -> None:
    """Add the samples of one node."""
    page.add_fields(NUMBERS, stats, node)
