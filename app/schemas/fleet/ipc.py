"""Queues and stores of the shared-memory library, by node."""

import msgspec

from dataplane.protocol.stats.ipc import IpcStats


class NodeIpc(IpcStats, kw_only=True):
    """The latest sample of a node."""

    node: str


class NodeIpcList(msgspec.Struct, frozen=True):
    items: list[NodeIpc]
    """Nodes that are not lost and have sampled, by name."""
    total: int
